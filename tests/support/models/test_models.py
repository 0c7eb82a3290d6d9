"""Networks keep their contract, and noise comes from the visit's own stream only."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support.core.rng import layer_noise
from fedlab_support.models import CNN, Dropout, report_cnn, small_cnn
from fedlab_support.models.layers.noise import own_noise, rehearsed
from fedlab_support.models.stages import insert, norm2d, stage_numbers

FEMNIST = ((1, 28, 28), 62)


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(num: int = 3, channels: int = 1, size: int = 28) -> torch.Tensor:
    return torch.randn(num, channels, size, size, generator=stream())


# ---- the CNN ------------------------------------------------------------------------
@pytest.mark.parametrize(("norm", "count"), [("none", 6_603_710), ("batch", 6_603_902)])
def test_the_report_cnn_has_the_papers_number_of_parameters(norm, count):
    assert num_parameters(report_cnn(*FEMNIST, norm=norm)) == count


def test_the_small_cnn_is_narrow():
    # 1·16·25 + 16,  16·32·25 + 32,  32·7·7·128 + 128,  128·62 + 62
    assert num_parameters(small_cnn(*FEMNIST)) == 208 + 3_216 + 100_480 + 7_998


def test_a_batch_of_one_passes_and_each_picture_counts_alone():
    model = small_cnn(*FEMNIST).eval()
    x = pictures(4)
    alone = torch.cat([model(one[None]) for one in x])
    assert torch.allclose(alone, model(x), atol=1e-6)


@pytest.mark.parametrize("norm", ["none", "batch", "group"])
def test_pooling_before_relu_is_the_same_as_after_it(norm):
    model = CNN((1, 12, 12), 3, widths=(8, 8), hidden=4, norm=norm).eval()
    x = usual = pictures(size=12)
    for stage in model.stages:
        *front, _, _ = stage
        usual = F.max_pool2d(nn.Sequential(*front)(usual).relu(), 2)
    assert torch.equal(model.stages(x), usual)


@pytest.mark.parametrize("channels", [1, 7, 8, 12, 60, 64])
def test_groups_divide_any_number_of_channels(channels):
    layer = norm2d("group", channels)
    assert layer.num_groups == {60: 6, 64: 8}.get(channels, 1)
    assert layer(pictures(2, channels, 4)).shape == (2, channels, 4, 4)


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_features_are_normalised_as_maps_of_one_pixel_are(norm):
    x = 3 + pictures(5, 16, 1)
    flat, usual = norm2d(norm, 16, flat=True), norm2d(norm, 16)
    assert flat(x[..., 0, 0]).shape == (5, 16)
    assert torch.allclose(flat(x[..., 0, 0]), usual(x)[..., 0, 0], atol=1e-6)


def test_pictures_of_which_nothing_would_be_left_are_refused():
    with pytest.raises(ValueError, match=r"at least 4x4 pixels, found 3x28"):
        small_cnn((1, 3, 28), 4)


# ---- stages -------------------------------------------------------------------------
def test_layers_are_added_behind_a_stage_in_the_order_asked_for():
    model = small_cnn(*FEMNIST).eval()
    before, x = list(model.state_dict()), pictures(2)
    plain = model(x)
    insert(model, 2, "late", nn.Tanh())
    insert(model, 2, "later", nn.Dropout(0.5))
    insert(model, 2, "early", nn.ReLU6(), first=True)
    assert list(model.stages[1].added._modules) == ["early", "late", "later"]
    assert list(model.state_dict()) == before
    assert not torch.equal(model(x), plain)
    assert model.stages[0](x).shape[1] == model.widths[0]


@pytest.mark.parametrize("wanted", [(0,), (3,), (1, 1)])
def test_a_stage_that_the_model_lacks_is_refused(wanted):
    with pytest.raises(ValueError, match=r"numbered 1…2, each at most once; found"):
        stage_numbers(small_cnn(*FEMNIST), wanted)


def test_two_layers_of_one_name_in_a_stage_are_refused():
    model = small_cnn(*FEMNIST)
    insert(model, 1, "noise", nn.ReLU())
    with pytest.raises(ValueError, match="stage 1 already has a layer 'noise'"):
        insert(model, 1, "noise", nn.ReLU())


# ---- dropout ------------------------------------------------------------------------
def test_dropout_zeroes_the_asked_share_and_keeps_the_mean():
    x = torch.ones(200, 500)
    with layer_noise(stream()):
        y = Dropout(0.3)(x)
    zeros = (y == 0).float()
    assert zeros.mean().item() == pytest.approx(0.3, abs=0.01)
    assert zeros.mean(1).std() > 0.01
    assert torch.allclose(y[y != 0], torch.tensor(1 / 0.7))
    assert y.mean().item() == pytest.approx(1, abs=0.01)


def test_whole_samples_are_kept_or_dropped_together():
    with layer_noise(stream()):
        y = Dropout(0.25, whole_samples=True)(torch.ones(4_000, 2, 3))
    assert set(y.sum((1, 2)).tolist()) == {0.0, 8.0}
    assert (y[:, 0, 0] == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_the_same_stream_replays_the_same_noise():
    x = torch.ones(50)

    def draw(seed):
        with layer_noise(stream(seed)):
            return Dropout(0.5)(x), Dropout(0.5)(x)

    assert all(torch.equal(a, b) for a, b in zip(draw(1), draw(1), strict=True))
    assert not torch.equal(draw(1)[0], draw(1)[1])
    assert not torch.equal(draw(1)[0], draw(2)[0])


def test_dropout_is_idle_in_evaluation_and_at_rate_zero_and_draws_nothing():
    x, noise = torch.randn(9), stream()
    before = noise.get_state()
    with layer_noise(noise):
        assert Dropout(0.5).eval()(x) is x
        assert Dropout(0.0)(x) is x
    assert torch.equal(noise.get_state(), before)
    assert Dropout(0.5).eval()(x) is x  # nor does it need a stream


def test_dropout_outside_a_visit_is_refused():
    with pytest.raises(RuntimeError, match="outside local training"):
        Dropout(0.5)(torch.ones(3))


def test_gradients_pass_through_what_was_kept_only():
    x = torch.ones(100, requires_grad=True)
    with layer_noise(stream()):
        y = Dropout(0.5)(x)
    y.sum().backward()
    assert torch.equal(x.grad, (y != 0) * 2.0)


def test_a_rate_of_one_drops_everything_as_torch_does():
    with layer_noise(stream()):
        y = own_noise(nn.Sequential(nn.Dropout(1.0)))(torch.ones(5))
    assert torch.equal(y, torch.zeros(5))


# ---- noise of other people's layers -------------------------------------------------
def draws_globally(model: nn.Module, x: torch.Tensor) -> bool:
    """Whether a training pass moves PyTorch's global generator."""
    before = torch.get_rng_state()
    with layer_noise(stream()):
        model.train()(x)
    return not torch.equal(before, torch.get_rng_state())


