"""FedSAM: the climb, the way back, the authors' numbers, and FedAvg at radius 0."""

import copy
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support import LocalTraining
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedAvg, FedSAM, HarmoFL
from fedlab_support.training.loop import take_step
from fedlab_support.training.optimisers import SAM, FusedSGD
from tests.probe import AwkwardNet
from tests.runs import (
    a_visit,
    bytes_by_part,
    distance,
    fitted,
    plain,
)
from tests.support.methods.test_reference import FLOAT64, case, vectors
from tests.support.training.test_optimisers import network
from tests.tiny import a_stream

pytestmark = pytest.mark.usefixtures("one_thread")
SCALINGS = ["none", "asam", "all"]


# ---- the climb ----------------------------------------------------------------------
class Watched:
    """The gradients of a network, and where its weights stood at every call."""

    def __init__(self, model: nn.Module, x: torch.Tensor):
        self.model, self.x, self.seen = model, x, []

    def __call__(self):
        self.model.zero_grad()
        self.seen.append([p.detach().clone() for p in self.model.parameters()])
        loss = (self.model(self.x) - 1).square().mean()
        loss.backward()
        return loss.detach()


class Standing(FusedSGD):
    """Notes with which weights it was asked to step, and on which gradients."""

    def step(self, closure=None):
        params = [p for group in self.param_groups for p in group["params"]]
        self.found = [p.detach().clone() for p in params]
        self.slopes = [p.grad.clone() for p in params]
        return super().step(closure)


def one_step(rho, unit=None, x=None):
    model = network()
    x = torch.randn(4, 1, 6, 6) if x is None else x
    closure = Watched(model, x)
    base = Standing([{"params": list(model.parameters())}], lr=0.1)
    loss = SAM(base, rho, unit).step(closure)
    return model, closure, base, loss


def length(tensors) -> float:
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_the_climb_is_as_long_as_the_radius_and_goes_uphill(rho):
    model, closure, base, loss = one_step(rho)
    first, second = closure.seen
    climb = [b - a for a, b in zip(first, second, strict=True)]
    assert length(climb) == pytest.approx(rho, rel=1e-5)
    again = Watched(model, closure.x)
    for p, value in zip(model.parameters(), first, strict=True):
        p.data.copy_(value)
    assert again() == loss, "the loss of the weights as they were"
    slopes = [p.grad for p in model.parameters()]
    for way, slope in zip(climb, slopes, strict=True):
        torch.testing.assert_close(
            way, rho * slope / length(slopes), rtol=1e-4, atol=1e-7
        )
    assert any(not torch.equal(a, b) for a, b in zip(slopes, base.slopes, strict=True))


def test_the_base_steps_from_the_very_weights_that_were_saved():
    _, closure, base, _ = one_step(3.0)
    first, second = closure.seen
    assert all(torch.equal(a, b) for a, b in zip(first, base.found, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    subtracted = [b - (b - a) for a, b in zip(first, second, strict=True)]
    assert not all(torch.equal(a, b) for a, b in zip(first, subtracted, strict=True))


def test_a_unit_scales_the_climb():
    _, closure, _, _ = one_step(0.5, unit=lambda w: w.abs() + 0.2)
    first, second = closure.seen
    steps = [(b - a) / (a.abs() + 0.2) for a, b in zip(first, second, strict=True)]
    assert length(steps) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_where_the_gradient_is_zero_nobody_climbs(dtype):
    model = nn.Linear(2, 1).to(dtype)
    sam = SAM(FusedSGD([{"params": list(model.parameters())}], 0.1), 0.5)
    before = copy.deepcopy(model.state_dict())

    def flat():
        model.zero_grad()
        loss = 0 * model(torch.ones(3, 2, dtype=dtype)).sum()
        loss.backward()
        assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
        return loss

    sam.step(flat)
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_a_parameter_without_a_gradient_stays_and_does_not_count():
    model, idle = nn.Linear(2, 1), nn.Parameter(torch.full((3,), 7.0))
    params = [*model.parameters(), idle]
    start = [p.detach().clone() for p in params]
    seen = []

    def closure():
        for p in params:
            p.grad = None
        seen.append([p.detach().clone() for p in params])
        loss = model(torch.ones(3, 2)).square().sum()
        loss.backward()
        return loss

    SAM(FusedSGD([{"params": params}], 0.1), 0.5).step(closure)
    assert torch.equal(idle, start[-1]) and idle.grad is None
    climb = [b - a for a, b in zip(*seen, strict=True)]
    assert length(climb[:2]) == pytest.approx(0.5, rel=1e-5)
    assert not climb[2].any()


# ---- the authors' numbers -----------------------------------------------------------
QUADRATICS = sorted(
    {name.split("__")[1] for name in vectors("sam_step") if name.startswith("quad")}
)


def method_of(key: str) -> tuple[FedAvg, LocalTraining]:
    """The method and the settings that a case was made with."""
    found = {n: float(v) for n, v in re.findall(r"_?([a-z]+)([0-9][0-9e.-]*)", key)}
    training = LocalTraining(
        lr=found["lr"],
        optimiser="adam" if "_adam_" in key else "sgd",
        momentum=found.get("mom", 0.0),
        weight_decay=found.get("wd", 0.0),
    )
    if key.startswith("harmofl"):
        return HarmoFL(alpha=found["alpha"]), training
    scaling = "all" if key.startswith("asam") else "none"
    return FedSAM(rho=found["rho"], scaling=scaling), training


def test_every_quadratic_of_the_file_is_compared():
    assert len(QUADRATICS) == 7
    assert {type(method_of(key)[0]) for key in QUADRATICS} == {FedSAM, HarmoFL}


@pytest.mark.parametrize("key", QUADRATICS)
def test_three_steps_on_a_quadratic_are_those_of_the_official_optimisers(key):
    given = {n: torch.from_numpy(v) for n, v in vectors("sam_step").items()}
    method, training = method_of(key)
    w = nn.Parameter(given["w0"].clone())
    optimiser, seen = method.optimiser([("w", w)], training), []

    def closure():
        w.grad = None
        seen.append(w.detach().clone())
        loss = w @ given["A"] @ w / 2 - given["b"] @ w
        loss.backward()
        return loss

    for step in range(3):
        optimiser.step(closure)
        perturbed = given[f"quad__{key}__perturbed"][step]
        np.testing.assert_allclose(seen[-1], perturbed, **FLOAT64)
        after = given[f"quad__{key}__w_after"][step]
        np.testing.assert_allclose(w.detach(), after, **FLOAT64)


def test_on_a_quadratic_the_gradient_is_that_of_the_formula():
    given = {n: torch.from_numpy(v) for n, v in vectors("sam_step").items()}
    matrix, w = given["A"], given["w0"].clone().requires_grad_()
    base = Standing([{"params": [w]}], lr=0.1)

    def closure():
        w.grad = None
        (w @ matrix @ w / 2 - given["b"] @ w).backward()
        return w.new_zeros(())

    SAM(base, 0.3).step(closure)
    g = matrix @ given["w0"] - given["b"]
    expected = g + 0.3 * matrix @ g / g.norm()
    np.testing.assert_allclose(base.slopes[0], expected, **FLOAT64)


def eccv_network() -> nn.Module:
    model = nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)
    ).double()
    model.load_state_dict(case("sam_step", "net__before"))
    return model


