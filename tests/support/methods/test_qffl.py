"""q-FFL: powers of losses as weights, a step that adapts, and its limits."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg, Federation, small_cnn
from fedlab_support.core.messages import Server
from fedlab_support.methods import QFFL
from tests.paths import REFERENCE
from tests.runs import (
    TRAINING,
    Steady,
    a_run,
    distance,
    expect_left_out,
    fitted,
    garbled,
    plain,
    saying,
)
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")
CASES = ["q0", "q01", "q1", "q5", "q1_small_loss"]


@cache
def vectors() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "qffl.npz") as arrays:
        return dict(arrays)


def tensor(value) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


def a_server(weights) -> Server:
    """All weights are parameters, except for those whose name says otherwise."""
    names = tuple(name for name in weights if "running" not in name)
    return Server(0, weights, parameters=names)


def walks(server: Server, locals_, lr: float) -> list[float]:
    """||w - w_k|| / √lr, entry by entry."""
    old = server.weights
    squares = [
        sum(((old[n] - own[n]) ** 2).sum().item() for n in server.parameters)
        for own in locals_
    ]
    return [(square / lr) ** 0.5 for square in squares]


def a_round(num: int = 4, seed: int = 0, lr: float = 0.1):
    """A server, local weights (with a buffer), losses and walks, all unequal."""
    rng = np.random.default_rng(seed)
    shapes = {"a.weight": (3, 2), "a.bias": (3,), "n.running_var": (2,)}
    start = {n: tensor(rng.normal(size=s)) for n, s in shapes.items()}
    each = [
        {n: v + tensor(rng.normal(size=v.shape) * 0.2) for n, v in start.items()}
        for _ in range(num)
    ]
    server, losses = a_server(start), rng.uniform(0.2, 3, num)
    return server, each, losses, walks(server, each, lr)


def slowly(server, each, losses, lr, q, shares=None) -> dict[str, torch.Tensor]:
    """w - Σ Δ_k / Σ h_k as printed, with powers as they stand; parameters only."""
    top, bottom, inverse = dict.fromkeys(server.parameters, 0.0), 0.0, 1 / lr
    shares = [1.0] * len(each) if shares is None else shares
    for p, own, loss in zip(shares, each, losses, strict=True):
        g = {n: inverse * (server.weights[n] - own[n]) for n in server.parameters}
        square = sum((v**2).sum().item() for v in g.values())
        bottom += p * (q * loss ** (q - 1) * square + inverse * loss**q)
        for name, value in g.items():
            top[name] = top[name] + p * loss**q * value
    return {n: server.weights[n] - top[n] / bottom for n in server.parameters}


# ---- the step -----------------------------------------------------------------------
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_that_of_the_official_code(case):
    named = [(key.split("__"), value) for key, value in vectors().items()]
    got = {name: value for (of, name), value in named if of == case}
    server = a_server({f"w{i}": tensor(got[f"w{i}"]) for i in (0, 1)})
    each = [
        {f"w{i}": tensor(got[f"local{i}"][k]) for i in (0, 1)}
        for k in range(len(got["losses"]))
    ]
    lr = float(got["lr"])
    walked = walks(server, each, lr)
    squares = np.array(walked) ** 2 / lr
    np.testing.assert_allclose(squares, got["grad_sqnorm"], rtol=1e-9)
    said = saying(got["losses"], sizes=range(1, 9), weights=each, walk=walked)
    after = QFFL(q=float(got["q"])).aggregate(server, said).weights
    for i in (0, 1):
        expected = tensor(got[f"new{i}"])
        assert (after[f"w{i}"] - server.weights[f"w{i}"]).abs().max() > 1e-6
        torch.testing.assert_close(after[f"w{i}"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 1.0, 3.0, 15.0])
@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_a_step_is_that_of_the_printed_formula(q, weighting):
    server, each, losses, walked = a_round()
    sizes = (1, 30, 4, 9)
    said = saying(losses, sizes, each, walk=walked)
    after = QFFL(weighting, q=q).aggregate(server, said).weights
    shares = np.array(sizes) / 44 if weighting == "examples" else None
    for name, expected in slowly(server, each, losses, 0.1, q, shares).items():
        torch.testing.assert_close(after[name], expected, rtol=1e-8, atol=1e-10)


def test_buffers_take_the_weighted_mean_and_no_shorter_step():
    server, each, losses, walked = a_round()
    after = QFFL(q=2.0).aggregate(server, saying(losses, None, each, walk=walked))
    shares = tensor(losses**2 / (losses**2).sum())
    name = "n.running_var"
    mean = sum(a * own[name] for a, own in zip(shares, each, strict=True))
    torch.testing.assert_close(after.weights[name], mean)
    plain = sum(own[name] for own in each) / 4
    assert (mean - plain).abs().max() > 1e-3


def test_ratios_of_weights_are_those_of_losses_to_the_power():
    losses = [0.5, 2.0, 0.25]
    for q in (0.0, 0.7, 3.0):
        a = QFFL(q=q).aggregation_weights(a_server({}), saying(losses))
        assert (a[1] / a[0]).item() == pytest.approx(4**q, rel=1e-8)
        assert (a[0] / a[2]).item() == pytest.approx(2**q, rel=1e-8)


def test_equal_losses_and_walks_go_the_way_of_fedavg_but_not_as_far():
    server, each, _, _ = a_round()
    far = [{n: torch.ones_like(v) * k for n, v in each[0].items()} for k in range(4)]
    said = saying([0.5] * 4, None, far, walk=[0.8**0.5] * 4)
    mean = FedAvg("equal").aggregate(server, said).weights
    after = QFFL(q=2.0).aggregate(server, said).weights
    share = 1 / (1 + 2 * 0.8 / 0.5)
    for name in server.parameters:
        step, whole = (w[name] - server.weights[name] for w in (after, mean))
        torch.testing.assert_close(step, share * whole)


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 8.0])
def test_the_new_model_lies_in_the_hull_of_the_old_and_the_local_ones(q):
    for seed in range(5):
        server, each, losses, walked = a_round(seed=seed)
        method, said = QFFL(q=q), saying(losses, None, each, walk=walked)
        after = method.aggregate(server, said)
        name = "a.weight"
        mean = method.aggregation_weights(server, said)
        mean = sum(a * own[name] for a, own in zip(mean, each, strict=True))
        share = (after.weights[name] - server.weights[name]) / (
            mean - server.weights[name]
        )
        torch.testing.assert_close(share, share[0, 0].expand(3, 2))
        assert 0 < share[0, 0] <= 1 + 1e-12
        alpha = share[0, 0] * method.aggregation_weights(server, said)
        assert (alpha >= 0).all() and alpha.sum() <= 1 + 1e-12
        assert (share[0, 0] < 1 - 1e-6) == (q > 0)


def test_a_huge_power_leaves_only_the_worst_client():
    server, each, losses, walked = a_round()
    said = saying(losses, None, each, walk=walked)
    weights = QFFL(q=1e4).aggregation_weights(server, said)
    assert weights.argmax() == losses.argmax() and weights.max() == 1.0
    after = QFFL(q=1e4).aggregate(server, said).weights["a.bias"]
    step = after - server.weights["a.bias"]
    own = each[int(losses.argmax())]["a.bias"] - server.weights["a.bias"]
    cosine = torch.nn.functional.cosine_similarity(step, own, dim=0)
    assert cosine.item() == pytest.approx(1) and 0 < step.norm() < own.norm()


def test_powers_of_large_and_of_vanishing_losses_neither_overflow_nor_vanish():
    server, each, losses, walked = a_round()
    for scale in (1e-9, 1e30):
        for q in (0.1, 15.0, 300.0):
            said = saying(scale * losses, None, each, walk=walked)
            after = QFFL(q=q).aggregate(server, said).weights
            assert all(value.isfinite().all() for value in after.values())
    lies = saying([0.0, 1.0], None, each[:2], walk=[1e308, 1e308])
    for q in (0.0, 1.0):
        after = QFFL(q=q).aggregate(server, lies).weights
        assert all(value.isfinite().all() for value in after.values())
    said = saying([0.0, 0.0], None, each[:2], walk=walked[:2])
    method = QFFL(q=0.1)
    assert method.aggregation_weights(server, said).tolist() == [0.5, 0.5]
    after = method.aggregate(server, said).weights["a.bias"]
    still = (after - server.weights["a.bias"]).abs().max()
    assert still < 1e-6, "F^(q-1) is huge: nothing moves"
    wider = QFFL(q=0.1, epsilon=1e-1).aggregate(server, said).weights["a.bias"]
    assert (wider - server.weights["a.bias"]).abs().max() > 1e-3


# ---- what clients say ---------------------------------------------------------------
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_walk_is_over_all_parameters_together_and_over_no_buffer(
    federation, optimiser
):
    training = replace(TRAINING, lr=0.02, optimiser=optimiser)
    run = a_run(QFFL(), federation, training=training)
    start = dict(run.server.weights)
    run.step()
    for message in run.messages:
        square = sum(
            (message.weights[n] - start[n]).double().square().sum().item()
            for n in run.server.parameters
        )
        walk = message.upload["walk"]
        assert walk.dtype == torch.float64 and walk.shape == ()
        assert walk.item() == pytest.approx((square / 0.02) ** 0.5, rel=1e-6)
    assert start.keys() - run.server.parameters, "there are buffers"


def test_a_frozen_layer_and_a_private_one_have_no_part_in_the_walk(federation):
    @dataclass(frozen=True)
    class OwnHead(QFFL):
        def private_names(self, model):
            return {"head.weight", "head.bias"}

    run = a_run(OwnHead(), federation, model=Steady)
    start = dict(run.server.weights)
    run.step()
    assert not any(name.startswith(("head", "frozen")) for name in start)
    for message in run.messages:
        square = sum(
            (message.weights[n] - start[n]).double().square().sum().item()
            for n in run.server.parameters
        )
        walk = message.upload["walk"].item()
        assert walk == pytest.approx((square / TRAINING.lr) ** 0.5, rel=1e-6)


def test_a_round_of_a_run_is_the_printed_formula(federation):
    run = a_run(QFFL(q=1.5), federation)
    before = run.server
    run.step()
    each = [m.weights for m in run.messages]
    losses = [float(m.upload["loss"]) for m in run.messages]
    start = replace(before, weights={n: v.double() for n, v in before.weights.items()})
    expected = slowly(start, each, losses, TRAINING.lr, 1.5)
    for name, value in expected.items():
        found = run.server.weights[name].double()
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-6)
    assert distance(run, plain(federation, 1, weighting="equal")) > 1e-3


def test_at_rate_zero_nobody_walked_and_the_parameters_stay(federation):
    training = replace(TRAINING, lr=0.0)
    run = a_run(QFFL(), federation, training=training)
    start = dict(run.server.weights)
    run.step()
    assert [float(m.upload["walk"]) for m in run.messages] == [0.0] * 5
    for name in run.server.parameters:
        torch.testing.assert_close(run.server.weights[name], start[name])


@pytest.mark.slow
def test_a_larger_power_narrows_the_spread_of_the_losses(federation):
    def worst_beside_mean(method) -> float:
        settings = {"model": small_cnn, "training": replace(TRAINING, lr=0.1)}
        run = fitted(method, federation, 6, **settings)
        losses = [run.scores(federation.client(i).train).loss.mean() for i in range(5)]
        return max(losses) / np.mean(losses)

    assert worst_beside_mean(QFFL(q=2.0)) < worst_beside_mean(QFFL(q=0.0))


@pytest.mark.parametrize("walk", [-1.0, float("nan"), [1.0, 1.0]])
def test_a_walk_that_cannot_be_is_left_out(federation, walk):
    lies = garbled(QFFL(), 3, lambda _: {"walk": torch.tensor(walk).double()})
    expect_left_out(a_run(lies, federation), 3, "'walk'")


def test_a_client_with_nearly_all_images_takes_part():
    """Its step is far longer than that of the others; all clients are honest."""
    data = tiny_data(num=600, test_share=0)
    parts = [np.arange(480), *np.array_split(np.arange(480, 600), 8)]
    run = fitted(QFFL(), Federation.build(data, parts), 3)
    assert run.history.events().empty
