"""The papers' networks: their contract, their sizes, their places, their weights."""

import io
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import FedAvg, Federation, LocalTraining, Run
from fedlab_support.core.messages import nbytes
from fedlab_support.core.rng import layer_noise
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.samples import Store
from fedlab_support.models import (
    CNN,
    AlexNet,
    Dropout,
    UNet,
    alexnet,
    densenet100,
    mobilenet,
    published,
    resnet18,
    resnet50,
    small_alexnet,
    small_unet,
    swin_tiny,
    tiny_vit,
    unet,
    vit_b16,
)
from fedlab_support.models.layers.noise import own_noise, rehearsed
from fedlab_support.models.pretrained import UNITS, Units
from fedlab_support.models.stages import NORMS, Staged, insert
from tests.paths import shared
from tests.support.methods.test_contract import same
from tests.support.models.test_models import num_parameters
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")

SLOW = pytest.mark.slow  # importing torchvision and timm takes seconds
NARROW_UNET = partial(UNet, widths=(8, 12, 16))
QUICK = {
    "CNN": (partial(CNN, widths=(8, 12), hidden=16), (1, 9, 9)),
    "small_alexnet": (small_alexnet, (3, 64, 71)),
    "unet": (NARROW_UNET, (3, 16, 8)),
    "small_unet": (small_unet, (1, 16, 16)),
}


HEAVY = {
    "densenet": (densenet100, (3, 9, 8)),
    "densenet, 65": (densenet100, (1, 65, 40)),
    "resnet18": (resnet18, (3, 32, 32)),
    "resnet50": (resnet50, (1, 72, 72)),
    "mobilenet": (mobilenet, (3, 72, 66)),
    "mobilenet, 32": (mobilenet, (1, 32, 32)),
    "swin": (partial(swin_tiny, drop_path=0.5), (3, 36, 32)),
}
NETWORKS = QUICK | HEAVY
ONLY = {"swin": "layer", "mobilenet": "batch"}
AGAIN = {"resnet50": "group", "densenet, 65": "group"}  # other norms: of their kin
CASES = [(name, norm) for name in QUICK for norm in NORMS] + [
    pytest.param(name, norm, marks=SLOW)
    for name in HEAVY
    for norm in NORMS
    if norm == ONLY.get(name.partition(",")[0], AGAIN.get(name, norm))
]
ONCE = [*QUICK, *(pytest.param(name, marks=SLOW) for name in HEAVY)]
M = 5


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(shape, num: int = 2) -> torch.Tensor:
    """As ``Store.inputs`` hands them to a network, and not centred."""
    x = 0.3 + torch.randn(num, *shape, generator=stream())
    return x.to(memory_format=torch.channels_last)


def build(name: str, norm: str | None = None) -> tuple[Staged, torch.Tensor]:
    make, shape = NETWORKS[name]
    norm = norm or ONLY.get(name.partition(",")[0], "batch")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make(shape, M, norm=norm), pictures(shape)


def handed_on(model: Staged, x: torch.Tensor) -> list[torch.Tensor]:
    """What each stage hands on, in order; the model gives its output as ever."""
    found = []
    hooks = [
        stage.register_forward_hook(lambda module, given, out: found.append(out))
        for stage in model.stages
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if hasattr(module, "running_mean")]


def settled(model: Staged, x: torch.Tensor) -> Staged:
    """The model in evaluation mode, with the running statistics of these images."""
    for norm in batch_norms(model):
        norm.momentum = 1.0
    with layer_noise(stream()), torch.no_grad():
        own_noise(model).train()(x)
    return model.eval()


def in_same_order(model: nn.Module, other: nn.Module) -> nn.Module:
    """``model`` with the values of ``other``, whose state has the same order."""
    mine, values = model.state_dict(), other.state_dict().values()
    model.load_state_dict(dict(zip(mine, values, strict=True)))
    return model.eval()


