"""SCAFFOLD against Algorithm 1 in NumPy, and what its control variates promise."""

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support import SCAFFOLD, FedAvg, LocalTraining, Run
from fedlab_support.core.messages import nbytes
from tests import runs
from tests.runs import Turns, bytes_by_part, distance

pytestmark = pytest.mark.usefixtures("one_thread")

WHOLE = LocalTraining(lr=0.3, epochs=4, batch_size=10_000)  # 4 steps on all images


def linear(image_shape, num_classes) -> nn.Module:
    """Softmax regression, in which every gradient can be written down."""
    return nn.Sequential(nn.Flatten(), nn.Linear(np.prod(image_shape), num_classes))


def arrays(federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, D + 1), with a column of ones for the bias, and labels as rows."""
    (batch,) = federation.client(client).train.batches(10_000)
    x = batch.x.flatten(1).double().numpy()
    labels = np.eye(federation.data.num_classes)[batch.y.numpy()]
    return np.hstack([x, np.ones((len(x), 1))]), labels


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the cross-entropy's mean, (M, D + 1)."""
    logits = x @ w.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    return (p / p.sum(1, keepdims=True) - y).T @ x / len(x)


def matrix(tensors) -> np.ndarray:
    """Weight and bias side by side."""
    weight, bias = tensors["1.weight"], tensors["1.bias"]
    return torch.cat([weight, bias[:, None]], 1).detach().double().numpy()


def algorithm_1(federation, w, cohorts, steps: int, lr: float):
    """x, c and all c_i after rounds with these clients."""
    num = len(federation)
    c, own = np.zeros_like(w), np.zeros((num, *w.shape))
    for cohort in cohorts:
        moved, changed = [], []
        for i in cohort:
            x, y = arrays(federation, i)
            local = w.copy()
            for _ in range(steps):
                local = local - lr * (gradient(local, x, y) - own[i] + c)
            new = own[i] - c + (w - local) / (steps * lr)
            moved.append(local - w)
            changed.append(new - own[i])
            own[i] = new
        w = w + sum(moved) / len(cohort)
        c = c + len(cohort) / num * sum(changed) / len(cohort)
    return w, c, own


def test_rounds_with_some_clients_are_those_of_algorithm_1(federation):
    run = Run(SCAFFOLD(), federation, linear, WHOLE, Turns(), workers=1)
    start = matrix(run.server.weights)
    run.fit(4, progress=False)
    cohorts = [[(first + k) % 5 for k in range(3)] for first in range(4)]
    w, c, own = algorithm_1(federation, start, cohorts, WHOLE.epochs, WHOLE.lr)
    assert np.abs(w - start).max() > 0.1 and np.abs(c).max() > 0.005
    near = {"rtol": 1e-3, "atol": 1e-5}
    np.testing.assert_allclose(matrix(run.server.weights), w, **near)
    np.testing.assert_allclose(matrix(run.server.shared), c, **near)
    for i, private in run.private.items():
        np.testing.assert_allclose(matrix(private.memory), own[i], **near)


def test_c_is_the_mean_of_all_c_k_when_everyone_participates(federation):
    run = runs.fitted(SCAFFOLD(), federation, 3)
    assert [*run.server.shared] == [*run.server.parameters]
    for name, c in run.server.shared.items():
        own = torch.stack([run.private[i].memory[name] for i in range(5)])
        torch.testing.assert_close(c, own.mean(0), rtol=1e-3, atol=1e-6)
    own = [run.private[i].memory["head.weight"] for i in range(5)]
    assert torch.stack(own).std(0).max() > 1e-3


@pytest.mark.slow
def test_it_reaches_the_common_minimum_from_which_fedavg_drifts(federation):
    training = LocalTraining(lr=0.2, epochs=20, batch_size=10_000, weight_decay=0.1)

    def slope(method) -> float:
        """The length of the mean objective's gradient after training."""
        run = Run(method, federation, linear, training, workers=1, evaluate_every=30)
        run.fit(30, progress=False)
        w = matrix(run.server.weights)
        each = [gradient(w, *arrays(federation, i)) + 0.1 * w for i in range(5)]
        return float(np.linalg.norm(sum(each) / 5))

    drifted, corrected = slope(FedAvg("equal")), slope(SCAFFOLD())
    assert corrected < 0.01 * drifted and drifted > 0.01


def test_messages_are_twice_as_long_both_ways(federation):
    run = runs.fitted(SCAFFOLD(), federation, 2)
    size, sent = nbytes(run.server.shared), bytes_by_part(run)
    assert sent["up", "upload"] == 2 * 5 * size
    assert sent["down", "shared"] == 5 * size, "c is 0 and not sent before round 1"


@pytest.mark.slow
def test_near_the_neutral_setting_is_near_fedavg(federation):
    plain = runs.fitted(FedAvg("equal"), federation, 3)
    near = runs.fitted(SCAFFOLD(correction=1e-6), federation, 3)
    assert 0 < distance(plain, near) < 1e-4
    assert distance(plain, runs.fitted(SCAFFOLD(), federation, 3)) > 1e-3


def test_with_a_partial_correction_the_variates_are_still_mean_gradients(federation):
    training = LocalTraining(lr=0.3, epochs=1, batch_size=10_000)  # one step
    run = Run(SCAFFOLD(correction=0.5), federation, linear, training, workers=1)
    for _ in range(3):
        w = matrix(run.server.weights)
        run.step(evaluate=False)
        for i, private in run.private.items():
            expected = gradient(w, *arrays(federation, i))
            found = matrix(private.memory)
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("given", [{"momentum": 0.9}, {"optimiser": "adam"}])
def test_steps_that_hide_the_gradient_are_refused_before_training(federation, given):
    training = LocalTraining(**given)
    with pytest.raises(ValueError, match=r"plain SGD, found.*momentum=0\)"):
        Run(SCAFFOLD(), federation, linear, training)
    Run(SCAFFOLD(correction=0.0), federation, linear, training)


def test_a_learning_rate_of_zero_changes_nothing(federation):
    training = LocalTraining(lr=0.0)
    run = runs.fitted(SCAFFOLD(), federation, 2, model=linear, training=training)
    assert not any(c.any() for c in run.server.shared.values())


def test_a_round_without_a_step_keeps_what_is_known(federation):
    training = LocalTraining(lr=0.3, schedule=lambda round: float(round != 2))
    run = runs.a_run(SCAFFOLD(), federation, model=linear, training=training).step()
    before = {i: private.memory for i, private in run.private.items()}
    known, first = run.server.shared, run.server.weights
    run.step()
    assert all(torch.equal(run.server.weights[name], first[name]) for name in first)
    for name, c in known.items():
        assert c.any() and torch.equal(run.server.shared[name], c)
        assert all(
            torch.equal(run.private[i].memory[name], before[i][name]) for i in before
        )
