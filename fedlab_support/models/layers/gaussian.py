"""A head on a Gaussian distribution of features instead of a point."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST = 1e-6
"""Lower bound of a standard deviation before taking its logarithm."""


class GaussianHead(nn.Module):
    """Turn features (B, F) into a Gaussian over D features, and those into logits.

    Features may be maps (B, F, H, W), of which every pixel is one.

    num_features:     D. None adds no layer: the two halves of the input are mean and
                      deviation, and the classifier takes the whole input.
    reference_mean:   m_y, (M, D), the mean of the Gaussian of each class.
    reference_scale:  rho_y, (M, D), whose softplus is its deviation.
    stretch:          c, which scales mean and deviation before the comparison with the
                      reference.

    Raises ValueError for an odd F without ``num_features``.

    Source: Nguyen, Torr, Lim, NeurIPS 2022; code at ba8d894.
    """

    def __init__(self, in_features: int, num_classes: int, num_features: int | None):
        super().__init__()
        self.split, width, depth = nn.Identity(), in_features, in_features // 2
        if num_features is None and in_features % 2:
            raise ValueError(
                "expected an even number of features, to split in two halves, found "
                f"{in_features}; use an encoder of even width"
            )
        if num_features is not None:
            self.split = nn.Linear(in_features, 2 * num_features)
            width = depth = num_features
        self.classifier = nn.Linear(width, num_classes)
        self.reference_mean = nn.Parameter(torch.zeros(num_classes, depth))
        self.reference_scale = nn.Parameter(torch.ones(num_classes, depth))
        self.stretch = nn.Parameter(torch.ones(()))

    def gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of z, (B, D) or (B, H, W, D) each."""
        mu, s = self.split(features.movedim(1, -1)).chunk(2, dim=-1)
        return mu, F.softplus(s)

    def sample(self, mu: Tensor, sigma: Tensor, num: int, rng: torch.Generator):
        """``num`` draws z = mu + eps sigma, (num, B, D) or (num, B, H, W, D)."""
        eps = torch.randn((num, *mu.shape), generator=rng).to(mu)
        return torch.addcmul(mu, eps, sigma)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, M) without noise: of the mean, or of the whole input."""
        whole = self.split(features.movedim(1, -1))
        return self.logits(whole[..., : self.classifier.in_features])

    def logits(self, z: Tensor) -> Tensor:
        """Logits (B, M) of z (B, D), or (B, M, H, W) of z (B, H, W, D)."""
        return self.classifier(z).movedim(-1, 1)

    def cmi(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """KL(N(c mu, c² sigma²) || N(m_y, tau_y²)), summed over D, mean over y."""
        m = F.embedding(y, self.reference_mean)  # its backward pass is fast
        tau = F.softplus(F.embedding(y, self.reference_scale))
        deviation = (self.stretch * sigma).clamp(min=SMALLEST)
        # log(tau/s) + (s² + (c mu - m)²) / (2 tau²) - 1/2, in units of tau
        ratio, shift = deviation / tau, (self.stretch * mu - m) / tau
        divergence = (ratio.square() + shift.square() - 1) / 2 - ratio.log()
        return divergence.sum() / y.numel()
