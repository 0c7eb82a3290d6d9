"""Pairs of a batch, and the layers that mix features, styles and moments by them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support.models.layers.mixing import (
    FeatureMixing,
    MomentExchange,
    Pairs,
    StyleMixing,
)
from tests.support.methods.test_reference import FLOAT32, case, vectors

pytestmark = pytest.mark.usefixtures("one_thread")

GRADIENT = {"rtol": 1e-3, "atol": 1e-4}


def features(shape=(6, 4, 5, 3), seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    """Every sample and channel with its own mean and deviation; some are negative."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=stream, dtype=dtype)
    scale = torch.linspace(0.5, 3, shape[0], dtype=dtype).view(-1, 1, 1, 1)
    shift = torch.linspace(-2, 2, shape[1], dtype=dtype).view(1, -1, 1, 1)
    return (x * scale + shift * scale.flip(0)).requires_grad_()


ORDER = torch.tensor([3, 0, 5, 1, 2, 4])


def the_pairs(share=0.3, order=ORDER) -> Pairs:
    return Pairs(order, torch.as_tensor(share).expand(len(order)))


def paired(layer: nn.Module, pairs: Pairs) -> nn.Module:
    layer.pairs = pairs
    return layer.train()


# ---- pairs --------------------------------------------------------------------------
def test_pairs_mix_as_a_slow_loop_does():
    x, shares = features().detach(), torch.linspace(0, 1, 6)
    mixed = Pairs(ORDER, shares).mix(x)
    for i, j in enumerate(ORDER):
        expected = shares[i] * x[i] + (1 - shares[i]) * x[j]
        torch.testing.assert_close(mixed[i], expected, rtol=0, atol=0)


def test_a_share_of_1_keeps_and_of_0_gives_the_partner_bit_for_bit():
    x = features().detach()
    assert torch.equal(the_pairs(1.0).mix(x), x)
    assert torch.equal(the_pairs(0.0).mix(x), x[ORDER])
    assert not torch.equal(the_pairs(0.999).mix(x), x)


def test_the_mean_of_the_batch_stays():
    x = features().detach()
    for share in (0.0, 0.3, 0.9):
        torch.testing.assert_close(the_pairs(share).mix(x).mean(0), x.mean(0))


def test_the_other_share_of_the_inverse_permutation_gives_the_same_blends():
    x = features(dtype=torch.float64).detach()
    forth = Pairs(ORDER, torch.full((6,), 0.3, dtype=torch.float64))
    back = Pairs(ORDER.argsort(), 1 - forth.share)
    assert not torch.allclose(forth.mix(x), back.mix(x))
    sums = [pairs.mix(x).flatten(1).sum(1).sort().values for pairs in (forth, back)]
    torch.testing.assert_close(*sums)


def test_another_number_of_samples_than_pairs_is_refused():
    pairs = Pairs(ORDER, torch.linspace(0, 1, 6))
    with pytest.raises(ValueError, match=r"batch of 6 samples.*found 7 samples"):
        pairs.mix(torch.zeros(7, 2))


def test_drawn_pairs_are_a_permutation_with_one_share_or_one_each():
    pairs = Pairs.draw(torch.zeros(50, 3), 0.25, np.random.default_rng(0))
    assert torch.equal(pairs.order.sort().values, torch.arange(50))
    assert set(pairs.share.tolist()) == {0.25}
    shares = np.linspace(0, 1, 50)
    each = Pairs.draw(torch.zeros(50, 3), shares, np.random.default_rng(0)).share
    np.testing.assert_allclose(each, shares, rtol=1e-6)


def test_memory_layout_and_type_of_pictures_stay():
    x = features().detach().to(memory_format=torch.channels_last)
    mixed = the_pairs().mix(x)
    assert mixed.is_contiguous(memory_format=torch.channels_last)
    assert the_pairs().mix(x.bfloat16()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"found torch\.int64, as of tokens"):
        the_pairs().mix(x.long())


# ---- MixStyle -----------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["random", "crossdomain"])
def test_mixed_styles_are_those_of_the_official_code(mode):
    given = case("mixstyle", mode)
    x = given["x"].requires_grad_()
    y = paired(StyleMixing(), Pairs(given["perm"], given["lambda"]))(x)
    np.testing.assert_allclose(y.detach(), given["y"], **FLOAT32)
    (gradient,) = torch.autograd.grad((given["cotangent"] * y).sum(), x)
    np.testing.assert_allclose(gradient, given["grad_x"], **GRADIENT)


def spatial(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.mean((2, 3)), x.std((2, 3))


@pytest.mark.parametrize("pairs", [the_pairs(1.0), the_pairs(0.3, torch.arange(6))])
def test_a_picture_with_its_own_style_is_itself(pairs):
    x = features()
    y = paired(StyleMixing(), pairs)(x)
    torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-5)


