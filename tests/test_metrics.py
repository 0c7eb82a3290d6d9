"""Measures agree with hand-made numbers and with scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss

from fedlab_support.metrics import Scores, drift, per_group, task

TASK = task("classification")


def guesses(num: int = 40, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, M), right half of the time, and classes (N,); class 3 is absent."""
    stream = torch.Generator().manual_seed(0)
    y = torch.randint(0, classes - 1, (num,), generator=stream)
    y[y == 3] = classes - 1
    output = 2 * torch.randn(num, classes, generator=stream)
    output[torch.arange(num // 2), y[: num // 2]] += 5
    return output, y


def test_losses_and_scores_agree_with_scikit_learn():
    output, y = guesses()
    truth = log_loss(y.numpy(), output.double().softmax(1).numpy(), labels=range(5))
    assert TASK.losses(output, y).mean().item() == pytest.approx(truth, rel=1e-6)
    assert TASK.loss(output, y).item() == pytest.approx(truth, rel=1e-6)
    accuracy = accuracy_score(y.numpy(), output.argmax(1).numpy())
    assert TASK.score(output, y).mean().item() == pytest.approx(accuracy)
    assert 0.3 < accuracy < 0.9


def test_each_sample_has_its_own_loss_and_score():
    output = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)], [math.log(3.0), 0.0]])
    y = torch.tensor([1, 1, 1])
    expected = torch.tensor([2.0, 4 / 3, 4.0]).log()
    np.testing.assert_allclose(TASK.losses(output, y), expected, rtol=1e-6)
    assert TASK.score(output, y).tolist() == [0, 1, 0]
    assert TASK.score(output, y).dtype == torch.float32


def test_a_single_sample_and_huge_logits_are_measured():
    output, y = torch.tensor([[1e4, -1e4]]), torch.tensor([0])
    assert TASK.losses(output, y).tolist() == [0.0]
    assert TASK.loss(output, y).isfinite()


def test_an_unknown_task_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"\['classification'\], found 'dance'"):
        task("dance")


def test_groups_are_measured_apart_and_empty_ones_left_out():
    scores = Scores(
        loss=np.array([1.0, 2.0, 3.0, 6.0]), score=np.array([1.0, 0.0, 1.0, 1.0])
    )
    groups = np.array([2, 0, 2, 2])
    rows = list(per_group(scores, "accuracy", groups, ("photo", "sketch", "art")))
    assert rows == [
        ("photo", "accuracy", 0.0),
        ("photo", "loss", 2.0),
        ("art", "accuracy", pytest.approx(1.0)),
        ("art", "loss", pytest.approx(10 / 3)),
    ]


def test_means_are_taken_in_double_precision():
    tenth = np.full(1_000_001, 0.1, dtype=np.float32)
    mean = dict(Scores(tenth, tenth).means("accuracy"))["accuracy"]
    assert mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)


# ---- drift --------------------------------------------------------------------------
def weights(*values: float) -> dict[str, torch.Tensor]:
    return {"a": torch.tensor(values[:2]), "b": torch.tensor([[values[2]]])}


def test_drift_is_mean_length_and_mean_cosine_of_the_steps():
    start = weights(1.0, 1.0, 1.0)
    local = [weights(4.0, 5.0, 1.0), weights(4.0, -3.0, 1.0), weights(1.0, 1.0, 7.0)]
    # steps (3, 4, 0), (3, -4, 0), (0, 0, 6); their mean is (2, 0, 2)
    found = drift(local, start)
    assert found["distance"] == pytest.approx((5 + 5 + 6) / 3)
    cosines = [3 / (5 * math.sqrt(2)), 3 / (5 * math.sqrt(2)), 1 / math.sqrt(2)]
    assert found["agreement"] == pytest.approx(np.mean(cosines))


def test_clients_that_step_alike_agree_fully():
    found = drift([weights(2.0, 1.0, 1.0)] * 3, weights(1.0, 1.0, 1.0))
    assert found == {"distance": pytest.approx(1), "agreement": pytest.approx(1)}


def test_opposed_steps_do_not_agree():
    local = [weights(3.0, 0.0, 0.0), weights(-3.0, 0.0, 0.0)]
    assert drift(local, weights(0.0, 0.0, 0.0))["agreement"] == pytest.approx(0)


def test_counters_do_not_count_as_drift():
    start = {**weights(0.0, 0.0, 0.0), "seen": torch.tensor(0)}
    local = [{**weights(1.0, 0.0, 0.0), "seen": torch.tensor(1_000)}]
    assert drift(local, start)["distance"] == pytest.approx(1)


def test_clients_that_did_not_move_have_no_distance():
    found = drift([weights(1.0, 2.0, 3.0)] * 2, weights(1.0, 2.0, 3.0))
    assert found["distance"] == 0
    assert math.isfinite(found["agreement"])
