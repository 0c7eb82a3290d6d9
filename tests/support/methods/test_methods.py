"""FedAvg and its first two children: invariants of the specifications."""

from dataclasses import fields

import pytest
import torch

from fedlab_support import (
    FedAvg,
    FedAvgM,
    Federation,
    FedProx,
    LocalTraining,
    Run,
    iid,
    methods,
)
from fedlab_support.core.messages import Broadcast, Message, Server
from fedlab_support.core.metrics import task
from fedlab_support.core.rng import Stream
from fedlab_support.engines.process import one_intra_op_thread
from fedlab_support.federation.federation import Client
from fedlab_support.methods import FPL, FedMix, FedRobust, FedSAM, HarmoFL
from fedlab_support.training.context import ClientContext
from fedlab_support.training.learner import Learner
from fedlab_support.training.loop import train_locally
from tests.probe import AwkwardNet
from tests.runs import distance
from tests.tiny import tiny_data

TRAINING = LocalTraining(lr=0.1, epochs=2, batch_size=8, momentum=0.9)


@pytest.fixture(scope="module")
def data():
    return tiny_data(num=150)


@pytest.fixture(scope="module")
def federation(data):
    """Three clients of 20, 30 and 60 samples or so."""
    parts = iid(data, 6, rng=0)
    merged = [
        parts[0],
        parts[1],
        torch.cat([torch.tensor(p) for p in parts[2:]]).numpy(),
    ]
    return Federation.build(data, merged)


def fitted(method, federation, rounds=3, model=AwkwardNet, training=TRAINING, **kw):
    run = Run(method, federation, model, training, workers=1, **kw)
    run.fit(rounds, progress=False)
    return run


def linear(image_shape, num_classes):
    size = image_shape[0] * image_shape[1] * image_shape[2]
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, num_classes))


def assert_equal(a: Run, b: Run):
    for name, value in a.server.weights.items():
        assert torch.equal(value, b.server.weights[name]), name