# ---- the contract -------------------------------------------------------------------
@pytest.mark.parametrize(("name", "norm"), CASES)
def test_the_contract_holds_the_norm_is_the_one_asked_for_and_all_is_trained(
    name, norm
):
    model, x = build(name, norm)
    assert_norms_are(norm, model, "swin" in name)
    model.eval()
    assert isinstance(model.stages, nn.Sequential | nn.ModuleList)
    assert all(isinstance(stage, nn.Sequential) for stage in model.stages)
    maps = handed_on(model, x)
    assert [value.ndim for value in maps] == [4] * len(model.stages)
    assert tuple(value.shape[1] for value in maps) == model.widths
    features, output = model.encode(x), model(x)
    assert torch.equal(output, model.head(features))
    if isinstance(model, UNet):
        assert features.shape == (2, model.head.in_channels, *x.shape[2:])
        assert output.shape == (2, M, *x.shape[2:])
    else:
        assert isinstance(model.head, nn.Linear)
        assert features.shape == (2, model.head.in_features)
        assert output.shape == (2, M)
    assert name != "CNN" or (features >= 0).all()
    rehearsed(own_noise(model), x)  # no noise is global
    with layer_noise(stream(5)):  # no branch of Swin's is dropped for both samples
        model.train()(x).square().mean().backward()
    # A bias before a norm of each channel has no effect, and a gradient near zero.
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def assert_norms_are(norm: str, model: nn.Module, is_transformer: bool) -> None:
    norms = {nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm}
    modules = list(model.modules())
    found = {kind for kind in norms if any(isinstance(m, kind) for m in modules)}
    allowed = {
        "none": set(),
        "batch": {nn.BatchNorm1d, nn.BatchNorm2d},
        "group": {nn.GroupNorm},
        "layer": {nn.LayerNorm if is_transformer else nn.GroupNorm},
    }[norm]
    assert found <= allowed
    assert bool(found) == (norm != "none")


@pytest.mark.parametrize("name", ONCE)
def test_the_memory_format_of_pictures_does_not_matter(name):
    model, x = build(name)
    plain = settled(model, x)(x.contiguous())
    assert torch.allclose(plain, model(x), rtol=1e-4, atol=1e-3)
    model.to(memory_format=torch.channels_last)
    assert torch.allclose(plain, model(x), rtol=1e-4, atol=1e-3)


class Tilt(nn.Module):
    """Scales each channel differently, so that no later norm undoes it."""

    def forward(self, x):
        return x * torch.linspace(1, 2, x.shape[1])[:, None, None]


@pytest.mark.parametrize("name", ONCE)
def test_a_layer_behind_any_stage_acts_and_an_identity_does_not(name):
    model, x = build(name)
    plain, names = settled(model, x)(x), list(model.state_dict())
    for number in range(1, len(model.stages) + 1):
        insert(model, number, "same", nn.Identity())
        assert torch.equal(model(x), plain)
        insert(model, number, "tilt", Tilt())
        assert not torch.allclose(model(x), plain, atol=1e-4)
        del model.stages[number - 1].added.tilt
    assert torch.equal(model(x), plain)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("number", [1, 2])
def test_a_layer_of_the_unet_leaves_the_skip_of_its_level_alone(number):
    model, x = build("unet")
    skips = []
    for up in model.eval().neck:
        up.register_forward_pre_hook(lambda _, given: skips.append(given[1]))
    before = handed_on(model, x)
    insert(model, number, "tilt", Tilt())
    after = handed_on(model, x)
    assert not torch.equal(before[number - 1], after[number - 1])
    plain, tilted = skips[1::-1], skips[:1:-1]  # from level 1 on
    for level in (1, 2):
        is_same = torch.equal(plain[level - 1], tilted[level - 1])
        assert is_same == (level <= number)


