"""Soft histograms of features, and the divergence between two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NARROWEST = 1e-8
"""A channel with a smaller range of values is constant and is not rescaled."""

SMALLEST_SHARE = 1e-8
"""Added to a share before taking its logarithm."""

MOST_VALUES = 2**20
"""Number of memberships computed at once, which fit a core's cache."""


def extent(z: Tensor) -> Tensor:
    """Minimum and maximum of each channel of ``z`` (C, n), as (2, C), detached."""
    return torch.stack(z.detach().aminmax(dim=1))


def soft_bins(z: Tensor, bins: int, temperature: float) -> Tensor:
    """The membership of each value in each of L = ``bins`` bins: (C, n) → (C, L, n).

    The memberships of a value sum to 1; as ``temperature`` → 0 it is in one bin only.
    The L - 1 cuts between bins are equally spaced from 0 to 1, so values outside fall
    into the first or last bin; two bins are cut at 0.5. Raises ValueError for fewer.

    Source: Yang, Morillo, Hospedales, arXiv:1806.06988, equation 1.
    """
    if bins < 2:
        raise ValueError(f"a histogram has at least 2 bins, found {bins}")
    weights = torch.arange(1, bins + 1, dtype=torch.float64)[:, None]
    # rho_j = (j - 1) / (L - 2);  w = 1…L;  beta_l = -sum_{j<l} rho_j
    cuts = (weights[:-1] - 1) / (bins - 2) if bins > 2 else weights[:-1] / 2
    offsets = -F.pad(cuts, (0, 0, 1, 0)).cumsum(0)
    # softmax((w z + beta) / tau)
    w, beta = torch.stack([weights, offsets]).div(temperature).to(z)
    return torch.addcmul(beta, z[:, None], w).softmax(1)


def soft_histogram(
    z: Tensor, extent: Tensor, bins: int = 8, temperature: float = 0.01
) -> Tensor:
    """The share of each channel's values in each bin: (C, n) → (C, L), rows sum to 1.

    extent:  the values, (2, C), that are mapped to 0 and 1, without gradient. A
             constant channel is mapped to 0.

    Source: Zhou, Yuan, Wang, Konukoglu, *Federated Feature Augmentation and Alignment*,
    section 3.3.
    """
    low, high = extent.to(z)[..., None]
    width = high - low
    is_wide = width > NARROWEST
    # z^ = (z - min) / (max - min)
    scaled = (z - low) * (is_wide / torch.where(is_wide, width, 1))
    rows = max(1, MOST_VALUES // (bins * z.shape[1]))
    parts = [soft_bins(part, bins, temperature).mean(2) for part in scaled.split(rows)]
    return torch.cat(parts)


def symmetric_kl(p: Tensor, q: Tensor) -> Tensor:
    """Half of KL(p || q) + KL(q || p) in nats, for each row of two (C, L): (C,)."""
    # 1/2 sum_l (p - q) (log p - log q)
    ratio = (p + SMALLEST_SHARE).log() - (q + SMALLEST_SHARE).log()
    return ((p - q) * ratio).sum(1) / 2


def expect_shares(pi: Tensor, bins: int) -> None:
    """Raise ValueError unless ``pi`` is (C, bins) with rows of shares that sum to 1."""
    is_table = pi.ndim == 2 and pi.shape[1] == bins and bool((pi >= 0).all())
    if not (is_table and ((pi.sum(1) - 1).abs() < 1e-3).all()):
        raise ValueError(
            f"a histogram must hold {bins} shares ≥ 0 that sum to 1 for each channel, "
            f"found {pi} of shape {tuple(pi.shape)}"
        )


class FeatureHistogram(nn.Module):
    """The identity on features (B, C, H, W), with soft histograms of recorded ones.

    bins, temperature:  of ``soft_histogram``.
    pool:               use one value per image and channel, the mean of its pixels,
                        instead of one per pixel.

    Inside a ``listening`` block it records its inputs with gradients. This is a layer
    instead of a hook because compiled networks ignore hooks that are added later.
    """

    def __init__(self, bins: int = 8, temperature: float = 0.01, pool: bool = False):
        super().__init__()
        self.bins, self.temperature, self.pool = bins, temperature, pool
        self._recorded: list[Tensor] | None = None  # None outside listening()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        if self._recorded is not None:
            self._recorded.append(x)
        return x

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """The inputs recorded inside the block, one tensor per call of the network."""
        self._recorded = recorded = []
        try:
            yield recorded
        finally:
            self._recorded = None

    def values(self, recorded: list[Tensor]) -> Tensor:
        """All values of each channel, float (C, n), in batches of features."""
        if self.pool:
            recorded = [features.mean((2, 3), keepdim=True) for features in recorded]
        return torch.cat([x.float().transpose(0, 1).flatten(1) for x in recorded], 1)

    def shares(self, z: Tensor, extent: Tensor) -> Tensor:
        """The histogram (C, L) of values (C, n) between ``extent`` (2, C)."""
        return soft_histogram(z, extent, self.bins, self.temperature)

    @staticmethod
    def as_shares(values: Tensor) -> Tensor:
        """Clip rows (C, L) at 0 and normalise them to sum 1; uniform if all are 0."""
        kept = values.relu() + SMALLEST_SHARE
        return kept / kept.sum(1, keepdim=True)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows inside the brackets."""
        return f"{self.bins}, temperature={self.temperature}, pool={self.pool}"
