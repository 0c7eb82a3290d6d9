"""Server rules and local objectives give the numbers of the authors' own code."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support.core.messages import Broadcast, Message, Server
from fedlab_support.core.metrics import task
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedAvg, FedAvgM, FedProx
from fedlab_support.training.context import ClientContext
from fedlab_support.training.loop import take_step
from fedlab_support.training.settings import LocalTraining
from tests.paths import REFERENCE
from tests.tiny import a_stream

FLOAT32 = {"rtol": 1e-4, "atol": 1e-5}
FLOAT64 = {"rtol": 1e-9, "atol": 1e-9}
SIZES = (5, 3, 2)  # as shares .5, .3, .2
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


@cache
def vectors(file: str) -> dict[str, np.ndarray]:
    """All arrays of one file of reference vectors."""
    with np.load(REFERENCE / f"{file}.npz") as arrays:
        return dict(arrays)


def case(file: str, prefix: str) -> dict[str, torch.Tensor]:
    """The tensors of one case, by name."""
    prefix += "__"
    return {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in vectors(file).items()
        if name.startswith(prefix)
    }


# ---- averaging and server momentum --------------------------------------------------
def server_before() -> Server:
    weights = case("aggregation_rules", "server_before")
    parameters = [name for name in weights if not name.endswith(BUFFERS)]
    return Server(0, weights, parameters=tuple(parameters))


def messages(prefix: str = "clients") -> list[Message]:
    stacked = case("aggregation_rules", prefix)
    return [
        Message(k, size, {name: value[k] for name, value in stacked.items()})
        for k, size in enumerate(SIZES)
    ]


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [("examples", "fedavg_weighted"), ("equal", "fedavg_uniform")],
)
def test_the_average_is_that_of_the_official_code(weighting, expected):
    before = server_before()
    after = FedAvg(weighting).aggregate(before, messages()).weights
    reference = case("aggregation_rules", expected)
    assert after.keys() == reference.keys() == before.weights.keys()
    for name, value in after.items():
        if value.is_floating_point():
            np.testing.assert_allclose(value, reference[name], **FLOAT32)
            assert not torch.equal(value, before.weights[name])
        else:
            assert torch.equal(value, before.weights[name])


def test_the_two_weightings_differ_and_so_do_buffers():
    one, other = (
        FedAvg(weighting).aggregate(server_before(), messages()).weights
        for weighting in ("examples", "equal")
    )
    for name in ("conv1.weight", "bn1.running_var", "norm2.running_mean"):
        assert not np.allclose(one[name], other[name], **FLOAT32)


@pytest.mark.parametrize("beta", [0.01, 0.9])
def test_three_rounds_of_server_momentum_are_those_of_the_official_code(beta):
    server = server_before()
    for round in range(3):
        key = f"fedavgm_beta{beta}_r{round}"
        server = FedAvgM(momentum=beta).aggregate(server, messages(f"{key}_clients"))
        expected = case("aggregation_rules", f"{key}_server")
        velocity = case("aggregation_rules", f"{key}_velocity")
        assert len(server.parameters) == 8
        for name in server.parameters:
            np.testing.assert_allclose(server.weights[name], expected[name], **FLOAT32)
            np.testing.assert_allclose(
                server.memory[f"velocity.{name}"], velocity[name], **FLOAT32
            )


def test_buffers_follow_the_average_under_momentum():
    server = server_before()
    for round in range(3):
        said = messages(f"fedavgm_beta0.9_r{round}_clients")
        plain = FedAvg().aggregate(server, said).weights
        server = FedAvgM(momentum=0.9).aggregate(server, said)
        for name in server.weights.keys() - server.parameters:
            assert torch.equal(server.weights[name], plain[name])
    assert set(server.memory) == {f"velocity.{name}" for name in server.parameters}
    official = case("aggregation_rules", "fedavgm_beta0.9_r2_server")
    name = "bn1.running_var"
    assert not np.allclose(server.weights[name], official[name], **FLOAT32)


@pytest.mark.parametrize("server_lr", [0.3, 1.0, 1.7])
def test_any_server_rate_gives_the_formula_of_the_paper(server_lr):
    method = FedAvgM(momentum=0.9, server_lr=server_lr)
    server = server_before()
    w = {n: server.weights[n].double().numpy() for n in server.parameters}
    v = {n: np.zeros_like(w[n]) for n in w}
    for round in range(3):
        said = messages(f"fedavgm_beta0.9_r{round}_clients")
        server = method.aggregate(server, said)
        for name in w:
            mean = sum(
                size / 10 * m.weights[name].double().numpy()
                for size, m in zip(SIZES, said, strict=True)
            )
            v[name] = 0.9 * v[name] + (w[name] - mean)
            w[name] = w[name] - server_lr * v[name]
            np.testing.assert_allclose(server.weights[name], w[name], **FLOAT32)


# ---- FedProx ------------------------------------------------------------------------
PROX = vectors("fedprox_variants")


def received() -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(PROX[f"server_{name}"].copy())
        for name in ("weight", "bias")
    }


def batch(number: int) -> Batch:
    x, y = (torch.from_numpy(PROX[f"{what}{number}"]) for what in "xy")
    return Batch(x, y, torch.arange(len(y)), epoch=0)


def a_visit() -> ClientContext:
    return ClientContext(
        client=None,
        received=Broadcast(1, received()),
        training=LocalTraining(lr=float(PROX["lr"])),
        task=task("classification"),
        stream=a_stream(),
    )


def start() -> nn.Linear:
    model = nn.Linear(4, 3, dtype=torch.float64)
    model.load_state_dict(received())
    return model


def after_one_pass(method: FedAvg) -> dict[str, torch.Tensor]:
    """The linear model after one step on each of the three batches, in double."""
    model, context = start(), a_visit()
    optimiser = method.optimiser(list(model.named_parameters()), context.training)
    for number in range(3):
        take_step(method, model, optimiser, batch(number), context, a_stream())
    return model.state_dict()


def gradients(method: FedAvg, model: nn.Module) -> torch.Tensor:
    """The gradient of the local objective on the first batch, flat."""
    loss = method.loss(model, batch(0), a_visit())
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([g.flatten() for g in grads])


@pytest.mark.parametrize("mu", [0.0, 0.01, 1.0])
@pytest.mark.parametrize(
    ("penalty", "expected"),
    [("squared", "derived_paper_squared"), ("norm", "fedbn_repo_norm_variant")],
)
def test_a_pass_with_the_penalty_ends_where_the_reference_ends(mu, penalty, expected):
    trained = after_one_pass(FedProx(mu=mu, penalty=penalty))
    for name, value in case("fedprox_variants", f"mu{mu}__{expected}").items():
        assert trained[name].dtype == torch.float64
        np.testing.assert_allclose(trained[name], value, **FLOAT64)
        assert not np.allclose(trained[name], received()[name], **FLOAT64)


@pytest.mark.parametrize("penalty", ["squared", "norm"])
def test_without_strength_the_pass_is_that_of_fedavg_bit_for_bit(penalty):
    plain, prox = (
        after_one_pass(FedAvg()),
        after_one_pass(FedProx(mu=0.0, penalty=penalty)),
    )
    assert all(torch.equal(plain[name], prox[name]) for name in plain)


@pytest.mark.parametrize("penalty", ["squared", "norm"])
def test_at_the_received_weights_there_is_no_pull(penalty):
    plain = gradients(FedAvg(), start())
    assert torch.equal(gradients(FedProx(mu=1.0, penalty=penalty), start()), plain)


def test_the_pull_grows_with_the_distance_or_has_constant_length():
    model = start()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.5
    away = torch.full((15,), 0.5, dtype=torch.float64)
    plain = gradients(FedAvg(), model)
    squared = gradients(FedProx(mu=0.3), model) - plain
    np.testing.assert_allclose(squared, 0.3 * away, **FLOAT64)
    norm = gradients(FedProx(mu=0.3, penalty="norm"), model) - plain
    np.testing.assert_allclose(norm, 0.3 / 2 * away / away.norm(), **FLOAT64)


class Point(nn.Module):
    """A network whose output is its weights, whatever the input."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))

    def forward(self, x):
        return self.w


