"""Soft histograms and their divergence: limits, symmetries, others' numbers."""

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support.models.layers import histogram
from fedlab_support.models.layers.histogram import (
    FeatureHistogram,
    expect_shares,
    extent,
    soft_bins,
    soft_histogram,
    symmetric_kl,
)
from tests.support.methods.test_reference import FLOAT32, FLOAT64, case, vectors

HISTOGRAMS = sorted(
    {key.split("__")[0] for key in vectors("soft_histogram") if key[:5] == "paper"}
)
DIVERGENCES = ("dense_L8", "sparse_L8", "onehot_vs_shifted_L8", "identical_L24")


def values(channels=3, num=500, seed=0) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    z = torch.randn(channels, num, generator=stream, dtype=torch.float64)
    return z * torch.arange(1, channels + 1)[:, None] + 4


# ---- others' numbers ----------------------------------------------------------------
@pytest.mark.parametrize("name", HISTOGRAMS)
def test_the_histogram_is_that_of_the_code_it_was_taken_from(name):
    given = case("soft_histogram", name)
    z, span = given["z"].requires_grad_(), given["zmax"] - given["zmin"]
    bins, temperature = int(given["L"]), float(given["tau"])
    between = torch.stack([given["zmin"], given["zmax"]])
    pi = soft_histogram(z, between, bins, temperature)
    torch.testing.assert_close(pi.detach(), given["pi"], **FLOAT64)
    (gradient,) = torch.autograd.grad(pi, z, given["cotangent"])
    expected = given["grad_zhat"] / span[:, None]
    torch.testing.assert_close(gradient, expected, **FLOAT64)
    single = soft_histogram(z.detach().float(), between.float(), bins, temperature)
    torch.testing.assert_close(single, given["pi"].float(), **FLOAT32)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_divergence_is_that_of_the_code_it_was_taken_from(name):
    given = case("symmetric_kl", name)
    p, q = given["pi_batch"].requires_grad_(), given["pi_global"]
    divergence = symmetric_kl(p / p.sum(1, keepdim=True), q)  # as there
    expected = given["sym_kl_nats_half_per_channel"]
    torch.testing.assert_close(divergence.detach(), expected, **FLOAT64)
    (gradient,) = torch.autograd.grad(divergence.mean(), p)
    expected = given["grad_pi_batch_of_channel_mean"]
    torch.testing.assert_close(gradient, expected, **FLOAT64)
    both = given["bufr_KL_batch_given_global_logL_units"]
    both = both + given["bufr_KL_global_given_batch_logL_units"]
    for in_log_l in (given["bufr_PSI_logL_units"], both):
        expected = in_log_l * np.log(int(given["L"])) / 2
        torch.testing.assert_close(divergence.detach(), expected, rtol=1e-6, atol=1e-6)


# ---- histograms ---------------------------------------------------------------------
@pytest.mark.parametrize("bins", [2, 3, 8, 64])
def test_shares_are_not_negative_and_sum_to_one(bins):
    z = values().float()
    for between in (extent(z), extent(z[:, :10]), torch.stack([z[:, 0], z[:, 1] + 9])):
        pi = soft_histogram(z, between, bins)
        assert pi.shape == (3, bins) and (pi >= 0).all()
        torch.testing.assert_close(pi.sum(1), torch.ones(3), rtol=0, atol=1e-6)


@pytest.mark.parametrize("bins", [3, 8, 24])
def test_a_cold_histogram_counts(bins):
    scaled = torch.rand(4, 2000, generator=torch.Generator().manual_seed(1)).double()
    between = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, 4)
    pi = soft_histogram(scaled, between, bins, 1e-7)
    edges = np.linspace(0, 1, bins - 1)
    for share, row in zip(pi, scaled, strict=True):
        counts = np.histogram(row, edges)[0] / 2000
        np.testing.assert_allclose(share[1:-1], counts, atol=1e-4)
        assert share[0] < 1e-4 and share[-1] < 1e-4, "nothing lies outside"


def test_two_bins_are_cut_in_the_middle():
    z = torch.tensor([[0.0, 0.2, 0.4, 0.6, 1.0]])
    pi = soft_histogram(z, extent(z), 2, 1e-3)
    torch.testing.assert_close(pi, torch.tensor([[0.6, 0.4]]))
    z = torch.tensor([[0.0, 0.5, 1.0]])
    torch.testing.assert_close(soft_histogram(z, extent(z), 2), torch.full((1, 2), 0.5))


def test_zeros_of_a_relu_are_shared_by_the_first_two_bins():
    z = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    pi = soft_histogram(z, extent(z), 8)[0]
    torch.testing.assert_close(pi[:2], torch.full((2,), 3 / 8))
    torch.testing.assert_close(pi[-2:], torch.full((2,), 1 / 8))


def test_what_lies_outside_the_range_falls_into_the_outermost_bins():
    z = torch.tensor([[-5.0, -1.0, 0.5, 7.0]])
    pi = soft_histogram(z, torch.tensor([[0.0], [1.0]]), 4)[0]
    torch.testing.assert_close(pi, torch.tensor([0.5, 0.125, 0.125, 0.25]))