# ---- sizes --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "shape", "classes", "count"),
    [
        (alexnet, (3, 96, 96), 10, 12_974_154),  # 49.5 MiB, FedFA+ section 6.1
        # torchvision's AlexNet has 61,100,840 without norms
        (partial(alexnet, norm="none", hidden=4096), (3, 64, 64), 1000, 61_100_840),
        (unet, (3, 32, 32), 2, 7_763_074),  # 29.6 MiB, FedFA+ section 6.1
        pytest.param(densenet100, (3, 32, 32), 10, 769_162, marks=SLOW),  # Table 2
        pytest.param(resnet18, (3, 224, 224), 1000, 11_689_512, marks=SLOW),
        pytest.param(resnet50, (3, 224, 224), 1000, 25_557_032, marks=SLOW),
        pytest.param(swin_tiny, (3, 224, 224), 1000, 28_288_354, marks=SLOW),
        pytest.param(mobilenet, (3, 224, 224), 1000, 3_504_872, marks=SLOW),
    ],
)
def test_the_number_of_parameters_is_the_published_one(make, shape, classes, count):
    with torch.device("meta"):
        assert num_parameters(make(shape, classes)) == count


@SLOW
def test_the_places_of_densenet_are_blocks_and_transitions():
    # 24 + 16·12, half, + 16·12, half, + 16·12
    assert densenet100((3, 32, 32), 10).widths == (216, 108, 300, 150, 342)


@pytest.mark.parametrize(("size", "last"), [(63, 1), (96, 2), (256, 7)])
def test_alexnet_works_from_63_to_256_pixels(size, last):
    model = small_alexnet((1, size, size), 3).eval()
    x = pictures((1, size, size))
    assert handed_on(model, x)[-1].shape == (2, 64, last, last)
    assert model(x).shape == (2, 3)


@pytest.mark.parametrize(
    ("make", "shape", "words"),
    [
        (alexnet, (3, 62, 96), r"at least 63x63 pixels, found 62x96"),
        (densenet100, (3, 32, 3), r"at least 4x4 pixels, found 32x3"),
        (densenet100, (1, 12, 128), r"at least 16x16 pixels, found 12x128"),
        (unet, (1, 32, 40), r"multiples of 16 pixels.*halved 4 times, found 32x40"),
        (NARROW_UNET, (1, 6, 8), r"multiples of 4 pixels.*found 6x8"),
        (swin_tiny, (3, 96, 30), r"multiples of 4 pixels.*found 96x30"),
        (
            partial(swin_tiny, norm="batch"),
            (3, 96, 96),
            r"expected 'layer', found 'batch'",
        ),
        (partial(alexnet, norm="instance"), (3, 64, 64), r"found 'instance'"),
        (partial(mobilenet, norm="group"), (3, 64, 64), r"'frozen'\).*found 'group'"),
        (partial(mobilenet, units="byte"), (3, 64, 64), r"'imagenet'.*found 'byte'"),
        (partial(vit_b16, units="byte"), (3, 64, 64), r"'imagenet'.*found 'byte'"),
        (partial(tiny_vit, prompts=-1), (3, 32, 32), r"prompts must be .*≥ 0"),
    ],
)
def test_pictures_and_norms_that_do_not_fit_are_refused(make, shape, words):
    with pytest.raises(ValueError, match=words):
        make(shape, 2)


def test_the_unet_takes_pictures_of_another_fitting_size_only():
    model = NARROW_UNET((1, 16, 16), 3).eval()
    assert model(pictures((1, 8, 24))).shape == (2, 3, 8, 24)
    with pytest.raises(ValueError, match="found 8x10"):
        model(pictures((1, 8, 10)))


@SLOW
@pytest.mark.parametrize(("size", "first"), [(64, 64), (65, 17)])
def test_densenet_begins_at_full_resolution_for_small_pictures_only(size, first):
    model = densenet100((1, size, size), 3).eval()
    assert handed_on(model, pictures((1, size, size)))[0].shape[2:] == (first, first)


@SLOW
@pytest.mark.parametrize(("size", "first"), [(64, 64), (65, 17)])
def test_resnet_begins_at_full_resolution_for_small_pictures_only(size, first):
    model = resnet18((1, size, size), 3).eval()
    assert handed_on(model, pictures((1, size, size)))[0].shape[2:] == (first, first)


# ---- the same networks of others ----------------------------------------------------
@SLOW
def test_densenet_is_torchvisions():
    from torchvision.models import DenseNet

    theirs = DenseNet(12, (16, 16, 16), 24, num_classes=M).eval()
    ours, x = densenet100((3, 80, 80), M), pictures((3, 80, 80), 4)
    theirs(x + 1)
    assert torch.allclose(in_same_order(ours, theirs)(x), theirs(x), atol=1e-5)


