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
    alignment,
    drift,
    per_class,
    per_group,
    task,
    uniformity,
)
from tests.support.methods.test_reference import vectors

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
    known = r"\['classification', 'segmentation'\], found 'dance'"
    with pytest.raises(ValueError, match=known):
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


# ---- alignment and uniformity -------------------------------------------------------
def on_the_sphere(num: int = 12, width: int = 5, seed: int = 0) -> torch.Tensor:
    """Unit vectors (N, D), float64."""
    stream = torch.Generator().manual_seed(seed)
    rows = torch.randn(num, width, generator=stream, dtype=torch.float64)
    return F.normalize(rows)


def test_alignment_and_uniformity_are_those_of_the_authors_code():
    arrays = vectors("align_uniform")
    x, y = (torch.from_numpy(arrays[name]) for name in "xy")
    found = {
        "align_a2": alignment(x, y),
        "align_a1": alignment(x, y, power=1),
        "uniform_t2_x": uniformity(x),
        "uniform_t2_y": uniformity(y),
        "uniform_t3_x": uniformity(x, t=3),
    }
    for name, value in found.items():
        assert value == pytest.approx(float(arrays[name]), rel=1e-5), name


@pytest.mark.parametrize("power", [1, 2, 3.5])
def test_alignment_is_the_mean_distance_of_pairs(power):
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    slow = [
        sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) ** (power / 2)
        for p, q in zip(u.tolist(), v.tolist(), strict=True)
    ]
    assert alignment(u, v, power) == pytest.approx(np.mean(slow), rel=1e-12)
    assert alignment(u, v, power) == alignment(v, u, power), "symmetric"
    assert alignment(u, u, power) == 0
    assert alignment(u, -u, power) == pytest.approx(2**power)


def test_squared_alignment_is_two_minus_twice_the_mean_cosine():
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    cosine = F.cosine_similarity(u, v).mean().item()
    assert alignment(u, v) == pytest.approx(2 - 2 * cosine, rel=1e-12)


@pytest.mark.parametrize("t", [0.5, 2, 3])
def test_uniformity_is_over_distinct_unordered_pairs(t):
    u = on_the_sphere().tolist()
    slow = [
        math.exp(-t * sum((a - b) ** 2 for a, b in zip(u[i], u[j], strict=True)))
        for i in range(12)
        for j in range(i)
    ]
    found = uniformity(on_the_sphere(), t)
    assert found == pytest.approx(math.log(np.mean(slow)), rel=1e-12)


def test_a_common_rotation_changes_neither():
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    stream = torch.Generator().manual_seed(2)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=stream, dtype=u.dtype)).Q
    assert alignment(u @ turn, v @ turn) == pytest.approx(alignment(u, v), rel=1e-10)
    assert uniformity(u @ turn) == pytest.approx(uniformity(u), rel=1e-10)
    assert alignment(u @ turn, v) != pytest.approx(alignment(u, v), rel=1e-3)


def test_collapse_is_perfectly_aligned_and_not_uniform_at_all():
    point = on_the_sphere(1).expand(6, 5)
    assert alignment(point, point) == 0
    assert uniformity(point) == pytest.approx(0, abs=1e-12)
    assert uniformity(on_the_sphere(6)) < -1


@pytest.mark.parametrize("t", [2, 3])
def test_antipodes_are_as_far_as_can_be(t):
    point = on_the_sphere(1)
    assert uniformity(torch.cat([point, -point]), t) == pytest.approx(-4 * t)


def test_a_point_twice_is_less_uniform_and_wider_spread_more():
    u = on_the_sphere()
    assert uniformity(torch.cat([u, u[:1]])) > uniformity(u)
    angles = [torch.linspace(0, wide, 7, dtype=u.dtype) for wide in (0.5, 1.5, 3.0)]
    arcs = [uniformity(torch.stack([a.cos(), a.sin()], 1)) for a in angles]
    assert arcs == sorted(arcs, reverse=True) and arcs[0] > arcs[2] + 1


@pytest.mark.parametrize("spoil", [2.0, 0.99, 0.0, float("nan")])
def test_vectors_of_another_length_are_refused_with_a_cure(spoil):
    u, v = on_the_sphere(seed=0), on_the_sphere(seed=1)
    off = v.clone()
    off[3] *= spoil
    for measure in (
        lambda: alignment(u, off),
        lambda: alignment(off, u),
        lambda: uniformity(off),
    ):
        with pytest.raises(
            ValueError, match=r"length 1, found .* differs by.*normalize"
        ):
            measure()
    assert alignment(u.float(), F.normalize(3 * v.float())) == pytest.approx(
        alignment(u, v), rel=1e-5
    )


@pytest.mark.parametrize("count", [1, 2_001])
def test_uniformity_of_one_vector_or_of_very_many_is_refused(count):
    with pytest.raises(ValueError, match=f"pairs of 2…2,000 vectors, found {count:,}"):
        uniformity(on_the_sphere(count))


@pytest.mark.parametrize("measure", [uniformity, lambda u: alignment(u, u)])
def test_no_vectors_at_all_are_refused(measure):
    with pytest.raises(ValueError, match="at least one vector"):
        measure(torch.zeros(0, 3))


def test_alignment_needs_a_partner_for_every_vector():
    with pytest.raises(ValueError, match=r"pairs.*\(12, 5\).*\(1, 5\)"):
        alignment(on_the_sphere(), on_the_sphere(1))


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