# ---- the neutral setting gives FedAvg, bit for bit, by the ordinary path -------------
NEUTRAL = {
    "FedProx": FedProx(mu=0.0),
    "FedProx, norm": FedProx(mu=0.0, penalty="norm"),
    "FedAvgM": FedAvgM(momentum=0.0, server_lr=1.0),
    "FedSAM": FedSAM(rho=0.0),
    "FedRobust": FedRobust(matrix_rate=0.0, shift_rate=0.0),
    "HarmoFL": HarmoFL(weighting="examples", window="none", alpha=0.0),
    "FedMix": FedMix(share=0.0),
    "NaiveMix": FedMix(share=0.0, naive=True),
    "FPL": FPL(contrast_weight=0.0, consistency_weight=0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEUTRAL)
def test_the_neutral_setting_equals_fedavg_bit_for_bit(federation, name):
    start = Run(FedAvg(), federation, AwkwardNet, TRAINING, workers=1)
    plain = fitted(FedAvg(), federation)
    assert distance(start, plain) > 0.05, "weights have moved"
    assert_equal(plain, fitted(NEUTRAL[name], federation))


NEAR = {
    "FedProx": FedProx(mu=1e-6),
    "FedAvgM": FedAvgM(momentum=1e-6),
    "FedAvgM, rate": FedAvgM(momentum=0.0, server_lr=1 - 1e-6),
    "FedSAM": FedSAM(rho=1e-6),
    "FedRobust": FedRobust(matrix_rate=1e-6, shift_rate=1e-6),
    "HarmoFL": HarmoFL(weighting="examples", window="none", alpha=1e-6),
    "FedMix": FedMix(share=1e-6),
    "NaiveMix": FedMix(share=1e-6, naive=True),
    "FPL": FPL(contrast_weight=1e-6, consistency_weight=1e-6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
def test_near_the_neutral_setting_the_result_is_near(federation, name):
    plain = fitted(FedAvg(), federation)
    assert 0 < distance(plain, fitted(NEAR[name], federation)) < 1e-3


AWAY = [FedProx(mu=1.0), FedAvgM(momentum=0.5), FedSAM(rho=0.5), HarmoFL()]
AWAY += [FedMix(), FedMix(naive=True), FPL()]


@pytest.mark.slow
@pytest.mark.parametrize("method", AWAY)
def test_away_from_it_the_result_differs(federation, method):
    assert distance(fitted(FedAvg(), federation), fitted(method, federation)) > 1e-3


# ---- FedAvg -------------------------------------------------------------------------
def test_one_client_equals_local_training(data):
    federation = Federation.build(data, iid(data, 1, rng=0))
    run = Run(FedAvg(), federation, AwkwardNet, TRAINING, workers=1, seed=4)
    alone = Run(FedAvg(), federation, AwkwardNet, TRAINING, workers=1, seed=4).model
    Learner(alone).load(run.server.weights)
    client: Client = federation.client(0)
    context = ClientContext(
        client,
        Broadcast(1, run.server.weights),
        TRAINING,
        task("classification"),
        Stream(4, "method", 1, 0),
    )
    with one_intra_op_thread():
        train_locally(FedAvg(), Learner(alone), context, seed=4)
    run.step()
    state = alone.state_dict()
    for name, value in run.server.weights.items():
        if value.is_floating_point():
            assert torch.equal(value, state[name]), name


def test_one_full_batch_step_each_is_one_step_on_the_union(federation):
    training = LocalTraining(lr=0.5, epochs=1, batch_size=10_000)
    run = Run(FedAvg(), federation, linear, training, workers=1)
    weight, bias = (run.server.weights[f"1.{n}"].clone() for n in ("weight", "bias"))
    rows = torch.from_numpy(federation.rows)
    x = federation.store.inputs(rows).flatten(1)
    weight.requires_grad_(), bias.requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        x @ weight.T + bias, federation.store.labels[rows]
    )
    gradients = torch.autograd.grad(loss, (weight, bias))
    run.step()
    for name, start, gradient in zip(
        ("1.weight", "1.bias"), (weight, bias), gradients, strict=True
    ):
        torch.testing.assert_close(
            run.server.weights[name],
            start.detach() - 0.5 * gradient,
            rtol=1e-5,
            atol=1e-6,
        )


def test_equal_weighting_differs_from_weighting_by_examples(federation):
    by_size, equal = (
        fitted(FedAvg(), federation, 1),
        fitted(FedAvg("equal"), federation, 1),
    )
    sizes = torch.tensor([m.num_examples for m in by_size.messages]).double()
    shares = FedAvg().aggregation_weights(by_size.server, by_size.messages)
    assert shares.sum().item() == pytest.approx(1, abs=1e-12)
    assert torch.equal(shares, sizes / sizes.sum())
    assert distance(by_size, equal) > 1e-4


def test_a_learning_rate_of_zero_leaves_the_parameters(federation):
    training = LocalTraining(lr=0.0, epochs=1, batch_size=8)
    run = Run(FedAvg(), federation, AwkwardNet, training, workers=1)
    before = dict(run.server.weights)
    run.step()
    for name in run.server.parameters:
        torch.testing.assert_close(
            run.server.weights[name], before[name], rtol=0, atol=0
        )


def test_the_loss_falls(federation):
    for method in (FedAvg(), FedProx(), FedAvgM(momentum=0.5)):
        run = fitted(method, federation, 6, linear, LocalTraining(0.05, 2, 8))
        loss = run.history.table().query("split == 'train' and metric == 'loss'")
        mean = loss.groupby("round")["value"].mean()
        assert mean.iloc[-1] < 0.7 * mean.iloc[0]


def test_batchnorm_statistics_are_averaged_by_size(federation):
    run = Run(FedAvg(), federation, AwkwardNet, TRAINING, workers=1).step()
    name = "stages.1.running_mean"
    local = [(m.num_examples, m.weights[name].double()) for m in run.messages]
    mean = sum(n * v for n, v in local) / sum(n for n, _ in local)
    torch.testing.assert_close(run.server.weights[name].double(), mean)
    assert (local[0][1] - local[2][1]).abs().max() > 1e-3, "clients differ"


# ---- FedProx ------------------------------------------------------------------------
def test_the_spring_shortens_the_walk_from_the_broadcast(federation):
    training = LocalTraining(lr=0.05, epochs=5, batch_size=8)
    walked = []
    for mu in (0.0, 0.1, 1.0, 5.0):
        run = Run(FedProx(mu=mu), federation, linear, training, workers=1)
        start = run.server.weights
        run.step()
        walked.append(
            sum(
                (m.weights[n] - start[n]).square().sum()
                for m in run.messages
                for n in start
            )
        )
    assert walked == sorted(walked, reverse=True) and walked[0] > 1.5 * walked[-1]


class Bowl(FedAvg):
    """Whatever the data: F(w) = |w - 0.3|² / 2."""

    def loss(self, model, batch, context):
        return sum((p - 0.3).square().sum() for p in model.parameters()) / 2


class PulledBowl(FedProx, Bowl):
    """The same with FedProx's spring."""


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 3.0])
def test_a_quadratic_ends_between_its_minimum_and_the_broadcast(federation, mu):
    training = LocalTraining(lr=0.2, epochs=150, batch_size=10_000)
    run = Run(PulledBowl(mu=mu), federation, linear, training, workers=1)
    start = run.server.weights
    (message, *_) = run.step().messages
    for name, w in message.weights.items():
        # w* = (c + mu w_t) / (1 + mu)
        torch.testing.assert_close(w, (0.3 + mu * start[name]) / (1 + mu))
        assert (w - start[name]).abs().max() > 0.05