def test_at_share_0_the_style_is_the_partners():
    x = features(dtype=torch.float64)
    mean, std = spatial(paired(StyleMixing(), the_pairs(0.0))(x))
    own_mean, own_std = spatial(x)
    sigma = (own_std.square() + 1e-6).sqrt()
    expected = sigma[ORDER] * (1 - 1e-6 / sigma.square()).sqrt()
    torch.testing.assert_close(mean, own_mean[ORDER])
    torch.testing.assert_close(std, expected)


def test_the_content_is_kept():
    x = features()
    y = paired(StyleMixing(), the_pairs(torch.linspace(0, 1, 6)))(x)
    normal = [F.instance_norm(values) for values in (x, y)]
    torch.testing.assert_close(*normal, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(x, y, atol=0.1)


def test_no_gradient_reaches_the_partner_and_the_own_is_a_scaling():
    x = features()
    y = paired(StyleMixing(), the_pairs(0.3))(x)
    (gradient,) = torch.autograd.grad(y[0].sum(), x)
    assert (gradient[1:] == 0).all()
    std = (spatial(x)[1].square() + 1e-6).sqrt().detach()
    scale = (0.3 * std[0] + 0.7 * std[ORDER[0]]) / std[0]
    expected = scale[:, None, None].expand(gradient[0].shape)
    torch.testing.assert_close(gradient[0], expected)


def test_constant_channels_stay_constant():
    x = torch.arange(24.0).view(6, 4, 1, 1).expand(6, 4, 5, 3)
    y = paired(StyleMixing(), the_pairs(0.3))(x)
    torch.testing.assert_close(y, 0.3 * x + 0.7 * x[ORDER])


@pytest.mark.parametrize("layer", [StyleMixing(), FeatureMixing()])
def test_layers_hand_on_the_very_features_unless_they_act(layer):
    x = features()
    assert layer.train()(x) is x, "no augmentation spoke to it"
    assert paired(layer, the_pairs()).eval()(x) is x
    assert layer.train()(x) is not x


def test_maps_of_one_position_have_no_style():
    x = features((6, 4, 1, 1))
    assert torch.equal(paired(StyleMixing(), the_pairs(0.3))(x), x)


# ---- MoEx ---------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["pono", "in", "ln"])
def test_exchanged_moments_are_those_of_the_official_code(kind):
    given = case("moex", f"{kind}_positive0")
    shared = vectors("moex")
    x = torch.from_numpy(shared["x"].copy()).requires_grad_()
    pairs = the_pairs(0.5, torch.from_numpy(shared["perm"]))
    y = paired(MomentExchange(kind), pairs)(x)
    np.testing.assert_allclose(y.detach(), given["y"], **FLOAT32)
    (gradient,) = torch.autograd.grad((given["cotangent"] * y).sum(), x)
    np.testing.assert_allclose(gradient, given["grad_x"], **GRADIENT)


def exchanged(x, order=ORDER, kind: str = "pono"):
    return paired(MomentExchange(kind), the_pairs(0.5, order))(x)


@pytest.mark.parametrize("kind", ["pono", "in", "ln"])
def test_an_exchange_with_oneself_changes_nothing(kind):
    x = features()
    torch.testing.assert_close(
        exchanged(x, torch.arange(6), kind), x, rtol=1e-5, atol=1e-5
    )


def test_each_position_has_the_partners_moments_over_channels():
    x = features(dtype=torch.float64)
    y = exchanged(x)
    sigma = (x.var(1) + 1e-5).sqrt()
    torch.testing.assert_close(y.mean(1), x.mean(1)[ORDER])
    expected = sigma[ORDER] * (1 - 1e-5 / sigma.square()).sqrt()
    torch.testing.assert_close(y.std(1), expected)


def test_the_inverse_exchange_restores_the_features():
    x = features()
    y = exchanged(exchanged(x), ORDER.argsort())
    torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-4)


def test_moments_over_positions_are_a_mixstyle_of_share_0_but_for_the_gradient():
    x = features()
    moex, mixstyle = exchanged(x, kind="in"), paired(StyleMixing(), the_pairs(0.0))(x)
    torch.testing.assert_close(moex, mixstyle, rtol=1e-4, atol=1e-4)
    gradients = [torch.autograd.grad(y[0].sum(), x)[0] for y in (moex, mixstyle)]
    assert gradients[0][ORDER[0]].abs().max() > 0.1
    assert (gradients[1][ORDER[0]] == 0).all()


def test_dead_features_give_large_but_finite_numbers():
    x = features().detach().relu()
    x[0] = 0
    x = x.requires_grad_()
    y = exchanged(x)
    (gradient,) = torch.autograd.grad(y.square().sum(), x)
    assert y.isfinite().all() and gradient.isfinite().all()
