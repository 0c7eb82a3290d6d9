"""Reconstruction metrics: per image, per set of images, and of what they reveal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

LEAST_PROBABILITY = 1e-12
"""Lower bound of probabilities, so that logarithms are finite."""


def psnr(found: Tensor, true: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB, (N,), of colours (N, C, H, W) in 0…1.

    20 dB is a root mean squared error of a tenth of the range; equal images have inf.
    """
    if found.shape != true.shape:
        raise ValueError(
            "expected as many rebuilt images as true ones, of one shape, found "
            f"{tuple(found.shape)} and {tuple(true.shape)}"
        )
    # 10 log10(1 / MSE)
    return -10 * (found - true).double().square().flatten(1).mean(1).log10()


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Fréchet distance of two sets of features, (N, D) and (M, D).

    Each set counts as a normal distribution with its mean and sample covariance. The
    features are of any network: only with Inception's is it the FID. Small samples
    look far apart: compare sets of equal size, ten times D or more.
    Raises ValueError for values that are not finite.
    Source: Heusel et al., NeurIPS 2017, equation 6.
    """
    a, b = a.double().flatten(1), b.double().flatten(1)
    if not (a.isfinite().all() and b.isfinite().all()):
        raise ValueError("features must be finite, found NaN or infinite values")
    first, second = (torch.atleast_2d(torch.cov(x.T)) for x in (a, b))
    # (S1 S2)^½ has the trace of (S1^½ S2 S1^½)^½, which is symmetric: nothing complex
    values, vectors = torch.linalg.eigh(first)
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    both = torch.linalg.eigvalsh(root @ second @ root).clamp(min=0).sqrt().sum()
    # |m1 - m2|² + Tr(S1 + S2 - 2 (S1 S2)^½)
    apart = (a.mean(0) - b.mean(0)).square().sum()
    return max(0.0, (apart + first.trace() + second.trace() - 2 * both).item())


def class_score(probabilities: Tensor) -> float:
    """Confidence and diversity of class probabilities (N, M), from 1 to M.

    1: the same distribution for every image; M: every prediction is certain, and all
    classes are equally frequent. With Inception's classes it is the Inception Score.
    Source: Salimans et al., NeurIPS 2016, section 4.
    """
    p = probabilities.double()
    log_p = p.clamp(min=LEAST_PROBABILITY).log()
    log_mean = p.mean(0).clamp(min=LEAST_PROBABILITY).log()
    # exp E_x KL(p(y|x) ‖ E p(y|x))
    return (p * (log_p - log_mean)).sum(1).mean().exp().item()


def retrieval_rate(found: Tensor, true: Tensor) -> float:
    """Share of rows of ``found`` (N, …) whose nearest row of ``true`` is their own.

    Row i of both belongs to image i. Guessing gives 1/N, and so does one and the same
    answer for all; of rows that are equally near, the first counts.
    """
    found, true = found.double().flatten(1), true.double().flatten(1)
    nearest = torch.cdist(found, true).argmin(1)
    own = torch.arange(len(true), device=true.device)
    return (nearest == own).double().mean().item()


def guess(known: Tensor, labels: np.ndarray, asked: Tensor) -> np.ndarray:
    """Predict labels for ``asked``, (M,), by a logistic regression fitted on ``known``.

    known:  examples, such as styles, (N, …).
    labels: labels of ``known``, (N,).
    asked:  examples without a label, (M, …).

    Values are scaled by the mean and deviation of ``known``.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    scaled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    with threadpool_limits(1):  # many small products: more threads wait for each other
        scaled.fit(known.flatten(1).double().cpu().numpy(), labels)
        return scaled.predict(asked.flatten(1).double().cpu().numpy())


def over_seeds(values: Iterable[Mapping[str, float]]) -> pd.Series:
    """Numbers of each seed as texts, "mean ± s.d."; – for the s.d. of one seed."""
    table = pd.DataFrame(values)
    spread = table.std().map("{:.1f}".format).replace("nan", "–")
    return table.mean().map("{:.1f}".format) + " ± " + spread
