"""How far clients drift apart in a round, and how features fill the sphere."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


def drift(local: list[dict[str, Tensor]], start: dict[str, Tensor]) -> dict[str, float]:
    """Length and agreement of the clients' steps in one round.

    local:  K dictionaries of weights after local training.
    start:  the weights they received. Only floating tensors count.

    Returns ``distance`` (mean Euclidean length of a client's step) and ``agreement``
    (mean cosine between a client's step and the mean step, in [-1, 1]).
    """
    names = [name for name, value in start.items() if value.is_floating_point()]
    steps = torch.stack(
        [torch.cat([(w[n] - start[n]).flatten() for n in names]) for w in local]
    )
    mean = steps.mean(0, keepdim=True)
    return {
        "distance": steps.norm(dim=1).mean().item(),
        "agreement": F.cosine_similarity(steps, mean).mean().item(),
    }


def alignment(u: Tensor, v: Tensor, power: float = 2) -> float:
    """Mean distance to the ``power`` between paired unit vectors (N, D).

    Raises ValueError when a row does not have length 1 or has no partner.
    Source: Wang and Isola, ICML 2020.
    """
    if u.shape != v.shape:
        raise ValueError(
            f"alignment needs pairs, found {tuple(u.shape)} and {tuple(v.shape)}"
        )
    _refuse_unnormalised(u, v)
    # mean_i ||u_i - v_i||^a
    return (u - v).norm(dim=1).pow(power).mean().item()


MOST_VECTORS = 2_000
"""Limit of ``uniformity``, which then compares two million pairs."""


def uniformity(u: Tensor, t: float = 2) -> float:
    """Uniformity of unit vectors (N, D) on the sphere; 0: all are equal.

    Raises ValueError when a row does not have length 1, and for fewer than two or more
    than MOST_VECTORS vectors.
    Source: Wang and Isola, ICML 2020, over unordered pairs as in their code.
    """
    _refuse_unnormalised(u)
    if not 2 <= len(u) <= MOST_VECTORS:
        raise ValueError(
            f"uniformity compares all pairs of 2…{MOST_VECTORS:,} vectors, found "
            f"{len(u):,}; take a seeded subset"
        )
    # log mean_{i<j} exp(-t ||u_i - u_j||²)
    squared = torch.pdist(u).square()
    return (torch.logsumexp(-t * squared, 0) - np.log(len(squared))).item()


def _refuse_unnormalised(*rows: Tensor) -> None:
    for vectors in rows:
        if not len(vectors):
            raise ValueError("expected at least one vector, found none")
        off = (vectors.norm(dim=1) - 1).abs().max()
        if not off < 1e-3:
            raise ValueError(
                f"expected vectors of length 1, found one that differs by {off:.3g}; "
                "use torch.nn.functional.normalize(features) first"
            )