@SLOW
def test_alexnet_without_norms_is_torchvisions():
    from torchvision.models import alexnet

    theirs = alexnet(num_classes=M).eval()
    ours = AlexNet((3, 80, 80), M, hidden=4096, norm="none")
    x = pictures((3, 80, 80))
    assert torch.allclose(in_same_order(ours, theirs)(x), theirs(x), atol=1e-5)


def test_alexnet_is_its_formula():
    model = small_alexnet((3, 256, 256), M)
    x = h = pictures((3, 256, 256), 3)  # the last map, 7x7, is averaged to 6x6
    model(x)  # statistics move
    convolutions = [(4, 2, 1), (1, 2, 1), (1, 1, 0), (1, 1, 0), (1, 1, 1)]
    kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, nn.BatchNorm1d)
    layers = [module for module in model.eval().modules() if isinstance(module, kinds)]
    pairs = list(zip(layers[:-1:2], layers[1::2], strict=True))

    def normalised(h, norm):
        return F.batch_norm(
            h, norm.running_mean, norm.running_var, norm.weight, norm.bias
        )

    for (stride, padding, pool), (layer, norm) in zip(
        convolutions, pairs[:5], strict=True
    ):
        h = F.conv2d(h, layer.weight, layer.bias, stride, padding)
        h = normalised(h, norm).relu()
        h = F.max_pool2d(h, 3, 2) if pool else h
    h = F.adaptive_avg_pool2d(h, 6).flatten(1)
    for layer, norm in pairs[5:]:
        h = normalised(F.linear(h, layer.weight, layer.bias), norm).relu()
    assert torch.allclose(model.encode(x), h, atol=1e-5)
    assert torch.allclose(model(x), F.linear(h, *model.head.parameters()), atol=1e-5)


@SLOW
@pytest.mark.parametrize("name", ["resnet18", "swin"])
def test_stages_neck_and_head_are_timms_network(name, monkeypatch):
    made, ordinary = [], published.timm_network

    def seen(*args, **settings):
        made.append(ordinary(*args, **settings))
        return made[-1]

    monkeypatch.setattr(published, "timm_network", seen)
    factory = {"resnet18": resnet18, "swin": swin_tiny}[name]
    model, x = factory((3, 72, 72), M).eval(), pictures((3, 72, 72))
    theirs = made[0].eval()
    assert torch.equal(model(x), theirs(x))
    features = theirs.forward_head(theirs.forward_features(x), pre_logits=True)
    assert torch.equal(model.encode(x), features)


# ---- in a run -----------------------------------------------------------------------
def federation(size: int, **settings) -> Federation:
    data = tiny_data(**{"num": 45, "size": size, "channels": 3, **settings})
    return Federation.build(data, by_owner(data))


TRAINING = LocalTraining(lr=0.02, batch_size=8)


def fitted(model, where: Federation, **settings) -> Run:
    run = Run(FedAvg(), where, model, TRAINING, seed=2, **settings)
    run.fit(1, progress=False)
    return run


IN_RUNS = [
    (small_alexnet, {"size": 64}),
    (partial(small_alexnet, norm="group"), {"size": 64}),
    pytest.param(
        partial(swin_tiny, drop_path=0.5),
        {"size": 8, "num": 24, "owners": 2},
        marks=SLOW,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "data"), IN_RUNS)
def test_a_network_trains_alike_with_one_and_two_workers(model, data):
    where = federation(**data)
    one, two = (fitted(model, where, workers=n) for n in (1, 2))
    assert same(one, two)
    before = Run(FedAvg(), where, model, TRAINING, seed=2).server.weights
    moved = [n for n in before if not torch.equal(before[n], one.server.weights[n])]
    assert {"head.weight", "head.bias"} <= set(moved)
    assert any(name.startswith("stages.0") for name in moved)