def test_stretching_shifting_and_shuffling_change_nothing_and_mirroring_mirrors():
    z = values()
    pi = soft_histogram(z, extent(z))
    for other in (3.7 * z - 20, z[:, torch.randperm(500)]):
        torch.testing.assert_close(soft_histogram(other, extent(other)), pi)
    torch.testing.assert_close(soft_histogram(-z, extent(-z)), pi.flip(1))
    assert not torch.allclose(pi, pi.flip(1), atol=1e-3)


def test_the_histogram_moves_values_across_the_cuts():
    """Its gradient is that of finite differences, at a temperature that shows it."""
    z = values(2, 6).requires_grad_()
    between = extent(z)
    assert torch.autograd.gradcheck(lambda z: soft_histogram(z, between, 5, 0.3), z)
    z = values().requires_grad_()
    goal = torch.full((3, 8), 1 / 8, dtype=torch.float64)

    def divergence(z):
        return symmetric_kl(soft_histogram(z, extent(values()), 8, 0.05), goal).mean()

    (gradient,) = torch.autograd.grad(divergence(z), z)
    assert divergence(z - 100 * gradient) < divergence(z)


def test_no_gradient_flows_into_the_range():
    z = values().requires_grad_()
    assert not extent(z).requires_grad
    assert torch.equal(extent(z)[0], z.detach().amin(1))


@pytest.mark.parametrize("between", [None, torch.tensor([[3.0], [3.0]])])
def test_a_constant_channel_gives_finite_numbers_and_gradients(between):
    z = torch.full((1, 9), 3.0) if between is None else torch.randn(1, 9) + 3
    z.requires_grad_()
    pi = soft_histogram(z, extent(z) if between is None else between)
    torch.testing.assert_close(pi[0, :2], torch.full((2,), 0.5))
    divergence = symmetric_kl(pi, torch.full((1, 8), 1 / 8)).mean()
    (gradient,) = torch.autograd.grad(divergence, z)
    assert divergence.isfinite() and (gradient == 0).all()


def test_far_values_do_not_overflow():
    z = torch.tensor([[-1e6, 0.0, 1.0, 1e6]], requires_grad=True)
    pi = soft_histogram(z, torch.tensor([[0.0], [1.0]]), 128, 1e-3)
    (gradient,) = torch.autograd.grad(pi[0, 3], z)
    assert pi.isfinite().all() and gradient.isfinite().all()


def test_pieces_of_channels_give_the_same_bits(monkeypatch):
    z = values(7).float()
    whole = soft_histogram(z, extent(z))
    monkeypatch.setattr(histogram, "MOST_VALUES", 2 * 8 * 500)
    assert torch.equal(soft_histogram(z, extent(z)), whole)
    monkeypatch.setattr(histogram, "MOST_VALUES", 1)
    assert torch.equal(soft_histogram(z, extent(z)), whole)


def test_one_bin_is_no_histogram():
    with pytest.raises(ValueError, match="at least 2 bins, found 1"):
        soft_bins(values(), 1, 0.01)


# ---- divergence ---------------------------------------------------------------------
def test_the_divergence_is_symmetric_and_0_only_between_equals():
    p, q = ((values(4, 8, seed) / 4).softmax(1) for seed in (0, 1))
    assert (symmetric_kl(p, q) > 0).all()
    torch.testing.assert_close(symmetric_kl(p, q), symmetric_kl(q, p))
    assert (symmetric_kl(p, p) == 0).all()
    slow = ((p / q).log() * p).sum(1) / 2 + ((q / p).log() * q).sum(1) / 2
    torch.testing.assert_close(symmetric_kl(p, q), slow, rtol=1e-5, atol=1e-6)


# ---- the layer ----------------------------------------------------------------------
def test_the_layer_hands_on_what_it_gets_and_keeps_nothing():
    layer, x = FeatureHistogram(), torch.randn(4, 3, 2, 5, requires_grad=True)
    network = nn.Sequential(nn.Identity(), layer)
    with layer.listening() as recorded:
        assert network(x) is x and network(2 * x) is not x
    assert len(recorded) == 2 and recorded[0] is x
    assert network(x) is x and len(recorded) == 2, "nobody listens any more"
    assert not layer.state_dict() and layer._recorded is None


def test_values_are_taken_from_all_pictures_and_pixels():
    x = torch.randn(4, 3, 2, 5).to(memory_format=torch.channels_last)
    z = FeatureHistogram().values([x, x[:1] + 1])
    assert z.shape == (3, 50)
    torch.testing.assert_close(z[1, :40].sort().values, x[:, 1].flatten().sort().values)
    torch.testing.assert_close(z[2, 40:], x[0, 2].flatten() + 1)
    pooled = FeatureHistogram(pool=True).values([x, x[:1]])
    torch.testing.assert_close(pooled[:, :4], x.mean((2, 3)).T)
    assert pooled.shape == (3, 5)


@pytest.mark.parametrize(
    "pi",
    [
        torch.full((3, 7), 1 / 7),
        torch.full((8,), 1 / 8),
        torch.full((3, 8), 1 / 7),
        torch.full((3, 8), float("nan")),
        torch.tensor([[1.5, -0.5, 0, 0, 0, 0, 0, 0]]),
    ],
)
def test_what_is_no_histogram_is_refused(pi):
    with pytest.raises(ValueError, match="must hold 8 shares ≥ 0 that sum to 1"):
        expect_shares(pi, 8)
    expect_shares(torch.full((3, 8), 1 / 8), 8)
