"""Layers that mix the samples of a batch in pairs, which are drawn once per step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ...core.messages import wide

MOMENTS = {"pono": (1,), "in": (2, 3), "ln": (1, 2, 3)}
"""Axes of mean and deviation: channels, positions, or both."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """The pairs of samples that are mixed in one step.

    order:  int64 (B,), a permutation: the partner of each sample.
    share:  float (B,), in [0, 1]: the weight of the sample itself; its partner has the
            rest.
    """

    order: Tensor
    share: Tensor

    @classmethod
    def draw(cls, x: Tensor, share: float | np.ndarray, rng: np.random.Generator):
        """Random pairs for a batch ``x``, (B, …); ``share``: one for all, or (B,)."""
        shares = np.broadcast_to(share, len(x)).astype(np.float32)
        order = torch.from_numpy(rng.permutation(len(x)))
        return cls(order.to(x.device), torch.from_numpy(shares).to(x.device))

    def partners(self, values: Tensor) -> Tensor:
        """The partner's entry for each entry of ``values`` (B, …)."""
        if len(values) != len(self.order):
            raise ValueError(
                f"expected the batch of {len(self.order)} samples, so that each has "
                f"its partner, found {len(values)} samples; pass whole batches to the "
                "network or train without this augmentation"
            )
        return values[self.order]

    def mix(self, values: Tensor) -> Tensor:
        """Lambda v_i + (1 - lambda) v_pi(i), of the shape and type of ``values``."""
        if not values.is_floating_point():
            raise ValueError(
                f"only floats can be mixed, found {values.dtype}, as of tokens; mix "
                "features of a stage, or train without this augmentation"
            )
        partners = self.partners(values)
        share = self.share.view(-1, *[1] * (values.ndim - 1))
        return (share * values + (1 - share) * partners).to(values.dtype)


def moments(h: Tensor, over: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Mean and sqrt(variance + eps), unbiased, of ``h`` along the axes ``over``."""
    variance, mean = torch.var_mean(h, over, keepdim=True)
    return mean, (variance + eps).sqrt()


class PairLayer(nn.Module):
    """Acts in training only, and only while an augmentation gives it ``pairs``."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: Pairs | None = None

    def forward(self, h: Tensor) -> Tensor:
        """Features of the shape and type of ``h`` (B, …); computed in float32."""
        if self.pairs is None or not self.training:
            return h
        return self.mixed(wide(h), self.pairs).to(h.dtype)

    def mixed(self, h: Tensor, pairs: Pairs) -> Tensor:
        """``h`` mixed by ``pairs``."""
        raise NotImplementedError


class FeatureMixing(PairLayer):
    """Mixes whole features: h_i becomes lambda h_i + (1 - lambda) h_pi(i)."""

    def mixed(self, h: Tensor, pairs: Pairs) -> Tensor:
        """Gradients reach both partners."""
        return pairs.mix(h)


class StyleMixing(PairLayer):
    """Mixes each channel's mean and deviation with the partner's, (B, C, H, W)."""

    EPS = 1e-6

    def mixed(self, h: Tensor, pairs: Pairs) -> Tensor:
        """Moments are constants for the gradient; maps of one position stay."""
        if h.shape[2] * h.shape[3] == 1:
            return h
        mu, sigma = moments(h.detach(), MOMENTS["in"], self.EPS)
        # (x - mu) / sigma · (lambda sigma + (1 - lambda) sigma_pi) + mixed mu
        return (h - mu) / sigma * pairs.mix(sigma) + pairs.mix(mu)


class MomentExchange(PairLayer):
    """Gives features (B, C, H, W) the moments of the partner's.

    kind:  a key of ``MOMENTS``.
    Raises ValueError for features that have one value per mean.
    """

    EPS = 1e-5

    def __init__(self, kind: str):
        super().__init__()
        self.over = MOMENTS[kind]

    def forward(self, h: Tensor) -> Tensor:
        """Check the features in every mode, so that errors occur before training."""
        if math.prod(h.shape[axis] for axis in self.over) < 2:
            raise ValueError(
                "a deviation needs two values, found one in features "
                f"{tuple(h.shape)} along the axes {self.over}; choose another stage "
                f"or other moments out of {sorted(MOMENTS)}"
            )
        return super().forward(h)

    def mixed(self, h: Tensor, pairs: Pairs) -> Tensor:
        """Gradients reach both partners."""
        mu, sigma = moments(h, self.over, self.EPS)
        # sigma_pi (h - mu) / sigma + mu_pi
        return pairs.partners(sigma) * (h - mu) / sigma + pairs.partners(mu)
