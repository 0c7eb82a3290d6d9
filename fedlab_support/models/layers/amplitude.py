"""A layer in front of the network that gives all images the same amplitude."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.fft import fft2, ifft2


class AmplitudeNorm(nn.Module):
    """Replace the Fourier amplitude of images by a common one and keep their phase.

    image_shape:  (C, H, W) of the images.
    whole:        True: at all frequencies; False: at frequency 0 only, which shifts
                  each channel to one common brightness, up to its sign.

    ``amplitude`` is the common one, (C, H, W), or (C, 1, 1) of frequency 0. Images are
    not changed before the first call of ``observe`` or ``fix``.
    """

    def __init__(self, image_shape: tuple[int, int, int], whole: bool):
        super().__init__()
        channels, *size = image_shape
        shape = (channels, *size) if whole else (channels, 1, 1)
        self.whole = whole
        self.register_buffer("amplitude", torch.zeros(shape))
        self.register_buffer("num_batches", torch.tensor(0))
        self.register_buffer("is_fixed", torch.tensor(False))

    def spectrum(self, x: Tensor) -> Tensor:
        """The complex spectrum of images (B, C, H, W), or its frequency 0 only."""
        return fft2(x) if self.whole else x.sum((-2, -1), keepdim=True) + 0j

    @torch.no_grad()
    def observe(self, x: Tensor, decay: float) -> None:
        """Update the moving average of the amplitude with a batch of weight ``decay``.

        The first batch sets it. Sums are in double precision, since frequency 0 is much
        larger than the others.
        """
        mean = self.spectrum(x).abs().mean(0, dtype=torch.float64)
        # A <- (1 - nu) A + nu mean |F x|
        share = decay if self.num_batches else 1.0
        self.amplitude.copy_(self.amplitude.double().lerp(mean, share))
        self.num_batches += 1

    @torch.no_grad()
    def fix(self, amplitude: Tensor) -> None:
        """Set the amplitude, and stop following batches."""
        self.amplitude.copy_(amplitude)
        self.is_fixed.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W), unchanged or with the common amplitude."""
        spectrum = self.spectrum(x)
        common = self.amplitude.to(x).expand(spectrum.shape)
        # only the change is transformed back: F^-1(A e^(j phi) - F x)
        change = torch.polar(common, spectrum.angle()) - spectrum
        change = ifft2(change) if self.whole else change / x[0, 0].numel()
        return torch.where(self.is_fixed | (self.num_batches > 0), x + change.real, x)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows inside the brackets."""
        return f"{tuple(self.amplitude.shape)}, whole={self.whole}"
