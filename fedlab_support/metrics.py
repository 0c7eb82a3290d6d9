"""What is optimised and what is measured, per task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Classification:
    """One class per picture: cross-entropy, and accuracy as a share in [0, 1].

    Losses take class probabilities (B, M) in the place of classes (B,), too.
    """

    metric: str = "accuracy"

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each sample, (B,), from logits (B, M) and classes (B,)."""
        return F.cross_entropy(output, y, reduction="none")

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar, from logits (B, M) and classes (B,)."""
        return F.cross_entropy(output, y)

    def soft(self, y: Tensor, num_classes: int) -> Tensor:
        """Classes (B,) as probabilities, float (B, M), of which ``loss`` is linear."""
        return F.one_hot(y, num_classes).to(torch.float32)

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """1 where the largest logit is the right class, else 0; float (B,)."""
        return (output.argmax(1) == y).to(torch.float32)


TASKS = {"classification": Classification()}


def task(name: str) -> Classification:
    """The task of that name; ValueError names the known ones."""
    if name not in TASKS:
        raise ValueError(f"known tasks are {sorted(TASKS)}, found {name!r}")
    return TASKS[name]


@dataclass(frozen=True)
class Scores:
    """How each sample of one split fared: ``loss`` and ``score``, float (N,) each."""

    loss: np.ndarray
    score: np.ndarray

    def means(self, metric: str, where=slice(None)) -> Iterator[tuple[str, float]]:
        """Mean score (called ``metric``) and mean loss of the samples at ``where``."""
        yield metric, float(self.score[where].mean(dtype=np.float64))
        yield "loss", float(self.loss[where].mean(dtype=np.float64))


def per_group(scores: Scores, metric: str, groups: np.ndarray, names):
    """Yield (name of group, metric, value) for every group that has a sample.

    ``groups``: int (N,), positions in ``names``.
    """
    for group in np.unique(groups):
        for what, value in scores.means(metric, groups == group):
            yield names[group], what, value


def drift(local: list[dict[str, Tensor]], start: dict[str, Tensor]) -> dict[str, float]:
    """How far clients moved in one round, and how far they agree.

    - ``local``: K dictionaries of weights after local training; ``start``: the weights
      they received. Only floating tensors count.

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
    """Mean distance to the ``power`` between paired unit vectors (N, D); low is close.

    Raises ValueError when a row is not of length 1 or has no partner.
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
"""In :func:`uniformity`: two million pairs."""


def uniformity(u: Tensor, t: float = 2) -> float:
    """How far unit vectors (N, D) are from filling the sphere; 0: all at one point.

    Raises ValueError when a row is not of length 1, or for fewer than two vectors or so
    many that there are over two million pairs.
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
        off = (vectors.norm(dim=1) - 1).abs().max()
        if not off < 1e-3:
            raise ValueError(
                f"expected vectors of length 1, found one that is off by {off:.3g}; "
                "use torch.nn.functional.normalize(features) first"
            )