def test_fedavg_of_alexnet_sends_the_papers_size():
    run = Run(FedAvg(), federation(64, classes=10), alexnet)
    size = 4 * 12_974_154 + 4 * 6_400 + 8 * 7
    assert nbytes(run.server.weights) == size


@SLOW
def test_every_drop_path_of_swin_is_ours():
    model, _ = build("swin")
    names = {type(module).__name__ for module in own_noise(model).modules()}
    assert "DropPath" not in names
    rates = [m.p for m in model.modules() if isinstance(m, Dropout) and m.whole_samples]
    assert max(rates) == pytest.approx(0.5)


# ---- pretrained weights -------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """ResNet-18 and Swin-T of timm for a thousand classes, and files that hold them."""
    import timm
    from safetensors.torch import save_file

    folder, found = tmp_path_factory.mktemp("weights"), {}
    for name in ("resnet18", "swin_tiny_patch4_window7_224"):
        state = timm.create_model(name).state_dict()
        state = {key: value.contiguous() for key, value in state.items()}
        short = name.partition("_")[0]
        save_file(state, folder / f"{short}.safetensors")
        torch.save({"model": state}, folder / f"{short}.pth")
        found[short] = state
    return folder, found


@SLOW
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("classes", [1000, 6])
def test_weights_are_read_from_a_file(trained, suffix, classes):
    folder, states = trained
    state, path = states["resnet18"], folder / f"resnet18.{suffix}"
    model = resnet18((3, 32, 32), classes, weights=path)
    assert torch.equal(model.stages[0][1].weight, state["conv1.weight"])
    assert torch.equal(model.stages[4][1].bn2.weight, state["layer4.1.bn2.weight"])
    assert model.head.out_features == classes
    if classes == 1000:
        assert torch.equal(model.head.weight, state["fc.weight"])


@SLOW
def test_weights_may_have_the_classes_of_the_data(tmp_path):
    import timm

    state = timm.create_model("resnet18", num_classes=6).state_dict()
    torch.save(state, tmp_path / "mine.pth")
    model = resnet18((3, 32, 32), 6, weights=tmp_path / "mine.pth")
    assert torch.equal(model.head.weight, state["fc.weight"])
    with pytest.raises(ValueError, match=r"size mismatch for fc\.weight"):
        resnet18((3, 32, 32), 5, weights=tmp_path / "mine.pth")


@SLOW
@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's resampling
@pytest.mark.parametrize("short", ["resnet18", "swin"])
def test_weights_see_pictures_in_the_units_of_imagenet(trained, short):
    import timm

    build = {"resnet18": resnet18, "swin": partial(swin_tiny, drop_path=0.0)}[short]
    folder, states = trained
    path = folder / f"{short}.safetensors"
    name = "resnet18" if short == "resnet18" else "swin_tiny_patch4_window7_224"
    theirs = timm.create_model(name).eval()
    theirs.load_state_dict(states[short])
    side = 64 if short == "resnet18" else 224
    colours = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in UNITS["imagenet"])
    with torch.no_grad():
        expected = theirs((colours - mean) / std)
        found = build((3, side, side), 1000, weights=path).eval()(2 * colours - 1)
        assert torch.allclose(found, expected, atol=1e-4)
        grey = build((1, side, side), 1000, weights=path).eval()
        expected = theirs((colours[:, :1] - mean) / std)
        assert torch.allclose(grey(2 * colours[:, :1] - 1), expected, atol=1e-4)
    with pytest.raises(ValueError, match="1 or 3 channels, found 2"):
        build((2, side, side), 3, weights=path)


@SLOW
@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's resampling
def test_swins_windows_are_resampled_for_smaller_pictures(trained):
    folder, states = trained
    model = swin_tiny((3, 96, 96), 3, weights=folder / "swin.safetensors")
    first, third = (model.stages[k][1].blocks[0].attn for k in (1, 3))
    table = "layers.{}.blocks.0.attn.relative_position_bias_table"
    ours = first.relative_position_bias_table
    assert torch.equal(ours, states["swin"][table.format(0)])
    assert third.relative_position_bias_table.shape == (121, 12)
    assert states["swin"][table.format(2)].shape == (169, 12)
    assert model(pictures((3, 96, 96))).shape == (2, 3)


