"""FedAvg and its first two children: invariants of the specifications."""

import math

import pytest
import torch
from torch import nn

from fedlab_support import (
    FedAvg,
    FedAvgM,
    Federation,
    FedProx,
    FedRep,
    LocalTraining,
    Run,
    iid,
)
from fedlab_support.core.messages import Broadcast, Message, Server
from fedlab_support.core.metrics import task
from fedlab_support.core.rng import Stream
from fedlab_support.engines.process import intra_op_threads
from fedlab_support.federation.federation import Client
from fedlab_support.training.context import ClientContext
from fedlab_support.training.learner import Learner
from fedlab_support.training.loop import train_locally
from tests.probe import AwkwardNet
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
    with intra_op_threads(1):
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


def test_a_learning_rate_of_zero_leaves_the_parameters(federation):
    training = LocalTraining(lr=0.0, epochs=1, batch_size=8)
    run = Run(FedAvg(), federation, AwkwardNet, training, workers=1)
    before = dict(run.server.weights)
    run.step()
    for name in run.server.parameters:
        torch.testing.assert_close(
            run.server.weights[name], before[name], rtol=0, atol=0
        )


# ---- FedProx ------------------------------------------------------------------------
def test_the_task_loss_is_logged_beside_the_objective(federation):
    table = fitted(FedProx(mu=1.0), federation, 2).history.table()
    train = table.query("split == 'train'").pivot_table(
        index=["round", "client"], columns="metric", values="value"
    )
    assert (train["loss"] > train["task_loss"]).all()


# ---- what all share -----------------------------------------------------------------
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


class Copied(FedAvgM):
    """Returns from ``evaluation_state`` more than the model has."""

    def evaluation_state(self, server, private, client_id):
        return {**server.weights, **server.memory}


def test_what_the_model_does_not_have_cannot_be_evaluated(federation):
    with pytest.raises(ValueError, match=r"found 'velocity.*evaluation_state may ret"):
        fitted(Copied(), federation, 1)


class OnlyOwn(FedAvg):
    """Forgets the shared weights, so that a worker's last ones would remain."""

    def evaluation_state(self, server, private, client_id):
        return private


def test_a_model_is_not_evaluated_with_weights_that_happen_to_be_there(federation):
    with pytest.raises(ValueError, match="must return all of the server's weights"):
        fitted(OnlyOwn(), federation, 1)


class Tied(nn.Module):
    """A network whose head and body share a matrix."""

    def __init__(self, shape, num_classes):
        super().__init__()
        self.body = nn.Linear(math.prod(shape), num_classes)
        self.head = nn.Linear(math.prod(shape), num_classes)
        self.head.weight = self.body.weight

    def forward(self, x):
        return self.body(x.flatten(1)) + self.head(x.flatten(1))


def test_a_private_tensor_is_not_sent_under_another_name(federation):
    with pytest.raises(ValueError, match=r"under all its names, found 'body\.weight'"):
        Run(FedRep(), federation, Tied, LocalTraining(epochs=2))
