"""Normalisation by frequencies: amplitudes are evened out, the phase is kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fft import irfft2, rfft2
from torch.nn import functional as F

from ...core.messages import wide

FLOOR = 1e-5
"""Smallest squared amplitude, and smallest real part where a phase is taken."""


def amplitude(spectrum: Tensor) -> Tensor:
    """|F| of a spectrum, at least sqrt(1e-5), where its gradient is 0."""
    power = spectrum.real.square() + spectrum.imag.square()
    return power.clamp(min=FLOOR).sqrt()


def compose(spectrum: Tensor, amplitudes: Tensor, size: tuple[int, int]) -> Tensor:
    """Real values (…, H, W) with the phase of ``spectrum`` and the given amplitudes.

    spectrum, amplitudes:  (…, H, W//2 + 1), as returned by ``rfft2``. Real parts within
        1e-5 of 0 are set to 1e-5.
    size:  (H, W).
    """
    real, imag = spectrum.real, spectrum.imag
    real = torch.where(real.abs() < FLOOR, FLOOR, real)
    # A e^(j phi) = A z / |z|
    scale = amplitudes / (real.square() + imag.square()).sqrt()
    return irfft2(torch.complex(real * scale, imag * scale), s=size)


def _per_channel(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)


class SCNorm(nn.Module):
    """Adjusts style: mixes the amplitudes of features with their normalised ones.

    channels:  C of the features (B, C, H, W).

    It learns an affine map per channel and two logits, initially 0 for equal shares.
    Federated averaging averages the logits, not the shares. Computed in float32; maps
    of one position are not changed.

    Source: Lee, Bae, Kim, CVPR 2023 (DAC-SC).
    """

    TEMPERATURE, EPS = 0.1, 1e-5

    def __init__(self, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """compose(phi(X), a1 A(IN(X)) + a2 A(X)) · w + b, of the type of ``x``."""
        size = x.shape[-2:]
        if size.numel() == 1:
            return x
        h = wide(x)
        a1, a2 = torch.softmax(self.logits / self.TEMPERATURE, 0)
        own, normal = rfft2(h), rfft2(F.instance_norm(h, eps=self.EPS))
        mixed = a1 * amplitude(normal) + a2 * amplitude(own)
        y = compose(own, mixed, size)
        return (y * _per_channel(self.weight) + _per_channel(self.bias)).to(x.dtype)


class CCNorm(nn.BatchNorm2d):
    """Adjusts content: amplitudes of batch normalisation, phase less q1 · the mean.

    norm:  the layer it replaces, whose parameters and buffers it takes over.

    With its low temperature the softmax is 1/2 for equal logits and otherwise a switch
    that does not learn: 1 is batch normalisation, 0 keeps the phase (PCNorm). Computed
    in float32; maps of one position are batch-normalised.

    Source: Lee, Bae, Kim, CVPR 2023 (DAC-SC).
    """

    TEMPERATURE = 1e-6

    def __init__(self, norm: nn.BatchNorm2d):
        super().__init__(norm.num_features, norm.eps, norm.momentum)
        self.load_state_dict(norm.state_dict())
        self.logits = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        """compose(phi(X - q1 m), A(BN(X))) · gamma + beta, of the type of ``x``."""
        h = wide(x)
        mean = h.mean((0, 2, 3)) if self.training else self.running_mean
        normal = self._normalised(h)
        if (size := x.shape[-2:]).numel() > 1:
            q1, _ = torch.softmax(self.logits / self.TEMPERATURE, 0)
            content = rfft2(h - q1 * _per_channel(mean))
            normal = compose(content, amplitude(rfft2(normal)), size)
        y = normal * _per_channel(self.weight) + _per_channel(self.bias)
        return y.to(x.dtype)

    def _normalised(self, x: Tensor) -> Tensor:
        """Batch normalisation without its affine map; may update the statistics."""
        kept = self.running_mean, self.running_var
        if self.training and not self.track_running_stats:
            kept = None, None
        elif self.training:
            self.num_batches_tracked.add_(1)
        settings = {"momentum": self.momentum, "eps": self.eps}
        return F.batch_norm(x, *kept, training=self.training, **settings)
