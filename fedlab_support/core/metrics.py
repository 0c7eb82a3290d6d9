"""Losses and metrics of each task, and measures of fairness, drift and features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Task(ABC):
    """The loss and the score of each sample.

    ``metric`` is the name of the score. Targets are int64, or float probabilities of
    the M classes, whose second dimension has length M.
    """

    metric: str

    @abstractmethod
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, (B,)."""

    @abstractmethod
    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """The score of each sample, float (B,) in [0, 1]; 1 is best."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss, a scalar."""
        return self.losses(output, y).mean()

    def soft(self, y: Tensor, num_classes: int) -> Tensor:
        """Targets as probabilities: (B,) → (B, M), masks (B, H, W) → (B, M, H, W).

        Targets that are probabilities already are returned unchanged.
        """
        if y.is_floating_point():
            return y
        return F.one_hot(y, num_classes).movedim(-1, 1).to(torch.float32)


def _hard(y: Tensor) -> Tensor:
    """Targets as classes: the most likely one of probabilities."""
    return y.argmax(1) if y.is_floating_point() else y


FEW = 16
"""Below this number of classes, a CPU's vector width, PyTorch's row softmax is slow."""


@dataclass(frozen=True)
class Classification(Task):
    """One class per image: cross-entropy, and accuracy as a share in [0, 1]."""

    metric: str = "accuracy"

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each sample, (B,), from logits (B, M) and classes (B,)."""
        if output.shape[1] >= FEW or y.is_floating_point():
            return F.cross_entropy(output, y, reduction="none")
        # -log softmax(o)_y, along columns
        return -output.t().log_softmax(0).gather(0, y[None])[0]

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar, from logits (B, M) and classes (B,)."""
        return F.cross_entropy(output, y)

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """1 where the largest logit is the true class, else 0; float (B,)."""
        return (output.argmax(1) == _hard(y)).to(torch.float32)


def dice(predicted: Tensor, true: Tensor) -> Tensor:
    """Dice of each mask, (B,), from bool masks (B, H, W); 1 where both are empty."""
    both = (predicted & true).sum((1, 2))
    each = predicted.sum((1, 2)) + true.sum((1, 2))
    return torch.where(each == 0, 1.0, 2 * both / each)


SMOOTH = 1.0
"""Pixels added to numerator and denominator of the soft Dice, for empty masks."""


@dataclass(frozen=True)
class Segmentation(Task):
    """A foreground mask per image: soft Dice loss, and Dice as a share in [0, 1].

    Dice is computed per sample and averaged over samples. The released code of HarmoFL
    and FedFA trains on the mean of cross-entropy and 1 - soft Dice, over all pixels of
    a batch and over both classes, and reports the mean Dice of background and
    foreground, which is higher: take care when comparing with the papers.

    Source: Milletari et al., 3DV 2016, section 3, with sums of probabilities in place
    of sums of squares.
    """

    metric: str = "dice"

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """1 - soft Dice, (B,), from logits (B, 2, H, W) and masks (B, H, W) of 0, 1."""
        p = output.softmax(1)[:, 1].flatten(1)
        t = (y[:, 1] if y.is_floating_point() else y == 1).flatten(1)
        # 1 - (2 Σ p t + s) / (Σ p + Σ t + s)
        both, each = (p * t).sum(1), p.sum(1) + t.sum(1)
        return 1 - (2 * both + SMOOTH) / (each + SMOOTH)

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """Dice of the predicted foreground, (B,); 1 where both masks are empty."""
        return dice(output.argmax(1) == 1, _hard(y) == 1)


TASKS: dict[str, Task] = {
    "classification": Classification(),
    "segmentation": Segmentation(),
}


def task(name: str) -> Task:
    """The task of that name; raises ValueError if there is none."""
    if name not in TASKS:
        raise ValueError(f"expected a task in {sorted(TASKS)}, found {name!r}")
    return TASKS[name]