@SLOW
def test_a_name_asks_the_hub_and_no_other_network(trained, monkeypatch):
    from timm.models import _builder

    state, asked = trained[1]["resnet18"], []

    def hub(name, **settings):
        asked.append(name)
        return dict(state)

    monkeypatch.setattr(_builder, "load_state_dict_from_hf", hub)
    model = resnet18((3, 96, 96), 3, weights="resnet18.tv_in1k")
    assert asked == ["timm/resnet18.tv_in1k"]
    assert torch.equal(model.stages[0][1].weight, state["conv1.weight"])
    with pytest.raises(ValueError, match=r"resnet18\.<tag>.*found 'resnet50\.tv_in1k'"):
        resnet18((3, 96, 96), 3, weights="resnet50.tv_in1k")
    with pytest.raises(ValueError, match="Invalid pretrained tag"):
        resnet18((3, 96, 96), 3, weights="resnet18.unheard_of")


@SLOW
def test_a_hub_out_of_reach_is_reported_with_the_way_out(monkeypatch):
    from timm.models import _builder

    def hub(name, **settings):
        raise ConnectionError("no route")

    monkeypatch.setattr(_builder, "load_state_dict_from_hf", hub)
    with pytest.raises(FileNotFoundError, match=r"no route; download the .*its path"):
        resnet18((3, 96, 96), 3, weights="resnet18.tv_in1k")


