"""FedRep against Algorithm 1 in NumPy; heads stay, and learn before the body."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support import FedRep, LocalTraining, Run, small_cnn
from fedlab_support.core.messages import nbytes
from tests import runs
from tests.runs import Turns, bytes_by_part, unequal

pytestmark = pytest.mark.usefixtures("one_thread")

WHOLE = LocalTraining(lr=0.3, epochs=5, batch_size=10_000)  # 5 steps on all images


def two_layers(image_shape, num_classes) -> nn.Module:
    """A linear body of six features under a linear head, as in the paper's theory."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(np.prod(image_shape), 6))
    head = nn.Linear(6, num_classes)
    return nn.Sequential(OrderedDict(body=body, head=head))


def arrays(federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, D) and labels as rows (N, M)."""
    (batch,) = federation.client(client).train.batches(10_000)
    labels = np.eye(federation.data.num_classes)[batch.y.numpy()]
    return batch.x.flatten(1).double().numpy(), labels


def gradients(w: dict, x: np.ndarray, y: np.ndarray) -> dict:
    """Of the cross-entropy's mean, by name, with the chain rule by hand."""
    z = x @ w["body.1.weight"].T + w["body.1.bias"]
    logits = z @ w["head.weight"].T + w["head.bias"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    d = (p / p.sum(1, keepdims=True) - y) / len(x)
    back = d @ w["head.weight"]
    return {
        "head.weight": d.T @ z,
        "head.bias": d.sum(0),
        "body.1.weight": back.T @ x,
        "body.1.bias": back.sum(0),
    }


def algorithm_1(federation, start: dict, cohorts, head_steps, body_steps, lr):
    """The shared body, and the heads by client, after rounds with these clients."""
    body = {n: w for n, w in start.items() if n.startswith("body")}
    heads = {}
    for cohort in cohorts:
        sent, sizes = [], []
        for i in cohort:
            x, y = arrays(federation, i)
            head = heads.get(i, {n: start[n] for n in ("head.weight", "head.bias")})
            w = {**body, **head}
            for part, steps in (("head", head_steps), ("body", body_steps)):
                for _ in range(steps):
                    slope = gradients(w, x, y)
                    w = {
                        n: v - lr * slope[n] if n.startswith(part) else v
                        for n, v in w.items()
                    }
            heads[i] = {n: v for n, v in w.items() if n.startswith("head")}
            sent.append(w)
            sizes.append(len(x))
        body = {
            n: sum(k * w[n] for k, w in zip(sizes, sent, strict=True)) / sum(sizes)
            for n in body
        }
    return body, heads


def as_arrays(tensors) -> dict:
    return {name: value.double().numpy() for name, value in tensors.items()}


@pytest.mark.parametrize("body_epochs", [1, 2])
def test_rounds_with_some_clients_are_those_of_algorithm_1(federation, body_epochs):
    method = FedRep(body_epochs=body_epochs)
    run = Run(method, federation, two_layers, WHOLE, Turns(), workers=1)
    start = as_arrays(run.model.state_dict())
    run.fit(3, progress=False)
    cohorts = [[(first + k) % 5 for k in range(3)] for first in range(3)]
    steps = (WHOLE.epochs - body_epochs, body_epochs)
    body, heads = algorithm_1(federation, start, cohorts, *steps, WHOLE.lr)
    near = {"rtol": 1e-3, "atol": 1e-5}
    assert run.server.weights.keys() == body.keys()
    for name, value in as_arrays(run.server.weights).items():
        assert np.abs(value - start[name]).max() > 0.005
        np.testing.assert_allclose(value, body[name], **near)
    assert run.private.keys() == heads.keys()
    for client, head in heads.items():
        for name, value in as_arrays(run.private[client].weights).items():
            np.testing.assert_allclose(value, head[name], **near)


def test_only_the_body_travels(federation):
    run = runs.fitted(FedRep(), federation, model=small_cnn)
    assert not [name for name in run.server.weights if name.startswith("head")]
    assert run.private[0].weights.keys() == {"head.weight", "head.bias"}
    sent = bytes_by_part(run)
    assert sent["up", "weights"] == 2 * 5 * nbytes(run.server.weights)
    assert ("up", "upload") not in sent


def test_a_client_predicts_with_its_own_head(federation):
    run = runs.fitted(FedRep(), unequal(num=110, val=0.25), 3, model=small_cnn)
    assert "personal_accuracy" in set(run.history.table()["metric"])
    heads = [run.state_of(i)["head.weight"] for i in range(5)]
    assert all(not torch.equal(heads[0], head) for head in heads[1:])
    assert "head.weight" not in run.state_of(None), "a new client's is untrained"


def test_a_visit_without_an_epoch_for_the_head_is_refused(federation):
    training = LocalTraining(epochs=2)
    with pytest.raises(ValueError, match=r"above body_epochs=2.*found 2"):
        Run(FedRep(body_epochs=2), federation, small_cnn, training)
    Run(FedRep(body_epochs=2, private=()), federation, small_cnn, training)


def test_a_network_without_the_part_is_refused(federation):
    with pytest.raises(ValueError, match="no fc"):
        Run(FedRep(private=("fc",)), federation, small_cnn, WHOLE)
    with pytest.raises(ValueError, match=r"private must be a tuple of names"):
        FedRep(private="head")


def test_something_that_is_trained_is_shared(federation):
    with pytest.raises(ValueError, match=r"shared parts.*name fewer"):
        Run(FedRep(private=("body", "head")), federation, two_layers, WHOLE)


def test_a_client_that_is_asked_answers_with_its_own_head(federation):
    """Power of choice would otherwise compare untrained heads."""
    asked = {}

    def asks(roster, rng):
        asked.update(roster.ask_loss(roster.ids))
        return roster.ids.tolist()

    run = runs.fitted(FedRep(), federation, 1, model=small_cnn)
    run.select = asks
    expected = {
        i: run.scores(federation.client(i).train, i).loss.mean() for i in range(5)
    }
    run.step()
    assert asked == pytest.approx(expected)
