"""Groups of clients, what they count, and nearness to the right one of several."""

import math
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlab_support.methods.shared.clustering import finch
from fedlab_support.methods.shared.grouping import (
    ALGORITHMS,
    centres,
    contrast,
    group_weights,
    grouped,
    groups_of,
    regrouped,
)
from tests.support.methods.test_reference import vectors

pytestmark = pytest.mark.usefixtures("one_thread")


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def blobs(sizes, width: int = 40, apart: float = 1.0, noise: float = 0.05):
    """Points around one centre per size, and who belongs where."""
    rng = stream(len(sizes))
    middle = 3 + apart * torch.randn(len(sizes), width, generator=rng)
    true = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    points = middle[true] + noise * torch.randn(len(true), width, generator=rng)
    order = torch.randperm(len(true), generator=rng)
    return points[order], true[order]


def same_partition(a, b) -> bool:
    return torch.equal(a[:, None] == a, b[:, None] == b)


# ---- groups -------------------------------------------------------------------------
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("sizes", [(10, 6, 3, 2), (2, 2, 2, 2, 2), (5, 3)])
def test_types_that_differ_are_found(algorithm, sizes):
    points, true = blobs(sizes)
    labels = grouped(points, len(sizes), algorithm)
    assert labels.dtype == torch.int64
    is_same = labels[:, None] == labels
    assert not (is_same & (true[:, None] != true)).any(), "nobody is among others"
    assert algorithm == "finch" or same_partition(labels, true)


@pytest.mark.parametrize("algorithm", ["gmm", "kmeans"])
def test_a_type_of_one_client_is_a_group(algorithm):
    points, true = blobs((7, 4, 1))
    assert same_partition(grouped(points, 3, algorithm), true)


def test_a_mixture_has_a_variance_for_each_dimension():
    t = torch.linspace(-1, 1, 12)
    lying, standing = torch.stack([3 * t, 0 * t], 1), torch.stack([0 * t, t / 10], 1)
    points = torch.cat([lying, standing + torch.tensor([1, 0.5])])
    true = torch.arange(2).repeat_interleave(12)
    assert same_partition(grouped(points, 2), true)
    assert not same_partition(grouped(points, 2, "kmeans"), true)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scale_and_place_of_points_do_not_matter(scale):
    points, true = blobs((6, 3, 2))
    assert same_partition(grouped(scale * (points + 7), 3), true)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_groups_are_numbered_by_their_first_member_and_drawn_alike(algorithm):
    points = torch.randn(12, 5, generator=stream())
    labels = grouped(points, 4, algorithm)
    first = [labels.tolist().index(g) for g in range(int(labels.max()) + 1)]
    assert first == sorted(first) and labels[0] == 0
    np.random.rand(3)
    torch.rand(3)
    assert torch.equal(labels, grouped(points, 4, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    ("points", "most"),
    [
        (torch.ones(1, 3), 1),
        (torch.zeros(4, 3), 1),
        (torch.tensor([[0.0, 1.0], [2.0, 0.0]]), 2),
        (torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]] * 2), 2),
    ],
)
def test_there_are_no_more_groups_than_different_points(algorithm, points, most):
    labels = grouped(points, 5, algorithm)
    assert set(labels.tolist()) == set(range(int(labels.max()) + 1))
    assert int(labels.max()) + 1 <= most
    if most > 1 and algorithm != "finch":  # it joins two points
        assert int(labels.max()) + 1 == most


def test_one_group_holds_everybody():
    points, _ = blobs((4, 3))
    for algorithm in ALGORITHMS:
        assert grouped(points, 1, algorithm).sum() == 0


def test_finch_takes_its_coarsest_partition_with_enough_groups():
    points = torch.randn(150, 3, generator=stream(2))
    partitions = finch(points.double())
    counts = [int(p.max()) + 1 for p in partitions]
    assert len(counts) > 2
    for wanted, which in (
        (counts[1], 1),
        (counts[1] + 1, 0),
        (counts[0] + 1, 0),
        (2, -1),
    ):
        assert same_partition(grouped(points, wanted, "finch"), partitions[which])


def test_k_means_steps_in_where_no_mixture_can_be_fitted(monkeypatch):
    from sklearn.mixture import GaussianMixture

    points, true = blobs((5, 4, 2))

    def fail(self, points):
        raise ValueError("ill-defined empirical covariance")

    monkeypatch.setattr(GaussianMixture, "fit_predict", fail)
    assert same_partition(grouped(points, 3, "gmm"), true)