class Dangerous:
    """Would run code if it were unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("was unpickled",))


@SLOW
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda s: s | {"layer5.weight": torch.ones(1)}, "Unexpected.*layer5.weight"),
        (
            lambda s: {k: s[k] for k in s if k != "conv1.weight"},
            "Missing.*conv1.weight",
        ),
        (lambda s: s | {"bn1.weight": torch.ones(63)}, "size mismatch for bn1.weight"),
        (
            lambda s: s | {"fc.weight": torch.ones(7, 512)},
            "size mismatch for fc.weight",
        ),
        (lambda s: s | {"conv1.weight": Dangerous()}, "weights_only=True blocked"),
        (lambda s: [1, 2], "no attribute"),
    ],
)
def test_a_file_of_other_weights_is_refused(trained, tmp_path, spoil, words):
    torch.save(spoil(trained[1]["resnet18"]), tmp_path / "other.pth")
    with pytest.raises(ValueError, match=f"expected weights of resnet18.*{words}"):
        resnet18((3, 96, 96), 3, weights=tmp_path / "other.pth")


@SLOW
@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize("content", [b"", b"abc", b"abcdefghijkl"])
def test_a_broken_file_is_refused(tmp_path, suffix, content):
    path = tmp_path / f"broken.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="expected weights of resnet18"):
        resnet18((3, 96, 96), 3, weights=path)


@SLOW
def test_weights_of_another_network_or_norm_are_refused(trained, tmp_path):
    folder, _ = trained
    with pytest.raises(ValueError, match="expected weights of resnet50"):
        resnet50((3, 96, 96), 3, weights=folder / "resnet18.pth")
    with pytest.raises(ValueError, match="expected weights of swin_tiny"):
        swin_tiny((3, 96, 96), 3, weights=folder / "resnet18.pth")
    with pytest.raises(ValueError, match=r"Unexpected.*running_mean"):
        resnet18((3, 96, 96), 3, norm="group", weights=folder / "resnet18.pth")
    with pytest.raises(FileNotFoundError, match=r"found nothing at .*none\.pth"):
        resnet18((3, 96, 96), 3, weights=tmp_path / "none.pth")


# ---- pretrained weights whose norms are folded --------------------------------------
@pytest.fixture
def stored(monkeypatch):
    """The folder with the stored weights, named as a reader would; or a skip."""
    folder = shared("weights")
    monkeypatch.setenv("FEDLAB_WEIGHTS", str(folder))
    return folder


def made_up(path: Path, name: str = "mobilenetv2_100") -> dict[str, torch.Tensor]:
    """A file of random weights, half precision, with moved statistics."""
    import timm
    from safetensors.torch import save_file

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = timm.create_model(name)
        state = net.state_dict()
        for key in state:
            if key.endswith("running_var"):
                state[key] = 0.5 + torch.rand_like(state[key])
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    save_file(half, path)
    return {k: v.float() for k, v in half.items() if v.is_floating_point()}


@SLOW
@pytest.mark.parametrize("classes", [1000, 6])
def test_half_precise_weights_are_read_in_the_networks_order(tmp_path, classes):
    path = tmp_path / "made_up.safetensors"
    state = made_up(path)
    model = mobilenet((3, 96, 96), classes, weights=path)
    bodies = [v for k, v in state.items() if not k.startswith("classifier")]
    ours = [v for k, v in model.state_dict().items() if not k.startswith("head")]
    ours = [value for value in ours if value.is_floating_point()]
    assert sorted(v.sum().item() for v in ours) == sorted(
        v.sum().item() for v in bodies
    )
    assert all(v.dtype == torch.float32 for v in ours)
    head = next(
        v for k, v in state.items() if k.startswith("classifier") and v.ndim > 1
    )
    assert model.head.out_features == classes
    assert torch.equal(model.head.weight, head.flatten(1)) == (classes == 1000)


@SLOW
@pytest.mark.parametrize(
    ("units", "mean", "std"),
    [("half", 0.5, 0.5), ("imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))],
)
def test_pretrained_weights_see_the_pictures_they_were_trained_on(
    tmp_path, units, mean, std
):
    import timm

    path = tmp_path / "made_up.safetensors"
    made_up(path)
    theirs = timm.create_model("mobilenetv2_100", pad_type="same").eval()
    timm.models.load_checkpoint(theirs, str(path))
    data = tiny_data(channels=3, size=40)
    store = Store(replace(data, mean=(0.5,) * 3, std=(0.5,) * 3))
    x = store.inputs(torch.tensor([0, 7]))
    colours = torch.from_numpy(data.images[[0, 7]]) / 255
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (mean, std))
    make = partial(mobilenet, weights=path, units=units)
    model = make((3, 40, 40), 1000).eval()
    expected = theirs((colours - mean) / std)
    assert torch.allclose(model(x), expected, rtol=1e-3, atol=1e-4)
    grey = make((1, 40, 40), 1000).eval()
    assert torch.allclose(grey(x[:, :1]), model(x[:, :1].expand(-1, 3, -1, -1)))
    with pytest.raises(ValueError, match="1 or 3 channels, found 2"):
        make((2, 40, 40), 5)


def test_a_run_tells_a_network_with_weights_the_units_of_its_data(tmp_path):
    path = tmp_path / "made_up.safetensors"
    made_up(path)
    shown = []
    for mean, std in ((0.5, 0.5), (0.3, 0.2)):
        data = tiny_data(24, owners=2, channels=3, size=24)
        data = replace(data, mean=(mean,) * 3, std=(std,) * 3)
        federation = Federation.build(data, by_owner(data))
        run = Run(FedAvg(), federation, partial(mobilenet, weights=path))
        x = federation.store.inputs(torch.arange(4))
        (units,) = (m for m in run.model.modules() if isinstance(m, Units))
        shown.append(units(x))
    assert torch.allclose(*shown, atol=1e-5)


def test_floats_are_taken_as_they_are(tmp_path):
    path = tmp_path / "made_up.safetensors"
    made_up(path)
    data = tiny_data(24, owners=2, channels=3, size=24)
    colours = (data.images / 255).astype(np.float32)
    federation = Federation.build(
        replace(data, images=colours, mean=None, std=None), by_owner(data)
    )
    run = Run(FedAvg(), federation, partial(mobilenet, weights=path))
    (units,) = (m for m in run.model.modules() if isinstance(m, Units))
    x = torch.from_numpy(colours[:4])
    mean, std = (v.view(1, 3, 1, 1) for v in (units.mean, units.std))
    assert torch.allclose(units(x), (x - mean) / std, atol=1e-5)


@SLOW
def test_frozen_norms_stay_as_loaded_and_do_not_travel(tmp_path):
    path = tmp_path / "made_up.safetensors"
    made_up(path)
    factory = partial(mobilenet, weights=path)
    data = tiny_data(24, owners=2, channels=3, size=24)
    run = fitted(factory, Federation.build(data, by_owner(data)))
    model = factory((3, 24, 24), data.num_classes)
    norms = {n: m for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert len(norms) == 52
    state = run.model.state_dict()
    for name, norm in norms.items():
        for key, value in norm.state_dict().items():
            assert f"{name}.{key}" not in run.server.weights
            assert torch.equal(state[f"{name}.{key}"], value)
        assert not run.model.get_submodule(name).training
    sent = {k: v for k, v in model.named_parameters() if v.requires_grad}
    assert set(run.server.weights) == set(sent)
    assert not torch.equal(state["stages.0.1.weight"], sent["stages.0.1.weight"])


@SLOW
def test_an_added_embedding_is_linear_and_the_head_reads_it():
    model = mobilenet((3, 40, 40), 3, embedding=7).eval()
    x = torch.rand(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    added = model.neck[-1]
    with torch.no_grad():
        features = model.neck[:-1](model.stages(x))
        assert torch.equal(model.encode(x), F.linear(features, *added.parameters()))
    assert (features.shape, model.encode(x).shape) == ((2, 1280), (2, 7))
    assert model(x).shape == (2, 3) and model.head.in_features == 7
    plain = mobilenet((3, 40, 40), 3).state_dict()
    assert set(model.state_dict()) - set(plain) == {"neck.3.weight", "neck.3.bias"}


@SLOW
def test_resnet50_can_have_frozen_norms_and_an_embedding():
    model = resnet50((3, 32, 32), 3, norm="frozen", embedding=7).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = model.neck[:-1](model.stages(x))
        added = model.neck[-1].parameters()
        assert torch.equal(model.encode(x), F.linear(features, *added))
    assert features.shape == (2, 2048) and model(x).shape == (2, 3)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert not any(p.requires_grad for norm in norms for p in norm.parameters())


@SLOW
def test_norms_are_frozen_with_weights_only_unless_asked_for(tmp_path):
    path = tmp_path / "made_up.safetensors"
    made_up(path)
    for settings, is_frozen in (
        ({}, False),
        ({"weights": path}, True),
        ({"weights": path, "norm": "batch"}, False),
        ({"norm": "frozen"}, True),
    ):
        model = mobilenet((3, 40, 40), 3, **settings)
        trains = [p.requires_grad for m in batch_norms(model) for p in m.parameters()]
        assert set(trains) == {not is_frozen}


@SLOW
def test_weights_that_are_absent_or_anothers_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDLAB_WEIGHTS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"nothing at none\.pth .*FEDLAB_WEI"):
        mobilenet((3, 40, 40), 3, weights="none.pth")
    made_up(tmp_path / "other.safetensors", "resnet18")
    with pytest.raises(ValueError, match=r"expected weights of .*(Missing|no attr)"):
        mobilenet((3, 40, 40), 3, weights=tmp_path / "other.safetensors")


@SLOW
def test_stored_weights_know_dogs_from_guitars(stored, shared_data):
    """Two dozen real photographs of PACS each; chance is 0.12 for dogs."""
    from PIL import Image

    file = "mobilenetv2_100.fp16.safetensors"
    model = mobilenet((3, 96, 96), 1000, weights=file).eval()
    kinds = {"dog": range(151, 269), "elephant": (101, 385, 386)}
    with zipfile.ZipFile(shared_data / "PACS.zip") as archive:
        for kind, classes in kinds.items():
            names = [n for n in archive.namelist() if f"photo/{kind}/" in n][1:25]
            opened = [Image.open(io.BytesIO(archive.read(n))) for n in names]
            pixels = [np.asarray(image.convert("RGB")) for image in opened]
            x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2) / 127.5 - 1
            with torch.no_grad():
                found = model(x).argmax(1)
            assert np.isin(found, list(classes)).mean() > 0.35
