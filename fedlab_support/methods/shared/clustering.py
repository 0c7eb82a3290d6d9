"""FINCH: hierarchical clustering without a number of clusters to choose."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DISTANCES = ("cosine", "euclidean")

MOST_POINTS = 10_000
"""Largest number of points that ``finch`` accepts; their products take 0.8 GB."""


def finch(points: Tensor, distance: str = "cosine") -> Tensor:
    """Partitions of points (n, D), fine to coarse: labels 0, 1, …, int64 (P, n).

    Every point is linked with its nearest neighbour; connected components are the
    clusters. Clustering their means the same way gives the next partition, until a
    single cluster would be left. The first partition is always returned, even if it is
    a single cluster. Neighbours are exact and links are never dropped (without the
    authors' early exit). Among neighbours whose similarities agree to 12 digits, the
    first is the nearest.

    Raises ValueError for values that are not finite, no points or too many, another
    shape or an unknown distance.
    Source: Sarfraz, Sharma, Stiefelhagen, CVPR 2019, equation 1 and Algorithm 1.
    """
    _refuse_unfit(points, distance)
    points = points.detach().double()
    if distance == "euclidean":
        points = points - points.mean(0)  # for precision
    return finch_by_products(points @ points.T, distance)


def finch_by_products(products: Tensor, distance: str = "cosine") -> Tensor:
    """As ``finch``, from the inner products of all points, float64 (n, n).

    Similarities of points, and of means of points, depend on nothing else.
    """
    products = products / products.diag().max().clamp(min=1e-300)
    partitions = [_linked(products, distance)]
    while True:
        share = _cluster_shares(partitions[-1])
        above = _linked(share @ products @ share.T, distance)
        if not above.any():
            return torch.stack(partitions)
        partitions.append(above[partitions[-1]])


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Means (C, D) of the points (n, D) of each cluster, by labels 0…C-1, (n,)."""
    return (_cluster_shares(labels) @ points.double()).to(points.dtype)


def _cluster_shares(labels: Tensor) -> Tensor:
    """The share of each point in the mean of each cluster, float64 (C, n)."""
    member = F.one_hot(labels).double()
    return (member / member.sum(0)).T


def means_by_group(points: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Means (J, D) of each group's coarsest clusters, and their groups (J,), sorted.

    points:  (n, D); n may be 0.
    groups:  int64 (n,); a group of one to three points is one cluster.
    """
    means, owners = [points[:0]], [groups[:0]]
    for group in groups.unique():
        members = points[groups == group]
        means.append(cluster_means(members, finch(members)[-1]))
        owners.append(group.expand(len(means[-1])))
    return torch.cat(means), torch.cat(owners)


def _linked(products: Tensor, distance: str) -> Tensor:
    """Connected components of the graph with edges {i, nearest of i}, int64 (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nearest = _nearest(products, distance).cpu().numpy()
    num = len(nearest)
    graph = coo_array(([1] * num, (range(num), nearest)), (num, num))
    _, labels = connected_components(graph, directed=False)
    return torch.from_numpy(labels).to(products.device, torch.int64)


def _nearest(products: Tensor, distance: str) -> Tensor:
    """The nearest other point of each, int64 (n,); a single point is its own."""
    if distance == "cosine":
        # a zero, whose product may be -1e-17, has cosine 0 to all
        length = products.diag().clamp(min=0).sqrt().clamp(min=1e-12)
        likeness = products / length / length[:, None]
    else:
        squares = products.diag()
        # |p - q|² = |p|² - (2 pq - |q|²), and |p|² is the same for all q
        likeness = (2 * products - squares) / squares.max().clamp(min=1e-300)
    # rounded, so that ties do not depend on the machine
    likeness = likeness.round(decimals=12).fill_diagonal_(-math.inf)
    return likeness.argmax(1)


def _refuse_unfit(points: Tensor, distance: str) -> None:
    if distance not in DISTANCES:
        raise ValueError(f"distance must be one of {DISTANCES}, found {distance!r}")
    if points.ndim != 2 or not 1 <= len(points) <= MOST_POINTS:
        raise ValueError(
            f"clustering needs points (n, D), n in 1…{MOST_POINTS:,}, found "
            f"{tuple(points.shape)}; flatten them, or take a seeded subset"
        )
    if not points.isfinite().all():
        raise ValueError(
            "points must be finite, found NaN or infinite values; training diverged: "
            "lower the learning rate"
        )
