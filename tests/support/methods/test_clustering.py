"""FINCH: the authors' partitions, a slow form, and what holds for all points."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedlab_support import clustering
from fedlab_support.methods.shared.clustering import (
    cluster_means,
    finch,
    means_by_group,
)
from tests.support.methods.test_reference import vectors

DISTANCES = ("cosine", "euclidean")
either = pytest.mark.parametrize("distance", DISTANCES)

pytestmark = pytest.mark.usefixtures("one_thread")


def cloud(num: int, width: int = 5, seed: int = 0, shift: float = 0.5) -> torch.Tensor:
    stream = torch.Generator().manual_seed(seed)
    return torch.randn(num, width, generator=stream) + shift


def nearest(points: torch.Tensor, distance: str) -> list[int]:
    points = points.double()
    return clustering._nearest(points @ points.T, distance).tolist()


def sizes(partitions: torch.Tensor) -> list[int]:
    return (partitions.amax(1) + 1).tolist()


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same partitions, up to the numbering."""
    return a.shape == b.shape and all(
        adjusted_rand_score(x, y) == 1 for x, y in zip(a, b, strict=True)
    )


def slow(points: np.ndarray, distance: str) -> list[list[int]]:
    """The adjacency of the paper, entry by entry, and its components by flooding."""

    def apart(a, b):
        if distance == "euclidean":
            return np.linalg.norm(a - b)
        length = np.linalg.norm(a) * np.linalg.norm(b)
        return 1 - (a @ b / length if length else 0)

    def components(rows):
        n = len(rows)
        near = [
            min((j for j in range(n) if j != i), key=lambda j: apart(rows[i], rows[j]))
            for i in range(n)
        ]
        linked = [
            [j == near[i] or near[j] == i or near[i] == near[j] for j in range(n)]
            for i in range(n)
        ]
        found = [-1] * n
        for start in range(n):
            if found[start] < 0:
                label, waiting = max(found) + 1, [start]
                while waiting:
                    i = waiting.pop()
                    found[i] = label
                    waiting += [j for j in range(n) if linked[i][j] and found[j] < 0]
        return found

    points = points.astype(np.float64)
    found = [components(points)]
    while max(found[-1]) > 0:
        labels = np.array(found[-1])
        means = [points[labels == c].mean(0) for c in range(max(labels) + 1)]
        above = components(np.array(means))
        if max(above) == 0:
            break
        found.append([above[label] for label in labels])
    return found


# ---- the authors' numbers -----------------------------------------------------------
SETS = sorted({name.split("__")[0] for name in vectors("finch")})


@either
@pytest.mark.parametrize("name", SETS)
def test_the_partitions_are_those_of_the_official_code(name, distance):
    arrays = vectors("finch")
    found = finch(torch.from_numpy(arrays[f"{name}__X"]), distance)
    key = f"{name}__official__{distance}__ee0"
    assert sizes(found) == arrays[f"{key}__num_clust"].tolist()
    assert agree(found, torch.from_numpy(arrays[f"{key}__labels"].T))


@either
@pytest.mark.parametrize("name", SETS)
def test_the_first_neighbours_are_those_of_the_official_code(name, distance):
    arrays = vectors("finch")
    points = torch.from_numpy(arrays[f"{name}__X"])
    expected = arrays[f"{name}__first_neighbour__{distance}"]
    assert nearest(points, distance) == expected.tolist()


def test_the_sets_tell_the_distances_apart():
    assert len(SETS) == 7
    found = [
        vectors("finch")[f"gauss_60_d6__official__{d}__ee0__labels"] for d in DISTANCES
    ]
    assert adjusted_rand_score(found[0][:, 0], found[1][:, 0]) < 0.9


# ---- a slow form --------------------------------------------------------------------
@either
@pytest.mark.parametrize("num", [2, 3, 4, 7, 40])
def test_the_partitions_are_those_of_the_slow_form(num, distance):
    for seed in range(3):
        points = cloud(num, seed=seed)
        found, expected = finch(points, distance), slow(points.numpy(), distance)
        assert agree(found, torch.tensor(expected))
        assert found.dtype == torch.int64 and found.shape[1] == num


# ---- what holds for all points ------------------------------------------------------
@either
@pytest.mark.parametrize("num", [2, 5, 30, 200])
def test_partitions_form_a_hierarchy_without_gaps(num, distance):
    found = finch(cloud(num, seed=num), distance)
    counts = sizes(found)
    assert counts[0] <= num // 2, "nobody is alone"
    assert counts == sorted(set(counts), reverse=True), "they shrink"
    assert len(counts) == 1 or counts[-1] > 1
    for fine, coarse in pairwise(found):
        for label in fine.unique():
            assert len(coarse[fine == label].unique()) == 1
    for labels in found:
        assert labels.unique().tolist() == list(range(labels.max() + 1))


@either
def test_two_or_three_points_are_one_cluster_and_so_is_one(distance):
    for num in (1, 2, 3):
        assert finch(cloud(num), distance).tolist() == [[0] * num]


def test_scale_of_rows_and_rotations_do_not_matter_for_directions():
    points, stream = cloud(50), torch.Generator().manual_seed(3)
    found = finch(points)
    turn = torch.linalg.qr(torch.randn(5, 5, generator=stream)).Q
    assert agree(finch(points @ turn), found) and agree(finch(100 * points), found)
    # means are of the points as they are: one scale each matters from the second on
    scaled = points * torch.rand(50, 1, generator=stream).add(0.1).mul(100)
    assert agree(finch(scaled)[:1], found[:1])
    assert not agree(finch(scaled, "euclidean")[:1], finch(points, "euclidean")[:1])


