"""FINCH: a hierarchy of clusters, without a number of clusters to choose."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DISTANCES = ("cosine", "euclidean")

MOST_POINTS = 10_000
"""In :func:`finch`: their similarities take 0.8 GB."""


def finch(points: Tensor, distance: str = "cosine") -> Tensor:
    """Partitions of points (n, D), fine to coarse: labels 0, 1, …, int64 (P, n).

    Every point is linked with the nearest other one; what hangs together is a cluster.
    The same with the means of the clusters' points gives the next partition, until one
    cluster would be left. The first partition is always returned; only there may be a
    single cluster. Neighbours are exact and no link is cut (the authors' early exit is
    left out). Of neighbours that are equally near to 12 digits, the first counts.

    Raises ValueError for values that are not finite, no points or too many, another
    shape or an unknown distance.
    Source: Sarfraz, Sharma, Stiefelhagen, CVPR 2019, equation 1 and Algorithm 1.
    """
    _refuse_unfit(points, distance)
    points = points.detach().double()
    partitions = [_linked(points, distance)]
    while (above := _linked(cluster_means(points, partitions[-1]), distance)).any():
        partitions.append(above[partitions[-1]])
    return torch.stack(partitions)


def cluster_means(points: Tensor, labels: Tensor) -> Tensor:
    """Means (C, D) of the points (n, D) of each cluster, by labels 0…C-1, (n,)."""
    member = F.one_hot(labels).double()
    return (member.T @ points.double() / member.sum(0)[:, None]).to(points.dtype)


def means_by_group(
    points: Tensor, groups: Tensor, distance: str = "cosine"
) -> tuple[Tensor, Tensor]:
    """Means (J, D) of each group's coarsest clusters, and their groups (J,), rising.

    ``points``: (n, D), n may be 0; ``groups``: int64 (n,). A group of one to three
    points is one cluster.
    """
    means, owners = [points[:0]], [groups[:0]]
    for group in groups.unique():
        members = points[groups == group]
        means.append(cluster_means(members, finch(members, distance)[-1]))
        owners.append(group.expand(len(means[-1])))
    return torch.cat(means), torch.cat(owners)


def _linked(points: Tensor, distance: str) -> Tensor:
    """Connected components of the graph with edges {i, nearest of i}, int64 (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    nearest = _nearest(points, distance).cpu().numpy()
    num = len(nearest)
    graph = coo_array(([1] * num, (range(num), nearest)), (num, num))
    _, labels = connected_components(graph, directed=False)
    return torch.from_numpy(labels).to(points.device, torch.int64)


def _nearest(points: Tensor, distance: str) -> Tensor:
    """The nearest other point of each, int64 (n,); a single point is its own."""
    if distance == "cosine":
        points = F.normalize(points, dim=1)  # zeros stay: at a cosine of 0 to all
        likeness = points @ points.T
    else:
        points = points - points.mean(0)  # for precision, as is the common scale
        squares = points.square().sum(1)
        # |p - q|² = |p|² - (2 pq - |q|²), and |p|² is the same for all q
        likeness = (2 * points @ points.T - squares) / squares.max().clamp(min=1e-300)
    # what differs by rounding only is equal, on every machine
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
