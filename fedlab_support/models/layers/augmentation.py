"""A layer that perturbs the mean and deviation of features, channel by channel."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...core.checks import Range, checked
from ...core.rng import current_layer_noise

EPSILON = 1e-6
"""Added to every variance before taking its square root."""

RANDOM_DEVIATION = 0.5
"""Standard deviation of noise that does not depend on statistics."""


def modulation(variances: Tensor) -> Tensor:
    """The relative variance of each channel between clients: gamma, with sum C.

    variances:  V ≥ 0, (…, C).
    Source: Zhou, Konukoglu, ICLR 2023, section 3.2.
    """
    # q = 1 / (1 + 1 / V);  gamma = C q / sum_j q_j
    q = (variances + EPSILON) / (1 + variances + EPSILON)
    return q / q.mean(-1, keepdim=True)


SHARE = Range(at_least=0, at_most=1)
FUSIONS = ("adaptive", "direct", "client", "random")
"""Scales of the noise; see ``FeatureAugmentation``."""


class FeatureAugmentation(nn.Module):
    """Gaussian noise on the mean and deviation of each image's channels.

    In training a batch (B, C, H, W) is changed with probability ``p``; 0 draws nothing.
    Statistics are pairs (2, C), first of the means, then of the deviations:

    moments:    moving average over batches, with weight 1 - ``alpha`` for each.
    variances:  variances between clients, received from the server; initially 1.

    The noise is scaled according to ``fusion``: by the batch's own variance times
    gamma + 1 ("adaptive") or V + 1 ("direct"), by that variance alone ("client"), or by
    a constant ("random"). A batch of one image or one pixel has no variance and is not
    changed. Raises ValueError for p or alpha outside [0, 1] and for an unknown fusion.

    Source: Zhou, Konukoglu, ICLR 2023, section 3; code at 57e9582, whose variances of
    pixels and images are unbiased: we follow it there.
    """

    @checked(p=SHARE, alpha=SHARE, fusion=Range(one_of=FUSIONS))
    def __init__(
        self,
        channels: int,
        p: float = 0.5,
        alpha: float = 0.99,
        fusion: str = "adaptive",
    ):
        super().__init__()
        self.p, self.alpha, self.fusion = p, alpha, fusion
        self.register_buffer("moments", torch.empty(2, channels))
        self.register_buffer("variances", torch.ones(2, channels), persistent=False)
        self.forget()

    def forget(self) -> None:
        """Reset the moments to mean 0 and deviation 1."""
        self.moments[0], self.moments[1] = 0, 1

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself, or noisy, in its shape and type."""
        is_off = not self.training or self.p == 0
        if is_off or len(x) < 2 or x.shape[2:].numel() < 2:
            return x
        rng = current_layer_noise()
        if torch.rand((), generator=rng) > self.p:
            return x
        return self.perturb(x, torch.randn((2, *x.shape[:2]), generator=rng))

    def perturb(self, x: Tensor, noise: Tensor) -> Tensor:
        """``x`` with standard normal ``noise`` (2, B, C) on its statistics."""
        kind, x = x.dtype, x.to(torch.promote_types(x.dtype, self.moments.dtype))
        mean = x.mean((2, 3))
        centred = x - mean[..., None, None]
        variance = centred.square().sum((2, 3)) / (x.shape[2:].numel() - 1)
        own = torch.stack([mean, (variance + EPSILON).sqrt()])
        with torch.no_grad():
            recent = own.mean(1).to(self.moments)
            self.moments.lerp_(recent, 1 - self.alpha)
        # mu^ = mu + eps Sigma^_mu;  sigma^ = sigma + eps Sigma^_sigma
        noisy = own + noise.to(own) * self._scale(own)
        # Y = sigma^ (X - mu) / sigma + mu^
        stretch, shift = noisy[1] / own[1], noisy[0]
        y = torch.addcmul(shift[..., None, None], centred, stretch[..., None, None])
        return y.to(kind)

    def _scale(self, own: Tensor) -> Tensor | float:
        """Standard deviation of the noise, (2, 1, C), for statistics (2, B, C)."""
        if self.fusion == "random":
            return RANDOM_DEVIATION
        v = self.variances[:, None]
        gamma = {"adaptive": modulation(v), "direct": v, "client": 0}[self.fusion]
        # Sigma^² = (gamma + 1) (var_b + epsilon)
        return ((gamma + 1) * (own.var(1, keepdim=True) + EPSILON)).sqrt()

    def extra_repr(self) -> str:
        """What ``print(model)`` shows inside the brackets."""
        settings = f"p={self.p}, alpha={self.alpha}, fusion={self.fusion!r}"
        return f"{self.moments.shape[1]}, {settings}"