def kinds(model: nn.Module) -> list[str]:
    return [f"{type(m).__module__}.{type(m).__name__}" for m in model.modules()]


def test_torch_dropout_is_replaced_by_type_at_any_depth():
    model = nn.Sequential(
        nn.Dropout(0.4), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.9))
    )
    assert draws_globally(model, torch.ones(2, 3))
    assert own_noise(model) is model
    assert not draws_globally(model, torch.ones(2, 3))
    replaced = [m for m in model.modules() if isinstance(m, Dropout)]
    assert [(m.p, m.whole_samples) for m in replaced] == [(0.4, False), (0.9, False)]
    assert not any(isinstance(m, nn.Dropout) for m in model.modules())


def test_a_replaced_layer_is_in_the_mode_of_the_one_before():
    model = own_noise(nn.Sequential(nn.Dropout(0.5).eval(), nn.Dropout(0.5)))
    assert [layer.training for layer in model] == [False, True]


def test_a_dropout_that_is_used_in_two_places_is_replaced_in_both():
    shared = nn.Dropout(0.5)
    model = own_noise(nn.Sequential(shared, nn.Linear(3, 3), shared))
    assert isinstance(model[0], Dropout)
    assert isinstance(model[2], Dropout)
    assert not draws_globally(model, torch.ones(2, 3))


def test_a_layer_that_is_only_named_dropout_stays():
    model = nn.ModuleDict({"dropout": nn.Linear(2, 2), "drop_path": nn.Identity()})
    before = kinds(model)
    assert kinds(own_noise(model)) == before


