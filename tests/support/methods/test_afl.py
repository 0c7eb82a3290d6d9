"""AFL: the projection, the mixture's walk over the simplex, and who is averaged how."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg, uniform
from fedlab_support.core.messages import Server
from fedlab_support.methods import AFL
from fedlab_support.methods.afl import onto_simplex
from tests.paths import REFERENCE
from tests.runs import Turns, a_run, distance, fitted, garbled, plain, saying

pytestmark = pytest.mark.usefixtures("one_thread")
SETS = ["v5", "v10", "v4_neg", "on_simplex", "spread", "ties", "large"]


@cache
def vectors() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "afl.npz") as arrays:
        return dict(arrays)


def points(num: int = 60, seed: int = 0):
    """Vectors of 1 to 12 entries, of scales from 1e-3 to 1e3, some with ties."""
    rng = np.random.default_rng(seed)
    for n in range(num):
        y = rng.normal(size=1 + n % 12) * 10 ** rng.uniform(-3, 3)
        if n % 4 == 0:
            y = np.round(y)
        yield torch.from_numpy(y)


def slowly(y: torch.Tensor) -> torch.Tensor:
    """The projection by bisection: Σ max(y - s, 0) = 1 has one solution s."""
    low, high = y.max() - 1, y.max()
    for _ in range(70):
        middle = (low + high) / 2
        is_left = (y - middle).clamp(min=0).sum() > 1
        low, high = (middle, high) if is_left else (low, middle)
    return (y - low).clamp(min=0)


def server(shares) -> Server:
    shares = torch.as_tensor(shares, dtype=torch.float64)
    memory = {"clients": torch.arange(len(shares)), "lambda": shares}
    return Server(0, {"w": torch.zeros(1)}, memory=memory)


def climb(method: AFL, start: Server, losses) -> list[torch.Tensor]:
    """λ before the first and after every round, all clients taking part."""
    found, now = [start.memory["lambda"]], start
    for row in losses:
        weights = [{"w": torch.ones(1) * k} for k in range(len(row))]
        now = method.aggregate(now, saying(row, weights=weights))
        found.append(now.memory["lambda"])
    return found


# ---- the projection -----------------------------------------------------------------
@pytest.mark.parametrize("name", SETS)
def test_the_projection_is_that_of_the_reference(name):
    found = onto_simplex(torch.from_numpy(vectors()[f"{name}__y"]))
    np.testing.assert_allclose(found, vectors()[f"{name}__exact"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SETS)
def test_the_projection_is_that_of_the_released_codes_that_are_right(name):
    found = onto_simplex(torch.from_numpy(vectors()[f"{name}__y"]))
    right = ["fedgcr", "benchmark", *["fair_flearn"] * (name not in ("v10", "v4_neg"))]
    for code in right:
        expected = vectors()[f"{name}__{code}_project"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


def test_the_wrong_projection_of_a_released_code_would_be_seen():
    for name in ("v10", "v4_neg"):
        wrong = vectors()[f"{name}__fair_flearn_project"]
        assert abs(wrong.sum() - 1) > 0.01
        assert np.abs(wrong - vectors()[f"{name}__exact"]).max() > 1e-3


def test_the_projection_is_on_the_simplex_and_the_nearest_point_there():
    rng = np.random.default_rng(5)
    for y in points():
        found = onto_simplex(y)
        assert found.dtype == torch.float64 and (found >= 0).all()
        assert abs(found.sum().item() - 1) < 1e-12
        torch.testing.assert_close(found, slowly(y), rtol=0, atol=1e-9)
        for other in rng.dirichlet(np.ones(len(y)), 5):
            away = (y - torch.from_numpy(other)).norm()
            assert (y - found).norm() <= away + 1e-9


def test_the_projection_keeps_the_simplex_a_constant_and_the_order():
    rng = np.random.default_rng(1)
    for y in points():
        on = torch.from_numpy(rng.dirichlet(np.ones(len(y))))
        torch.testing.assert_close(onto_simplex(on), on, rtol=0, atol=1e-14)
        once = onto_simplex(y)
        torch.testing.assert_close(onto_simplex(once), once, rtol=0, atol=1e-14)
        torch.testing.assert_close(onto_simplex(y + 5.5), once, rtol=0, atol=1e-12)
        in_order = once[y.argsort()]
        assert (in_order.diff() >= 0).all()


def test_the_projection_works_at_extremes_and_in_single_precision():
    far = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert onto_simplex(far).tolist() == [1, 0]
    assert onto_simplex(torch.tensor([-7.0])).tolist() == [1.0]
    single = onto_simplex(torch.tensor([0.3, 0.2, 0.9]))
    assert single.dtype == torch.float64
    many = onto_simplex(torch.zeros(3000))
    torch.testing.assert_close(many, torch.full((3000,), 1 / 3000).double())


# ---- the walk of the mixture --------------------------------------------------------
def test_the_walk_is_that_of_the_reference():
    expected, step = vectors()["traj__lambda_exact"], vectors()["traj__lr_lambda"]
    start = server(expected[0])
    found = climb(AFL(mixture_lr=float(step)), start, vectors()["traj__losses"])
    np.testing.assert_allclose(torch.stack(found), expected, rtol=0, atol=1e-12)


def test_the_memoryless_rule_is_that_of_fedgcrs_code():
    shares = vectors()["fedgcr_afl__client_weights"]
    sizes = np.round(shares * 100).astype(int)
    said = saying(vectors()["fedgcr_afl__losses"], sizes=sizes)
    step = float(vectors()["fedgcr_afl__step"])
    method = AFL("examples", mixture_lr=step, memoryless=True)
    pooled = method.server_setup(
        {m.client: {"num_examples": m.num_examples} for m in said}
    )
    weights = method.aggregation_weights(Server(0, {}, memory=pooled), said)
    expected = vectors()["fedgcr_afl__weights"]
    np.testing.assert_allclose(weights, expected, rtol=0, atol=1e-12)


def test_with_a_memory_the_mixture_goes_on_and_without_it_begins_again():
    losses = [[1.0, 0.2, 0.4, 0.1]] * 4
    kept, lost = (
        climb(AFL(memoryless=forgets), server([0.25] * 4), losses)
        for forgets in (False, True)
    )
    assert all(torch.equal(after, lost[0]) for after in lost)
    first = [one[0].item() for one in kept]
    assert first == sorted(first) and first[-1] > first[1] > first[0]
    said = saying(losses[0])
    forgetful = AFL(memoryless=True).aggregation_weights(server(lost[-1]), said)
    torch.testing.assert_close(forgetful, kept[1])


def test_equal_losses_leave_the_mixture():
    start = [0.5, 0.1, 0.3, 0.0, 0.1]
    for after in climb(AFL(mixture_lr=2.0), server(start), [[0.8] * 5] * 3):
        torch.testing.assert_close(after, torch.tensor(start).double())


def test_a_huge_step_leaves_only_the_client_with_the_highest_loss():
    found = climb(AFL(mixture_lr=1e9), server([0.25] * 4), [[0.5, 0.7, 0.699, 0.1]])
    assert found[-1].tolist() == [0, 1, 0, 0]


def test_mass_moves_from_lower_to_higher_losses_only():
    rng = np.random.default_rng(2)
    for _ in range(40):
        start, losses = rng.dirichlet(np.ones(6)), rng.uniform(0, 3, 6)
        before, after = climb(AFL(mixture_lr=0.05), server(start), [losses])
        gain = (after - before)[torch.from_numpy(losses).argsort()]
        kept = after[torch.from_numpy(losses).argsort()] > 0
        assert (gain[kept].diff() >= -1e-12).all()
        assert abs(gain.sum()) < 1e-12


def test_a_client_whose_mixture_is_zero_comes_back_when_its_loss_is_high():
    found = climb(AFL(), server([1.0, 0.0, 0.0]), [[0.1, 4.0, 0.1]] * 3)
    assert found[1][1] > 0.1 and found[3][1] > found[2][1]


# ---- who takes part -----------------------------------------------------------------
def test_the_mixture_is_of_all_clients_and_stays_on_the_simplex(federation):
    run = a_run(AFL(mixture_lr=0.3), federation, select=Turns())
    for _ in range(6):
        run.step()
        mixture = run.server.memory["lambda"]
        assert run.server.memory["clients"].tolist() == [0, 1, 2, 3, 4]
        assert mixture.shape == (5,) and mixture.dtype == torch.float64
        assert (mixture >= 0).all() and abs(mixture.sum().item() - 1) < 1e-12
    assert mixture.max() - mixture.min() > 0.05


def test_absent_clients_are_moved_by_the_projection_alone(federation):
    run = a_run(AFL(mixture_lr=0.02), federation, select=Turns()).step()
    absent = [3, 4]
    before = run.server.memory["lambda"]
    assert [m.client for m in run.messages] == [0, 1, 2]
    raised = sum(0.02 * float(m.upload["loss"]) for m in run.messages) / 5
    for i in absent:
        assert before[i].item() == pytest.approx(0.2 - raised, abs=1e-12)
    for m in run.messages:
        gained = 0.02 * float(m.upload["loss"]) - raised
        assert before[m.client].item() == pytest.approx(0.2 + gained, abs=1e-12)


def test_participants_count_by_their_mixture_over_its_sum(federation):
    method = AFL(mixture_lr=0.1)
    run = a_run(method, federation, select=Turns()).step()
    before = run.server
    run.step()
    assert [m.client for m in run.messages] == [1, 2, 3]
    told = before.memory["lambda"][[1, 2, 3]]
    assert told.max() - told.min() > 0.05, "client 3 was absent"
    weights = method.aggregation_weights(before, run.messages)
    torch.testing.assert_close(weights, told / told.sum(), rtol=1e-14, atol=0)
    name = "head.weight"
    mean = sum(
        w * m.weights[name].double() for w, m in zip(weights, run.messages, strict=True)
    )
    torch.testing.assert_close(run.server.weights[name].double(), mean)


def test_the_losses_of_a_round_count_from_the_next_on_unless_it_forgets():
    before, said = server([0.5, 0.3, 0.2]), saying([1.0, 2.0, 0.0])
    method = AFL(mixture_lr=0.1)
    now, _ = method.mixture(before, said)
    assert (now - before.memory["lambda"]).abs().max() > 0.05
    assert method.aggregation_weights(before, said).tolist() == pytest.approx(
        [0.5, 0.3, 0.2]
    )
    forgetful = AFL(mixture_lr=0.1, memoryless=True)
    torch.testing.assert_close(forgetful.aggregation_weights(before, said), now)


@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_participants_without_any_mixture_count_by_weighting(weighting):
    said = saying([0.0, 0.0, 0.0], sizes=(5, 3, 2))[:2]
    before = server([0.0, 0.0, 1.0])
    weights = AFL(weighting).aggregation_weights(before, said)
    assert torch.equal(weights, FedAvg(weighting).aggregation_weights(before, said))
    said = [replace(m, weights={"w": torch.ones(1)}) for m in said]
    after = AFL(weighting).aggregate(before, said)
    assert after.memory["lambda"].tolist() == [0, 0, 1]
    assert after.weights["w"].tolist() == [1.0]


def test_the_mixture_starts_equal_or_at_the_shares_of_the_examples(federation):
    shares = torch.from_numpy(federation.sizes / federation.sizes.sum())
    for weighting, expected in (("equal", [0.2] * 5), ("examples", shares)):
        run = fitted(AFL(weighting, mixture_lr=0.0), federation)
        expected = torch.as_tensor(expected, dtype=torch.float64)
        found = run.server.memory["lambda"]
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_a_client_whose_introduction_is_refused_has_no_part_in_the_mixture(federation):
    shy = garbled(AFL(), 1, lambda said: {"num_examples": torch.tensor([1.0, 2.0])})
    with pytest.warns(UserWarning, match="client 1 is left out of the run"):
        run = fitted(shy, federation, select=uniform(3))
    assert run.server.memory["clients"].tolist() == [0, 2, 3, 4]
    assert run.server.memory["lambda"].shape == (4,)


def test_the_mixture_ends_at_the_clients_that_are_served_worst(federation):
    run = a_run(AFL(mixture_lr=0.02), federation)
    for _ in range(5):
        run.step()
    losses = {m.client: float(m.upload["loss"]) for m in run.messages}
    mixture = run.server.memory["lambda"]
    assert int(mixture.argmax()) in sorted(losses, key=losses.get)[-2:]
    equal = plain(federation, 5, weighting="equal")
    assert distance(run, equal) > 1e-4


def test_a_loss_near_the_largest_number_does_not_overflow():
    for here in ([1e308, 1.0, 0.0], [1e308, 1e308, 1e308], [1e308]):
        method, said = AFL(mixture_lr=1e3), saying(here)
        weights = method.aggregation_weights(server([0.2, 0.3, 0.1, 0.4]), said)
        assert weights.isfinite().all() and abs(weights.sum().item() - 1) < 1e-12
        assert weights[0] > 0