@pytest.mark.filterwarnings("error")
def test_an_empty_group_is_left_out(monkeypatch):
    from sklearn.cluster import KMeans

    labels = np.array([4, 4, 1, 4, 1])
    monkeypatch.setattr(KMeans, "fit_predict", lambda self, points: labels)
    points = torch.randn(5, 2, generator=stream())
    assert grouped(points, 5, "kmeans").tolist() == [0, 0, 1, 0, 1]


def test_the_groups_of_the_reference_file_are_found():
    file = vectors("fedgcr_group_weights")
    for case, num in (("dif10", 5), ("dif1", 4)):
        points = torch.tensor(file[f"{case}__client_repr"])
        labels = grouped(points, num)
        true = torch.tensor(file[f"{case}__true_type"])
        assert same_partition(labels, true)
        means = torch.stack([points[labels == g].mean(0) for g in range(num)])
        memory = regrouped({}, dict(enumerate(points)), num, "gmm")
        torch.testing.assert_close(centres(memory), means)
        theirs = torch.tensor(file[f"{case}__r1__cluster_centres_first8"]).to(means)
        width = min(means.shape[1], 8)
        distance = torch.cdist(means[:, :width], theirs[:, :width])
        assert distance.min(1).values.max() < 1e-4


def test_who_is_absent_stands_for_what_it_said_last():
    rows = dict(enumerate(blobs((3, 3))[0]))
    memory = regrouped({}, {3: rows[0], 1: rows[1]}, 2, "gmm")
    assert memory["clients"].tolist() == [1, 3]
    memory = regrouped(memory, {2: rows[2], 3: rows[3]}, 2, "gmm")
    assert memory["clients"].tolist() == [1, 2, 3]
    expected = torch.stack([rows[1], rows[2], rows[3]])
    assert torch.equal(memory["representations"], expected)
    assert torch.equal(memory["groups"], grouped(expected, 2))
    assert torch.equal(groups_of(memory, [3, 1]), memory["groups"][[2, 0]])


# ---- weights ------------------------------------------------------------------------
@pytest.mark.parametrize("case", ["dif10", "dif1", "q0", "q5"])
def test_weights_are_those_of_the_reference_file(case):
    file = vectors("fedgcr_group_weights")
    names = {name.split("__")[1] for name in file if name.startswith(f"{case}__r")}
    assert names
    shares, losses, types = (
        torch.tensor(file[f"{case}__{name}"])
        for name in ("data_weights", "loss", "true_type")
    )
    for name in names:
        beta = float(file[f"{case}__{name}__beta_paper"])
        found = group_weights(shares, losses, types, beta, float(file[f"{case}__q"]))
        expected = torch.tensor(file[f"{case}__{name}__paper_normalised"]).double()
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


SHARES = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05], dtype=torch.float64)
LOSSES = torch.tensor([2.0, 0.5, 1.5, 0.1, 3.0])
GROUPS = torch.tensor([0, 1, 0, 1, 2])


def test_weights_by_hand():
    # group means 1.75, 0.3, 3
    mean = [1.75, 0.3, 1.75, 0.3, 3.0]
    for beta, q in ((0.0, 0.0), (0.25, 1.0), (1.0, 2.0), (0.5, -0.5)):
        u = [
            w * (loss ** (1 - beta) * m**beta) ** (q + 1)
            for w, loss, m in zip(SHARES.tolist(), LOSSES.tolist(), mean, strict=True)
        ]
        expected = torch.tensor(u, dtype=torch.float64) / sum(u)
        found = group_weights(SHARES, LOSSES, GROUPS, beta, q)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
        assert (found > 0).all() and found.sum().item() == pytest.approx(1, abs=1e-15)
    w = SHARES * LOSSES
    found = group_weights(SHARES, LOSSES, GROUPS, 0.0, 0.0)
    torch.testing.assert_close(found, w / w.sum())


def test_equal_losses_and_a_power_of_none_give_the_shares():
    equal = torch.full((5,), 0.7)
    for found in (
        group_weights(SHARES, equal, GROUPS, 0.4, 3.0),
        group_weights(SHARES, LOSSES, GROUPS, 0.4, -1.0),
    ):
        torch.testing.assert_close(found, SHARES, rtol=1e-15, atol=0)
    near = group_weights(SHARES, LOSSES, GROUPS, 0.4, -1 + 1e-6)
    assert 0 < (near - SHARES).abs().max() < 1e-5