def per_class(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Feature vectors (R, D) of one class each, and their classes (R,).

    Features (B, D) of images with classes (B,) are returned unchanged. Feature maps
    (B, D, h, w) with masks (B, H, W) are averaged over the area of each class in each
    image.
    """
    if y.ndim == 1:
        return features, y
    classes = y.unique()
    masks = (y[:, None] == classes[:, None, None]).to(features)
    # a position of a coarser map is weighted by the share of its pixels in the class
    masks = F.adaptive_avg_pool2d(masks, features.shape[-2:])
    area, sums = masks.sum((2, 3)), torch.einsum("bmhw,bdhw->bmd", masks, features)
    found = area > 0
    return sums[found] / area[found][:, None], classes[found.nonzero()[:, 1]]


def of_another_class(y: Tensor, rng: torch.Generator) -> Tensor:
    """For each sample, the index of a random sample of another class, int64 (B,).

    y:    classes (B,).
    rng:  a CPU generator.
    Returns -1 where all samples have the same class.
    """
    differs = (y[:, None] != y).double().cpu()
    found, has_any = torch.full((len(y),), -1), differs.any(1)
    if has_any.any():
        drawn = torch.multinomial(differs[has_any], 1, generator=rng)
        found[has_any] = drawn[:, 0]
    return found.to(y.device)


@dataclass(frozen=True)
class Scores:
    """The ``loss`` and the ``score`` of each sample of a split, float (N,) each."""

    loss: np.ndarray
    score: np.ndarray

    def means(self, metric: str, where=slice(None)) -> Iterator[tuple[str, float]]:
        """Mean score (named ``metric``) and mean loss of the samples at ``where``."""
        yield metric, float(self.score[where].mean(dtype=np.float64))
        yield "loss", float(self.loss[where].mean(dtype=np.float64))


def per_group(scores: Scores, metric: str, groups: np.ndarray, names):
    """Yield (group name, metric, value) for every group that is not empty.

    groups:  int (N,), positions in ``names``.
    """
    for group in np.flatnonzero(np.bincount(groups)):
        for what, value in scores.means(metric, groups == group):
            yield names[group], what, value


def macro_f1(predicted: np.ndarray, true: np.ndarray) -> float:
    """Mean F1 over the classes that occur in ``true``, each with equal weight.

    predicted, true:  classes, int (N,).

    F1 is 2 hits / (predicted + true), 0 without a hit. It is not a mean over samples,
    so a run does not record it: compute it from the predictions of ``run.model``.
    Source: Koh et al., ICML 2021 (WILDS), for iWildCam.
    """
    predicted, true = np.asarray(predicted), np.asarray(true)
    if predicted.shape != true.shape or predicted.size == 0:
        raise ValueError(
            "expected one predicted class for each true one, found shapes "
            f"{predicted.shape} and {true.shape}"
        )
    classes, num = np.unique(true, return_counts=True)
    hits = np.array([(predicted[true == c] == c).sum() for c in classes])
    num_predicted = np.array([(predicted == c).sum() for c in classes])
    return float(np.mean(2 * hits / (num_predicted + num)))


def fairness(scores: np.ndarray, types: np.ndarray) -> dict[str, float]:
    """Mean, spread and minimum of scores over clients and over types of clients.

    scores:  one per client, (K,), shares or per cent.
    types:   (K,), any values; in one of the paper's tables, the domain of each client.

    A client may be tested on the whole test set of its domain, as in the paper, or on
    samples of its own. Returns:

    avg_type, avg_client:  means over types, each the mean of its clients, and over
        clients. The paper's tables print ``avg_type`` and call it the average over
        clients.
    sigma_type, sigma_client:  population standard deviations. A low one with a low
        average is not fairness.
    worst_type, worst_client:  the lowest.

    Raises ValueError for different lengths or a score that is not finite.
    Source: Cheng et al., AAAI 2024 (FedGCR), "Evaluation Metrics", and their code.
    """
    scores, types = np.asarray(scores, dtype=np.float64), np.asarray(types)
    _refuse_unpaired(scores, types, "a score")
    if not np.isfinite(scores).all():
        raise ValueError(
            f"expected a finite score for every client, found "
            f"{scores[~np.isfinite(scores)][:3]}; leave out clients without samples"
        )
    each = np.array([scores[types == one].mean() for one in np.unique(types)])
    return {
        f"{what}_{name}": float(measure(values))
        for name, values in (("type", each), ("client", scores))
        for what, measure in (("avg", np.mean), ("sigma", np.std), ("worst", np.min))
    }


def cluster_accuracy(clusters: np.ndarray, types: np.ndarray) -> float:
    """Share of clients whose type is the most common one in their cluster, in (0, 1].

    clusters, types:  (K,). Splitting a type is not penalised: with K clusters it is 1.
    Raises ValueError for different lengths.
    Source: Cheng et al., AAAI 2024 (FedGCR), Table 3.
    """
    clusters, types = np.asarray(clusters), np.asarray(types)
    _refuse_unpaired(clusters, types, "a cluster")
    matching = [
        np.unique(types[clusters == one], return_counts=True)[1].max()
        for one in np.unique(clusters)
    ]
    return sum(matching) / len(types)


def _refuse_unpaired(values: np.ndarray, types: np.ndarray, what: str) -> None:
    if values.ndim != 1 or values.shape != types.shape or len(values) == 0:
        raise ValueError(
            f"expected {what} and a type for every client, found shapes {values.shape} "
            f"and {types.shape}"
        )


def drift(local: list[dict[str, Tensor]], start: dict[str, Tensor]) -> dict[str, float]:
    """How far clients moved in one round, and how well their steps agree.

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
    """How far unit vectors (N, D) are from covering the sphere; 0: all at one point.

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
