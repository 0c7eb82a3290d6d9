"""The layer that shifts features: its formulas, the authors' numbers, its edges."""

import pytest
import torch

from fedlab_support.core.rng import layer_noise
from fedlab_support.models.layers.augmentation import (
    EPSILON,
    FUSIONS,
    FeatureAugmentation,
    modulation,
)
from tests.support.methods.test_reference import FLOAT32, case, vectors

ACTIVE = ("default_buffers", "nonuniform_server_var", "constant_channels_B2")


def a_layer(channels=5, p=1.0, seed=0, **settings) -> FeatureAugmentation:
    """A layer in training whose buffers are not those it begins with."""
    layer = FeatureAugmentation(channels, p, **settings)
    stream = torch.Generator().manual_seed(seed)
    layer.moments.copy_(torch.rand(2, channels, generator=stream) + 0.2)
    layer.variances.copy_(torch.rand(2, channels, generator=stream))
    return layer


def features(*shape, seed=0, kind=torch.float32) -> torch.Tensor:
    """Features whose channels have different means, none of them 0."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=stream, dtype=torch.float64)
    return (x + torch.arange(1, shape[1] + 1).view(1, -1, 1, 1)).to(kind)


def passed(layer, x, seed=0) -> torch.Tensor:
    with layer_noise(torch.Generator().manual_seed(seed)):
        return layer(x)


# ---- the authors' numbers -----------------------------------------------------------
@pytest.mark.parametrize(
    "name", [*ACTIVE, "active_u_equal_p", "inactive_u_above_p", "eval_mode"]
)
def test_the_layer_gives_the_numbers_of_the_official_code(name, monkeypatch):
    given = case("fedfa_ffa_layer", name)
    x = given["x"].requires_grad_()
    noise = torch.stack([given["eps_mu"], given["eps_sigma"]])
    layer = FeatureAugmentation(x.shape[1]).train(bool(given["training"]))
    for buffer, key in (("moments", "ema"), ("variances", "srvvar")):
        pair = [given[f"{key}_{what}_before"] for what in ("mu", "sigma")]
        getattr(layer, buffer).copy_(torch.stack(pair))
    monkeypatch.setattr(torch, "rand", lambda *_, **__: given["u"])
    monkeypatch.setattr(torch, "randn", lambda *_, **__: noise)
    y = passed(layer, x)
    (gradient,) = torch.autograd.grad(y, x, given["cotangent"])
    after = torch.stack([given["ema_mu_after"], given["ema_sigma_after"]])
    torch.testing.assert_close(layer.moments, after, **FLOAT32)
    torch.testing.assert_close(y, given["y"], **FLOAT32)
    torch.testing.assert_close(gradient, given["grad_x"], rtol=1e-3, atol=1e-4)
    if "mu" in given:
        assert (y - x).abs().max() > 0.1
        scale = layer._scale(torch.stack([given["mu"], given["sigma"]])).squeeze(1)
        expected = torch.stack([given["Sigmahat_mu"], given["Sigmahat_sigma"]])
        torch.testing.assert_close(scale, expected, **FLOAT32)
    else:
        assert y is x


def test_our_constants_are_theirs():
    given, layer = vectors("fedfa_ffa_layer"), FeatureAugmentation(1)
    assert (layer.p, layer.alpha, EPSILON) == (given["p"], given["alpha"], given["eps"])


@pytest.mark.parametrize(
    "name", ["ones", "zeros", "mixed", "uniform_small", "random64"]
)
def test_gamma_is_that_of_the_official_code(name):
    given = case("fedfa_gamma", name)
    gamma = modulation(given["var"].double())
    torch.testing.assert_close(gamma, given["gamma"], rtol=1e-5, atol=1e-9)


# ---- gamma --------------------------------------------------------------------------
def test_gamma_sums_to_the_number_of_channels_and_orders_them():
    v = torch.tensor([0.3, 0.0, 2.0, 1e-4, 50.0])
    gamma = modulation(v)
    assert gamma.sum().item() == pytest.approx(5, rel=1e-6)
    assert torch.equal(gamma.argsort(), v.argsort())
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(modulation(v[order]), gamma[order])
    for equal in (torch.zeros(4), torch.full((4,), 7.0), torch.full((4,), 1e-9)):
        torch.testing.assert_close(modulation(equal), torch.ones(4))
    both = modulation(torch.stack([v, v.flip(0)]))
    torch.testing.assert_close(both, torch.stack([gamma, gamma.flip(0)]))


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_scales_the_noise_by_its_own_rule(fusion):
    layer, x = a_layer(fusion=fusion), features(6, 5, 4, 3)
    own = torch.stack([x.mean((2, 3)), (x.var((2, 3)) + EPSILON).sqrt()])
    rules = {
        "adaptive": modulation(layer.variances) + 1,
        "direct": layer.variances + 1,
        "client": torch.ones(2, 5),
    }
    if fusion == "random":
        expected = torch.full((2, 5), 0.5)
    else:
        expected = (rules[fusion] * (own.var(1) + EPSILON)).sqrt()
    noise = torch.zeros(2, 6, 5)
    noise[:, 0] = 1.0
    y = layer.perturb(x, noise)
    shift = (y[0].mean((1, 2)) - own[0, 0]).detach()
    torch.testing.assert_close(shift, expected[0], rtol=1e-4, atol=1e-5)
    deviation = y[0].std((1, 2)) - x[0].std((1, 2))
    torch.testing.assert_close(deviation, expected[1], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(y[1:], x[1:], rtol=1e-5, atol=1e-5)


# ---- what it does to features -------------------------------------------------------
def test_without_noise_features_stay_as_they_are():
    x = features(6, 5, 7, 4)
    y = a_layer().perturb(x, torch.zeros(2, 6, 5))
    torch.testing.assert_close(y, x, rtol=1e-6, atol=1e-6)


def test_means_and_deviations_become_those_that_were_drawn():
    layer, x = a_layer().double(), features(6, 5, 7, 4, kind=torch.float64)
    noise = 3 * features(2, 6, 5, 1, seed=1, kind=torch.float64)[..., 0] - 9
    own = torch.stack([x.mean((2, 3)), (x.var((2, 3)) + EPSILON).sqrt()])
    mean, deviation = own + noise * layer._scale(own)
    assert (deviation < 0).any(), "not clamped, as in the paper"
    y = layer.perturb(x, noise)
    torch.testing.assert_close(y.mean((2, 3)), mean)
    expected = deviation.abs() * (1 - EPSILON / own[1].square()).sqrt()
    torch.testing.assert_close(y.std((2, 3)), expected)


def test_moments_follow_the_batches_before_the_noise():
    x, layer = features(4, 5, 3, 3), a_layer(alpha=0.9)
    own = torch.stack([x.mean((0, 2, 3)), (x.var((2, 3)) + EPSILON).sqrt().mean(0)])
    expected = 0.9 * layer.moments + 0.1 * own
    passed(layer, x)
    torch.testing.assert_close(layer.moments, expected)
    last = a_layer(alpha=0.0)
    passed(last, features(4, 5, 3, 3, seed=3))
    passed(last, x)
    torch.testing.assert_close(last.moments, own)
    last.forget()
    assert last.moments.tolist() == [[0] * 5, [1] * 5]


def test_gradients_flow_through_the_noise_and_all_statistics():
    layer, x = a_layer(3).double(), features(3, 3, 2, 2, kind=torch.float64)
    noise = features(2, 3, 3, 1, seed=2, kind=torch.float64)[..., 0]
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer.perturb(x, noise), x)
    shift = layer.perturb(x, noise).mean((2, 3)) - x.mean((2, 3))
    (gradient,) = torch.autograd.grad(shift[0, 0], x)
    assert gradient[1:, 0].abs().max() > 1e-3, "through the batch's variance"
    assert gradient[:, 1:].abs().max() == 0, "not from channel to channel"


def test_one_draw_holds_for_a_sample_and_equal_seeds_give_equal_noise():
    layer, x = a_layer(), features(1, 5, 4, 4).expand(4, -1, -1, -1).contiguous()
    a, b, c = (passed(layer, x + 0, seed) for seed in (0, 0, 1))
    assert torch.equal(a, b) and not torch.equal(a, c)
    assert not torch.equal(a[0], a[1]), "each picture has its own noise"


def test_p_says_how_often_a_batch_is_changed():
    layer, x = a_layer(p=0.3), features(2, 5, 2, 2)
    with layer_noise(torch.Generator().manual_seed(0)):
        changed = [layer(x) is not x for _ in range(400)]
    assert sum(changed) / 400 == pytest.approx(0.3, abs=0.05)
    always = a_layer(p=1.0)
    assert all(passed(always, x, seed) is not x for seed in range(20))


# ---- edges --------------------------------------------------------------------------
def test_in_evaluation_the_output_is_the_input_and_nothing_changes():
    layer, x = a_layer().eval(), features(4, 5, 3, 3)
    before = layer.moments.clone()
    assert layer(x) is x, "and it asks for no noise"
    assert torch.equal(layer.moments, before)


def test_at_p_0_no_number_is_drawn():
    layer, x = a_layer(p=0.0), features(4, 5, 3, 3)
    before = layer.moments.clone()
    assert layer(x) is x, "outside of any stream"
    assert torch.equal(layer.moments, before)


@pytest.mark.parametrize("shape", [(1, 5, 3, 3), (4, 5, 1, 1), (1, 5, 1, 1)])
def test_one_picture_or_one_pixel_has_no_variance(shape):
    layer, x = a_layer(), features(*shape)
    before = layer.moments.clone()
    assert passed(layer, x) is x
    assert torch.equal(layer.moments, before)


@pytest.mark.parametrize("value", [0.0, 1.25, -300.0])
@pytest.mark.parametrize("fusion", FUSIONS)
def test_a_constant_channel_gives_finite_numbers_and_gradients(value, fusion):
    x = torch.full((3, 2, 4, 4), value)
    x[:, 1] = features(3, 1, 4, 4)[:, 0]
    x.requires_grad_()
    y = passed(a_layer(2, fusion=fusion), x)
    y.square().sum().backward()
    assert y.isfinite().all() and x.grad.isfinite().all()


def test_memory_format_and_type_are_kept():
    x = features(4, 5, 3, 2)
    last = x.to(memory_format=torch.channels_last)
    y = passed(a_layer(), last)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y, passed(a_layer(), x))
    coarse = passed(a_layer(), x.bfloat16())
    assert coarse.dtype == torch.bfloat16
    torch.testing.assert_close(coarse.float(), y, rtol=0.05, atol=0.1)
    fine = passed(a_layer(), x.double())
    torch.testing.assert_close(fine, y.double(), rtol=1e-5, atol=1e-5)


def test_variances_stay_out_of_the_state_and_moments_do_not():
    assert list(a_layer().state_dict()) == ["moments"]
    assert "p=1.0" in repr(a_layer()) and "'adaptive'" in repr(a_layer())


@pytest.mark.parametrize(
    "settings", [{"p": -0.1}, {"p": 1.1}, {"alpha": 2}, {"fusion": "mixed"}]
)
def test_impossible_layers_are_refused(settings):
    with pytest.raises(ValueError, match=r"must be (in 0…1|one of).*found"):
        FeatureAugmentation(3, **settings)