def test_a_group_of_one_does_not_depend_on_beta():
    own = torch.arange(5)
    one, other = (group_weights(SHARES, LOSSES, own, beta, 1.0) for beta in (0.0, 0.9))
    torch.testing.assert_close(one, other)
    assert not torch.allclose(one, group_weights(SHARES, LOSSES, GROUPS, 0.9, 1.0))


def test_neither_a_common_scale_of_losses_nor_names_of_groups_matter():
    found = group_weights(SHARES, LOSSES, GROUPS, 0.3, 1.0)
    torch.testing.assert_close(
        group_weights(SHARES, 1000 * LOSSES, GROUPS, 0.3, 1.0), found
    )
    renamed = torch.tensor([7, 2, 7, 2, 5])
    assert torch.equal(group_weights(SHARES, LOSSES, renamed, 0.3, 1.0), found)


def test_losses_of_zero_and_huge_powers_stay_finite():
    losses = torch.tensor([0.0, 0.0, 1e-30, 1e4, 1e30])
    for q in (-0.9, 1.0, 50.0):
        found = group_weights(SHARES, losses, GROUPS, 0.5, q)
        assert found.isfinite().all() and found.sum().item() == pytest.approx(1)
    zero = group_weights(SHARES, torch.zeros(5), GROUPS, 0.5, 1.0)
    torch.testing.assert_close(zero, SHARES)


def test_a_group_that_falls_behind_counts_more():
    before = group_weights(SHARES, LOSSES, GROUPS, 0.0, 1.0)
    after = group_weights(SHARES, LOSSES, GROUPS, 0.5, 1.0)
    assert after[2] > before[2] and after[1] < before[1], "drawn to their groups"


# ---- contrast -----------------------------------------------------------------------
def by_hand(x, known, right, tau) -> float:
    def cosine(a, b):
        return (
            sum(p * q for p, q in zip(a, b, strict=True))
            / math.hypot(*a)
            / math.hypot(*b)
        )

    total = 0.0
    for i, row in enumerate(x.tolist()):
        mine = known[i].tolist() if known.ndim == 3 else known.tolist()
        each = [math.exp(cosine(row, k) / tau) for k in mine]
        total -= math.log(each[right] / sum(each))
    return total / len(x)


@pytest.mark.parametrize("tau", [0.5, 0.07])
def test_the_contrast_is_that_of_the_equation(tau):
    rng = stream(3)
    x = torch.randn(4, 6, generator=rng) + 1
    for known in (
        torch.randn(5, 6, generator=rng),
        torch.randn(4, 2, 6, generator=rng),
    ):
        for right in range(known.shape[-2]):
            found = contrast(x, known, torch.tensor([right]), tau).item()
            assert found == pytest.approx(by_hand(x, known, right, tau), rel=1e-4)
            assert found >= 0


def test_a_small_example_by_hand():
    x = torch.tensor([[3.0, 4.0]])
    known = torch.tensor([[6.0, 8.0], [4.0, -3.0]])  # cosines 1 and 0
    found = contrast(x, known, torch.tensor([0]), 0.5)
    assert found.item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)
    wrong = contrast(x, known, torch.tensor([1]), 0.5)
    assert wrong.item() == pytest.approx(math.log(1 + math.exp(2)), rel=1e-6)


def test_it_is_least_where_the_point_is_parallel_to_the_right_one():
    rng = stream(4)
    known, right = torch.eye(6)[:4] + 0.1, torch.tensor([2])
    best = contrast(7 * known[2:3], known, right, 0.5)
    for _ in range(50):
        x = torch.randn(1, 6, generator=rng)
        others = known @ known[2] / known.norm(dim=1) / known[2].norm()
        if (F.cosine_similarity(x, known[[0, 1, 3]]) >= others[[0, 1, 3]] - 1e-6).all():
            assert contrast(x, known, right, 0.5) >= best - 1e-6
    equal = torch.ones(3, 2, 6)
    same = contrast(torch.randn(3, 6, generator=rng), equal, torch.tensor([0]), 0.5)
    assert same.item() == pytest.approx(math.log(2)), "z_0 = z_prev"


def test_vectors_of_length_zero_give_numbers_and_gradients():
    x = torch.zeros(2, 3, requires_grad=True)
    known = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    loss = contrast(x, known, torch.tensor([1]), 0.5)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2)) and x.grad.isfinite().all()


def test_clustering_in_two_threads_leaves_warnings_on():
    points, before = torch.randn(12, 3), list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: grouped(points, 3, "kmeans"), range(40)))
    assert warnings.filters == before