def test_weights_and_names_of_the_state_stay():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = own_noise(model).state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def quiet(make, *args, **settings) -> nn.Module:
    """A layer that warns when it is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*args, **settings)


class Calls(nn.Module):
    """A model whose only layer is called in its own way."""

    def __init__(self, layer, call=lambda layer, x: layer(x)):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x)


NOISY = {
    "MultiheadAttention": (lambda p: nn.MultiheadAttention(4, 2, dropout=p), (3, 2, 4)),
    "LSTM": (lambda p: nn.LSTM(3, 3, num_layers=2, dropout=p), (2, 3)),
    "a function": (lambda p: Calls(None, lambda _, x: F.dropout(x, p)), (2, 3)),
}


def noisy(kind: str, rate: float) -> tuple[nn.Module, torch.Tensor]:
    make, shape = NOISY[kind]
    layer = quiet(make, rate)
    if isinstance(layer, nn.MultiheadAttention):
        return Calls(layer, lambda layer, x: layer(x, x, x)), torch.ones(shape)
    return Calls(layer), torch.ones(shape)


@pytest.mark.parametrize("kind", NOISY)
def test_an_active_noise_layer_without_replacement_is_refused(kind):
    model, example = noisy(kind, 0.5)
    with pytest.raises(ValueError, match=r"'layer' .*draws from PyTorch's global"):
        rehearsed(own_noise(model), example)


@pytest.mark.parametrize("kind", NOISY)
def test_the_same_layer_at_rate_zero_passes(kind):
    model, example = noisy(kind, 0.0)
    rehearsed(own_noise(model), example)


def test_layers_that_always_draw_are_refused():
    for layer in (nn.RReLU(), nn.FractionalMaxPool2d(2, output_size=4)):
        with pytest.raises(ValueError, match="probability to 0"):
            rehearsed(own_noise(Calls(layer)), -torch.ones(2, 3, 8, 8))


def test_a_subclass_of_dropout_is_not_mistaken_for_it():
    class Louder(nn.Dropout):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(ValueError, match="Louder"):
        rehearsed(own_noise(Calls(Louder(0.5))), torch.ones(2, 3))


def test_looking_for_noise_leaves_model_and_generator_alone():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rehearsed(own_noise(model), torch.randn(4, 3, generator=stream()))
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
    assert model[0].training and not model[0]._forward_hooks
    assert torch.equal(state, torch.get_rng_state())


# ---- timm's and torchvision's layers ------------------------------------------------
@pytest.fixture(scope="module")
def timm_layers():
    from timm import layers

    return layers


@pytest.mark.slow  # importing torchvision and timm takes seconds
def test_timms_drop_path_becomes_dropout_of_whole_samples(timm_layers):
    model = nn.Sequential(timm_layers.DropPath(0.4), timm_layers.DropPath(0.0))
    assert draws_globally(model, torch.ones(6, 3))
    own_noise(model)
    assert not draws_globally(model, torch.ones(6, 3))
    assert [(layer.p, layer.whole_samples) for layer in model] == [
        (0.4, True),
        (0, True),
    ]
    with layer_noise(stream()):
        rows = model(torch.ones(2_000, 3))
    assert set(rows.sum(1).round(decimals=4).tolist()) == {0.0, 5.0}


FOREIGN = {
    # A fused attention reads only the rate of its dropout and draws by itself.
    "fused attention": (
        lambda timm, tv, p: timm.Attention(8, 2, attn_drop=p),
        (2, 4, 8),
    ),
    "PatchDropout": (lambda timm, tv, p: timm.PatchDropout(p), (2, 4, 8)),
    "DropBlock2d": (lambda timm, tv, p: timm.DropBlock2d(p), (2, 4, 16, 16)),
    # In torchvision's Swin, ConvNeXt and EfficientNet.
    "StochasticDepth": (
        lambda timm, tv, p: tv.ops.StochasticDepth(p, "row"),
        (2, 4, 8),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_other_noise_of_timm_and_torchvision_is_refused(timm_layers, kind):
    make, shape = FOREIGN[kind]
    import torchvision

    layer = make(timm_layers, torchvision, 0.5)
    assert draws_globally(layer, torch.ones(shape))
    with pytest.raises(ValueError, match="draws from PyTorch's global"):
        rehearsed(own_noise(nn.Sequential(layer)), torch.ones(shape))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_the_same_layers_at_rate_zero_draw_nothing(timm_layers, kind):
    make, shape = FOREIGN[kind]
    import torchvision

    model = own_noise(nn.Sequential(make(timm_layers, torchvision, 0.0)))
    assert not draws_globally(model, torch.ones(shape))


@pytest.mark.slow
def test_a_drop_path_that_does_not_rescale_is_refused(timm_layers):
    model = own_noise(nn.Sequential(timm_layers.DropPath(0.5, scale_by_keep=False)))
    with pytest.raises(ValueError, match="DropPath"):
        rehearsed(model, torch.ones(50, 1))


@pytest.mark.slow
def test_a_vision_transformer_as_timm_makes_it_is_served(timm_layers):
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 8, "patch_size": 4, "embed_dim": 8, "depth": 2, "num_heads": 2}
    model = own_noise(VisionTransformer(**shape, num_classes=3, drop_path_rate=0.5))
    paths = [m.p for m in model.modules() if isinstance(m, Dropout) and m.whole_samples]
    assert max(paths) == pytest.approx(0.5)
    assert not draws_globally(model, torch.ones(2, 3, 8, 8))