def test_the_penalty_is_zero_at_the_broadcast_for_both_forms(federation):
    for penalty in ("squared", "norm"):
        training = LocalTraining(lr=0.1, epochs=1, batch_size=10_000)
        pulled = fitted(
            FedProx(mu=5.0, penalty=penalty), federation, 1, linear, training
        )
        assert_equal(fitted(FedAvg(), federation, 1, linear, training), pulled)


def test_the_task_loss_is_logged_beside_the_objective(federation):
    table = fitted(FedProx(mu=1.0), federation, 2).history.table()
    train = table.query("split == 'train'").pivot_table(
        index=["round", "client"], columns="metric", values="value"
    )
    assert (train["loss"] > train["task_loss"]).all()


# ---- FedAvgM ------------------------------------------------------------------------
@pytest.mark.slow
def test_buffers_get_no_momentum_and_variances_stay_positive(federation):
    run = fitted(FedAvgM(momentum=0.95), federation, 8)
    assert run.server.weights["stages.1.running_var"].min() > 0
    assert not [key for key in run.server.memory if "running" in key]
    assert {f"velocity.{n}" for n in run.server.parameters} == set(run.server.memory)


def test_a_constant_displacement_gathers_speed_geometrically():
    from dataclasses import replace

    from fedlab_support.core.messages import Message, Server

    method = FedAvgM(momentum=0.5)
    server = Server(0, {"w": torch.zeros(1)}, parameters=frozenset({"w"}))
    for _ in range(5):
        moved = {"w": server.weights["w"] - 1.0}
        server = method.aggregate(server, [Message(0, 1, moved)])
    assert server.memory["velocity.w"].item() == pytest.approx((1 - 0.5**5) / (1 - 0.5))
    still = replace(server, memory={})
    same = method.aggregate(still, [Message(0, 1, still.weights)])
    assert torch.equal(same.weights["w"], still.weights["w"]), "nothing moves from rest"
    rolls = method.aggregate(server, [Message(0, 1, server.weights)])
    on = server.weights["w"] - 0.5 * server.memory["velocity.w"]
    torch.testing.assert_close(rolls.weights["w"], on)
    assert (on - server.weights["w"]).abs() > 0.9


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(weighting="size"),
        lambda: FedProx(mu=-1),
        lambda: FedProx(mu=float("nan")),
        lambda: FedProx(penalty="cubic"),
        lambda: FedAvgM(momentum=1.0),
        lambda: FedAvgM(server_lr=0.0),
    ],
)
def test_impossible_settings_are_refused_at_once(make):
    with pytest.raises(ValueError, match="found"):
        make()


@pytest.mark.parametrize("method", methods.__all__)
def test_flags_are_true_or_false_and_counts_are_no_flags(method):
    made = getattr(methods, method)
    if not (isinstance(made, type) and issubclass(made, FedAvg)):
        pytest.skip("no method")
    for field in fields(made):
        if field.type == "bool":
            with pytest.raises(ValueError, match=f"{field.name} must be True or False"):
                made(**{field.name: "no"})


@pytest.mark.parametrize(
    ("weighting", "expected"), [("equal", [0.5, 0.5]), ("examples", [0.25, 0.75])]
)
def test_the_shares_of_clients_sum_to_one(weighting, expected):
    messages = [Message(0, 10, {}), Message(1, 30, {})]
    shares = FedAvg(weighting).aggregation_weights(Server(0, {}), messages)
    assert shares.tolist() == expected and shares.dtype == torch.float64


def test_a_client_predicts_with_what_it_keeps_beside_what_is_shared():
    shared, own = torch.zeros(2), torch.ones(2)
    server = Server(3, {"body": shared})
    found = FedAvg().evaluation_state(server, {"head": own}, 1)
    assert found == {"body": shared, "head": own}
    assert FedAvg().evaluation_state(server, {}, None) == {"body": shared}
