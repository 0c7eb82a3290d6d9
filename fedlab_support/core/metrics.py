"""Losses and metrics of each task, and features by class."""

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
    the M classes, whose second dimension has length M; in a regression any floats.
    """

    metric: str

    @abstractmethod
    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, (B,)."""

    @abstractmethod
    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """The score of each sample, float (B,): at most 1, and negative only for R²."""

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


@dataclass(frozen=True)
class Regression(Task):
    """M numbers per sample: squared error, and the share of variance explained.

    The mean score of samples is R²: 1 is perfect, 0 as good as always predicting the
    mean, and worse is negative. The variance is that of the whole data set, so that
    clients and domains are on one scale.

    variance:  of each target, (M,).
    """

    metric: str = "r2"
    variance: tuple[float, ...] = (1.0,)

    def losses(self, output: Tensor, y: Tensor) -> Tensor:
        """Squared error of each sample, mean over targets: (B,), from (B, M) each."""
        return (output - y).square().mean(1)

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """1 - (o - y)² / variance, mean over targets, (B,)."""
        return 1 - ((output - y).square() / y.new_tensor(self.variance)).mean(1)


TASKS: dict[str, Task] = {
    "classification": Classification(),
    "segmentation": Segmentation(),
    "regression": Regression(),
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
