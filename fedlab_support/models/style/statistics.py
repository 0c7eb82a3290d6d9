"""Styles, which are means and deviations of features, and AdaIN.

A **style** is one tensor (2, C): row 0 the mean of every channel, row 1 its deviation.

Source: Huang and Belongie, ICCV 2017, equations 5 to 8.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

EPSILON = 1e-5
"""Added to every variance, as in the authors' code but not in the paper: the deviation
of a constant channel is √ε ≈ 0.0032, not 0."""


def per_image(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every channel of every image, (B, C, 1, 1) each.

    features: (B, C, h, w). Raises ValueError where h · w is below 2.
    """
    if features[0, 0].numel() < 2:
        raise ValueError(
            "the deviation of a channel needs two places, found features of shape "
            f"{tuple(features.shape)}; enlarge the images"
        )
    # σ = √(Σ (F - μ)² / (hw - 1) + ε)
    variance, mean = torch.var_mean(features, (2, 3), keepdim=True)
    return mean, (variance + EPSILON).sqrt()


def style_of_each(features: Tensor) -> Tensor:
    """The style of every image, (B, 2, C), from features (B, C, h, w)."""
    return torch.stack(per_image(features), 1).flatten(2)


def adain(features: Tensor, style: Tensor) -> Tensor:
    """Features (B, C, h, w) with the means and deviations of a style.

    style: (2, C), or (B, 2, C) with one for each image. Raises ValueError for a style
    of another number of channels.
    """
    if style.shape[-2:] != (2, features.shape[1]):
        raise ValueError(
            f"expected a style (2, {features.shape[1]}) of this encoder, found "
            f"{tuple(style.shape)}; measure it with the same network"
        )
    mean, deviation = per_image(features)
    style_mean, style_deviation = style[..., None, None].to(features).unbind(-4)
    # σ_S (F - μ(F)) / σ(F) + μ_S
    return style_deviation * ((features - mean) / deviation) + style_mean


def pooled(batches: Iterable[Tensor]) -> Tensor:
    """The style (2, C) of all images together, as those of one client.

    batches: features (B, C, h, w), any sizes. The population variance over images and
    positions is summed in float64, so that it does not depend on the batches. Raises
    ValueError without an image.

    Source: Chen et al., WACV 2023, section 3.2.
    """
    sums, count = 0, 0
    for features in batches:
        values = features.transpose(0, 1).flatten(1).double()
        sums = sums + torch.stack([values.sum(1), (values**2).sum(1)])
        count += values.shape[1]
    if not count:
        raise ValueError(
            "expected features of at least one image, found none; a client without "
            "images has no style"
        )
    mean, square = sums / count
    # σ = √(E[F²] - μ² + ε); rounding may leave the difference below 0
    deviation = ((square - mean**2).clamp(min=0) + EPSILON).sqrt()
    return torch.stack([mean, deviation]).float()