@pytest.mark.parametrize(
    ("key", "method"),
    [
        ("sam_rho0.1", FedSAM(rho=0.1)),
        ("asam_rho0.7_eta0.2", FedSAM(rho=0.7, scaling="asam", offset=0.2)),
    ],
)
def test_a_step_of_a_network_is_that_of_the_eccv_code(key, method):
    model, context, seen = eccv_network(), a_visit(), []
    training = LocalTraining(lr=0.01, weight_decay=4e-4)
    optimiser = method.optimiser(list(model.named_parameters()), training)
    x, y = (torch.from_numpy(vectors("sam_step")[f"net__{n}"]) for n in "xy")
    model.register_forward_pre_hook(
        lambda m, _: seen.append(copy.deepcopy(m.state_dict()))
    )
    batch = Batch(x, y, torch.arange(len(y)), 0)
    take_step(method, model.train(), optimiser, batch, context, a_stream())
    assert len(seen) == 2
    after = case("sam_step", f"net__{key}__after")
    for name, value in case("sam_step", f"net__{key}__perturbed").items():
        np.testing.assert_allclose(seen[1][name], value, **FLOAT64)
        np.testing.assert_allclose(model.state_dict()[name], after[name], **FLOAT64)
        assert not np.allclose(after[name], seen[0][name], **FLOAT64)
    # theirs moves running statistics in both passes, ours in the first only
    once = eccv_network().train()
    once(x)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, dict(once.named_buffers())[name])
    assert after["1.num_batches_tracked"] == 2 == 2 * model[1].num_batches_tracked
    assert not np.allclose(model[1].running_mean, after["1.running_mean"], rtol=1e-6)


# ---- the limit: FedAvg --------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_a_radius_of_zero_is_fedavg_bit_for_bit(federation, scaling, optimiser):
    """With dropout, BatchNorm and momentum: the second pass replays the first."""
    momentum = {"adam": 0.0, "sgd": 0.9}[optimiser]
    training = LocalTraining(0.02, 2, 8, optimiser, momentum)
    settings = {"model": AwkwardNet, "training": training}
    fedavg = plain(federation, **settings)
    sam = fitted(FedSAM(rho=0.0, scaling=scaling), federation, **settings)
    assert distance(fedavg, sam) == 0
    assert bytes_by_part(sam) == bytes_by_part(fedavg)
    logged = [r.history.table().query("split == 'train'").value for r in (fedavg, sam)]
    assert logged[0].equals(logged[1]), "only the first pass is logged"


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
def test_near_zero_it_is_near_fedavg_and_away_from_it_is_not(federation, scaling):
    fedavg = plain(federation)
    near, far = (
        fitted(FedSAM(rho=rho, scaling=scaling), federation) for rho in (1e-6, 0.5)
    )
    assert 0 < distance(fedavg, near) < 1e-3 < distance(fedavg, far)


@pytest.mark.slow
def test_the_base_can_be_chosen_apart_from_the_training(federation):
    adam = LocalTraining(lr=0.02, epochs=2, batch_size=8, optimiser="adam")
    sgd = LocalTraining(lr=0.02, epochs=2, batch_size=8)
    chosen = fitted(FedSAM(base="adam"), federation, training=sgd)
    assert distance(chosen, fitted(FedSAM(), federation, training=adam)) == 0
    assert distance(chosen, fitted(FedSAM(), federation, training=sgd)) > 1e-3


# ---- as for every method ------------------------------------------------------------
def test_running_statistics_move_once_per_batch(federation):
    run = fitted(FedSAM(rho=1.0), federation, 1)
    steps = [2 * math.ceil(size / 8) - 2 * (size % 8 == 1) for size in federation.sizes]
    counter = "stages.1.num_batches_tracked"
    assert [m.weights[counter].item() for m in run.messages] == steps
