"""Measures agree with hand-made numbers and with scikit-learn."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torch.func import vmap
from torch.nn import functional as F

from fedlab_support.core.metrics import (
    Scores,
    per_class,
    task,
)

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


@pytest.mark.parametrize("classes", [2, 5, 15, 16, 40])
def test_losses_and_slopes_are_pytorchs_for_few_classes_and_many(classes):
    """Also where torch.func.vmap looks at one part of the samples after the other."""
    logits, y = guesses(classes=classes)
    slopes, by = torch.linspace(-1, 2, 40), {"reduction": "none"}
    losses = F.cross_entropy(wanted := logits.clone().requires_grad_(), y, **by)
    losses.backward(slopes)
    for share in (1, 4):
        parts = [values.unflatten(0, (share, -1)) for values in (logits, y, slopes)]
        own = parts[0].clone().requires_grad_()
        found = vmap(TASK.losses)(own, parts[1])
        found.backward(parts[2])
        torch.testing.assert_close(found.flatten(), losses)
        torch.testing.assert_close(own.grad.flatten(0, 1), wanted.grad)
    mixed = F.one_hot(y, classes) * 0.5 + 0.5 / classes
    torch.testing.assert_close(
        TASK.losses(logits, mixed), F.cross_entropy(logits, mixed, **by)
    )


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
    known = r"\['classification', 'regression', 'segmentation'\], found 'dance'"
    with pytest.raises(ValueError, match=known):
        task("dance")


def test_groups_are_measured_apart():
    scores = Scores(
        loss=np.array([1.0, 2.0, 3.0, 6.0]), score=np.array([1.0, 0.0, 1.0, 1.0])
    )
    groups = np.array([2, 0, 2, 2])
    photo, art = (dict(scores.means("accuracy", groups == group)) for group in (0, 2))
    assert photo == {"accuracy": 0.0, "loss": 2.0}
    assert art == {"accuracy": 1.0, "loss": pytest.approx(10 / 3)}


def test_means_are_taken_in_double_precision():
    tenth = np.full(1_000_001, 0.1, dtype=np.float32)
    mean = dict(Scores(tenth, tenth).means("accuracy"))["accuracy"]
    assert mean == pytest.approx(float(np.float32(0.1)), rel=1e-12)


# ---- features by class --------------------------------------------------------------
def test_features_of_pictures_are_of_their_class_as_they_are():
    z, y = torch.randn(3, 4), torch.tensor([1, 0, 1])
    assert all(a is b for a, b in zip(per_class(z, y), (z, y), strict=True))


@pytest.mark.parametrize("coarse", [1, 2])
def test_features_of_maps_are_means_over_each_class_that_is_there(coarse):
    stream = torch.Generator().manual_seed(0)
    z = torch.randn(3, 5, 6 // coarse, 4 // coarse, generator=stream).requires_grad_()
    y = torch.full((3, 6, 4), 2)
    y[0, :3], y[1, 1:, 1:] = 7, 0  # the last picture has one class
    rows, classes = per_class(z, y)
    assert classes.tolist() == [2, 7, 0, 2, 2]
    fine = z.repeat_interleave(coarse, 2).repeat_interleave(coarse, 3)
    for row, c, i in zip(rows, classes, [0, 0, 1, 1, 2], strict=True):
        torch.testing.assert_close(row, fine[i][:, y[i] == c].mean(1))
    (gradient,) = torch.autograd.grad(rows.sum(), z)
    assert gradient.isfinite().all()


def test_a_class_on_less_than_one_position_has_features_of_its_own():
    features = torch.arange(4.0).view(1, 1, 2, 2)
    masks = torch.zeros(1, 4, 4, dtype=torch.int64)
    masks[0, 3, 3] = 1  # a quarter of the last position
    found, classes = per_class(features, masks)
    assert classes.tolist() == [0, 1]
    torch.testing.assert_close(found, torch.tensor([[(6 - 0.25 * 3) / 3.75], [3.0]]))