@pytest.mark.parametrize("scale", [1e-20, 0.1, 3, 7, 10])
def test_a_common_scale_does_not_matter_where_means_have_no_length(scale):
    angle = torch.arange(8).double() * torch.pi / 4
    circle = torch.stack([angle.cos(), angle.sin(), 0 * angle], 1)
    towards = torch.tensor([[1.0, 0, 4], [0, 1, -4], [-3, 0, 4], [0, -3, -4]])
    points = torch.cat([circle, towards, towards + 0.01])
    found = finch(scale * points)
    assert (found.amax(1) + 1).tolist() == [5, 2] and agree(found, finch(points))


def test_a_common_shift_and_scale_do_not_matter_for_distances():
    points = cloud(50).double()
    found = finch(points, "euclidean")
    assert agree(finch(1e-3 * points + 1e4, "euclidean"), found)


@either
def test_permuted_points_get_permuted_labels(distance):
    points = cloud(40)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert agree(finch(points[order], distance), finch(points, distance)[:, order])


@either
def test_well_separated_groups_stay_apart_in_the_first_partition(distance):
    centres = 100 * torch.eye(4).repeat_interleave(6, 0)
    labels = finch(centres + cloud(24, 4), distance)[0]
    for label in labels.unique():
        assert (
            len((labels == label).nonzero().div(6, rounding_mode="floor").unique()) == 1
        )


@either
def test_among_equal_neighbours_the_first_counts(distance):
    a, b = torch.tensor([1.0, 2.0, 0.3]), torch.tensor([-2.0, 0.1, 1.0])
    points = torch.stack([a, b, a, a, b])
    assert nearest(points, distance) == [2, 4, 0, 0, 1]
    assert finch(points, distance).tolist() == [[0, 1, 0, 0, 1]]
    assert finch(a.expand(9, 3), distance).tolist() == [[0] * 9]
    many = cloud(30, 64).repeat(3, 1)  # each point three times, far from each other
    if distance == "cosine":  # rounding of the lengths must not decide
        many = many * torch.linspace(0.1, 7, 90)[:, None]
    first = list(range(30))
    assert nearest(many, distance) == [*range(30, 60), *first, *first]


def test_without_direction_a_point_is_nearest_to_the_first_at_a_right_angle():
    zero, x, y = torch.zeros(2), torch.tensor([1.0, 0]), torch.tensor([0, 1.0])
    points = torch.stack([zero, zero, -x, x, y, x + 0.1 * y, zero]).double()
    found = nearest(points, "cosine")
    assert found[:2] == [1, 0] and found[6] == 0
    assert found[3:6] == [5, 5, 3]
    assert finch(torch.zeros(4, 2)).tolist() == [[0] * 4]


# ---- means --------------------------------------------------------------------------
def test_means_are_those_of_the_members():
    points, labels = cloud(9, 3), torch.tensor([2, 0, 1, 1, 2, 2, 2, 0, 1])
    means = cluster_means(points, labels)
    assert means.dtype == points.dtype and means.shape == (3, 3)
    for c in range(3):
        torch.testing.assert_close(means[c], points[labels == c].mean(0))


def test_groups_are_clustered_each_on_its_own():
    points, groups = cloud(120, seed=5), torch.arange(120) % 3 * 2
    points[groups == 4] += 20
    groups[7] = 9  # a group of one
    means, owners = means_by_group(points, groups)
    assert owners.tolist() == sorted(owners.tolist())
    assert owners.dtype == torch.int64 and set(owners.tolist()) == {0, 2, 4, 9}
    for group in (0, 2, 4, 9):
        rows = points[groups == group]
        expected = cluster_means(rows, finch(rows)[-1])
        assert torch.equal(means[owners == group], expected)
    assert torch.equal(means[owners == 9], points[7:8])
    assert len(means) > 4, "some group has several clusters"
    assert len(finch(points[groups == 2])) > 1, "and several partitions"


def test_no_points_have_no_means():
    means, owners = means_by_group(torch.empty(0, 6), torch.empty(0, dtype=torch.int64))
    assert means.shape == (0, 6) and owners.shape == (0,)
    assert owners.dtype == torch.int64


# ---- what cannot be had -------------------------------------------------------------
def test_what_cannot_be_clustered_is_refused(monkeypatch):
    bad = cloud(4)
    bad[2, 1] = float("nan")
    with pytest.raises(ValueError, match="finite, found NaN"):
        finch(bad)
    with pytest.raises(ValueError, match=r"distance must be one of .*found 'cosin'"):
        finch(cloud(4), "cosin")
    for points in (torch.empty(0, 3), cloud(4)[0], cloud(4)[None]):
        with pytest.raises(ValueError, match=r"points \(n, D\).*found \("):
            finch(points)
    monkeypatch.setattr(clustering, "MOST_POINTS", 3)
    with pytest.raises(ValueError, match=r"1…3, found \(4, 5\).*seeded subset"):
        finch(cloud(4))


def test_points_are_not_changed_and_need_no_gradient():
    points = cloud(10).requires_grad_()
    before = points.detach().clone()
    assert not finch(points).requires_grad and torch.equal(points, before)