class HalfSquares:
    """The objective 1/2 ||w - c||^2."""

    @staticmethod
    def loss(output, target):
        return 0.5 * (output - target).square().sum()


def test_a_stronger_pull_ends_nearer_to_the_received_weights():
    # of 1/2 ||w - c||^2 + mu/2 ||w - w_t||^2 the minimum is (c + mu w_t) / (1 + mu)
    target, paths = torch.tensor([4.0, 0.0, -1.0], dtype=torch.float64), []
    for mu in (0.0, 0.01, 0.1, 1.0, 10.0):
        method, model, path = FedProx(mu=mu), Point(), []
        before = model.w.detach().clone()
        sent = Broadcast(1, {"w": before})
        context = replace(a_visit(), received=sent, task=HalfSquares())
        training = LocalTraining(lr=0.05)
        optimiser = method.optimiser(list(model.named_parameters()), training)
        for _ in range(500):
            step = Batch(torch.zeros(1), target, torch.zeros(1), epoch=0)
            take_step(method, model, optimiser, step, context, a_stream())
            path.append((model.w.detach() - before).norm().item())
        expected = (target + mu * before) / (1 + mu)
        np.testing.assert_allclose(model.w.detach(), expected, **FLOAT64)
        paths.append(path)
    assert (np.diff(paths, axis=0)[:, 1:] < 0).all(), "after every step but the first"
