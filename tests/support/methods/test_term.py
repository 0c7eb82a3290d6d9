"""TERM: tilted weights, from the best client only to the worst client only."""

import math

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg
from fedlab_support.core.messages import Server
from fedlab_support.methods import TERM
from tests.runs import a_run, saying, unequal

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = [0.9, 2.3, 0.4, 1.1, 1.7]
SIZES = (5, 40, 1, 12, 7)
SERVER = Server(0, {})
TILTS = [-20.0, -2.0, -0.1, 0.01, 0.1, 1.0, 10.0]


def weights(tilt, losses=LOSSES, weighting: str = "examples") -> torch.Tensor:
    return TERM(weighting, tilt=tilt).aggregation_weights(SERVER, saying(losses, SIZES))


def objective(tilt: float, losses: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """(1/t) log Σ p_k exp(t F_k); at t = 0 the mean."""
    if tilt == 0:
        return (shares * losses).sum()
    return (shares.log() + tilt * losses).logsumexp(0) / tilt


def shares_of(weighting: str) -> torch.Tensor:
    return FedAvg(weighting).aggregation_weights(SERVER, saying(LOSSES, SIZES))


@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_weights_are_those_of_the_printed_formula(tilt, weighting):
    sizes = SIZES if weighting == "examples" else [1] * 5
    terms = [n * math.exp(tilt * f) for n, f in zip(sizes, LOSSES, strict=True)]
    expected = [term / math.fsum(terms) for term in terms]
    found = weights(tilt, weighting=weighting)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.sum().item() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("tilt", TILTS)
@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_weights_are_the_gradient_of_the_tilted_loss(tilt, weighting):
    losses = torch.tensor(LOSSES, dtype=torch.float64, requires_grad=True)
    value = objective(tilt, losses, shares_of(weighting))
    (slope,) = torch.autograd.grad(value, losses)
    torch.testing.assert_close(weights(tilt, weighting=weighting), slope)


def test_the_tilted_loss_grows_with_the_tilt_from_the_least_to_the_largest():
    losses, shares = torch.tensor(LOSSES).double(), shares_of("examples")
    tilts = [-50, -5, -1, -1e-4, 0, 1e-4, 1, 5, 50]
    values = [objective(t, losses, shares).item() for t in tilts]
    assert values == sorted(values) and len(set(values)) == len(values)
    assert min(LOSSES) <= values[0] and values[-1] <= max(LOSSES)
    assert values[4] == pytest.approx(values[3], abs=1e-3)


def test_near_zero_the_weights_leave_the_shares_in_proportion():
    losses, shares = torch.tensor(LOSSES).double(), shares_of("examples")
    # pi_k - p_k ≈ t p_k (F_k - mean F)
    slope = shares * (losses - (shares * losses).sum())
    for tilt in (1e-3, 1e-5, -1e-5):
        found = (weights(tilt) - shares) / tilt
        torch.testing.assert_close(found, slope, rtol=0, atol=3 * abs(tilt))
    torch.testing.assert_close(weights(0.0), shares, rtol=1e-14, atol=0)
    gaps = [(weights(t) - shares).abs().max().item() for t in (0.1, 0.01, 0.001)]
    assert gaps[0] > 9 * gaps[1] > 80 * gaps[2] > 0


def test_a_constant_changes_nothing_and_a_factor_is_a_factor_of_the_tilt():
    losses = np.array(LOSSES)
    for tilt in (-2.0, 0.5, 3.0):
        moved = weights(tilt, losses + 100)
        torch.testing.assert_close(moved, weights(tilt), rtol=1e-10, atol=0)
        scaled = weights(tilt, 3 * losses)
        torch.testing.assert_close(scaled, weights(3 * tilt), rtol=1e-10, atol=0)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_strong_tilt_leaves_the_worst_client_or_the_best(sign):
    place = LOSSES.index(max(LOSSES) if sign > 0 else min(LOSSES))
    for tilt in (60.0, 1e4, 1e300):
        found = weights(sign * tilt)
        assert found.argmax() == place and found[place] > 1 - 1e-6
        assert found.isfinite().all()
    extreme = weights(sign * 1e300, [1e30, 0.0, 1e-30, 2e30, 1.0])
    assert extreme.isfinite().all() and extreme.max() == 1


def test_losses_of_any_size_do_not_overflow():
    for losses in ([2000.0, 1000.0], [0.0, 0.0], [1e38, 0.0]):
        for tilt in (-20.0, 20.0):
            found = TERM(tilt=tilt).aggregation_weights(SERVER, saying(losses, (3, 1)))
            assert found.isfinite().all() and abs(found.sum() - 1) < 1e-12
    assert TERM(tilt=20).aggregation_weights(
        SERVER, saying([0.0, 0.0], (3, 1))
    ).tolist() == [
        pytest.approx(0.75),
        pytest.approx(0.25),
    ]


def test_a_round_moves_by_the_tilted_mean_of_the_steps():
    run = a_run(TERM(tilt=4.0), unequal())
    before = run.server
    run.step()
    losses = np.array([float(m.upload["loss"]) for m in run.messages])
    sizes = np.array([m.num_examples for m in run.messages])
    pi = sizes * np.exp(4.0 * losses)
    pi /= pi.sum()
    assert np.abs(pi - sizes / sizes.sum()).max() > 0.01
    for name in before.parameters:
        w = before.weights[name].double()
        # w <- w + Σ pi_k (w_k - w)
        steps = [m.weights[name].double() - w for m in run.messages]
        expected = w + sum(p * step for p, step in zip(pi, steps, strict=True))
        found = run.server.weights[name].double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
