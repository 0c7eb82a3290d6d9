"""A frozen encoder and decoder for style transfer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional as F

from .statistics import adain

POOL = 0  # among the widths of an encoder: halves height and width


class StyleNetwork(nn.Module):
    """A frozen encoder and decoder, never trained or sent, always in evaluation mode.

    channels:  C, of features and styles.
    stride:    pixels of an image per position of its features.

    Images may require gradients.
    """

    def __init__(
        self, encoder: nn.Module, decoder: nn.Module, channels: int, stride: int
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.channels, self.stride = channels, stride
        self.requires_grad_(False).train(False)

    def train(self, mode: bool = True) -> StyleNetwork:
        """Stay in evaluation mode."""
        return super().train(False)

    def encode(self, colours: Tensor) -> Tensor:
        """Features (B, C, h, w) of colours in 0…1, (B, 1 or 3, H, W).

        Raises ValueError for other channels, values outside 0…1 by more than 0.001 or
        NaN, and sides of at most ``stride`` pixels.
        """
        return self.encoder(self.checked(colours))

    def decode(self, features: Tensor, size: Sequence[int]) -> Tensor:
        """Colours in 0…1, (B, 3, H, W), of features; ``size`` is (H, W)."""
        colours = self.decoder(features)
        if colours.shape[-2:] != tuple(size):
            colours = F.interpolate(colours, tuple(size), mode="bilinear")
        return colours.clamp(0, 1)

    def transfer(self, colours: Tensor, style: Tensor, strength: float = 1.0) -> Tensor:
        """Colours in another style, of the same shape; grey ones stay grey.

        style:     (2, C), or (B, 2, C) with one for each image.
        strength:  from 0, encoded and decoded only, to 1; ValueError for another.
        """
        if not 0 <= strength <= 1:
            raise ValueError(f"strength must lie in 0…1, found {strength}")
        features = self.encode(colours)
        # t = α AdaIN(F, S) + (1 - α) F
        mixed = features.lerp(adain(features, style), strength)
        styled = self.decode(mixed, colours.shape[-2:])
        return styled.mean(1, keepdim=True) if colours.shape[1] == 1 else styled

    def checked(self, colours: Tensor) -> Tensor:
        """The colours expanded to three channels, after checking them."""
        if colours.ndim != 4 or colours.shape[1] not in (1, 3):
            raise ValueError(
                f"expected colours (B, 1 or 3, H, W), found {tuple(colours.shape)}"
            )
        if min(colours.shape[2:]) <= self.stride:
            raise ValueError(
                f"expected images of more than {self.stride} pixels a side, found "
                f"{colours.shape[2]}x{colours.shape[3]}; load the data with size="
            )
        if not ((colours >= -1e-3) & (colours <= 1 + 1e-3)).all():
            low, high = colours.min().item(), colours.max().item()
            raise ValueError(
                f"expected colours in 0…1, found {low:.3g}…{high:.3g}; a normalised "
                "batch becomes colours by store.shown(x)"
            )
        return colours.expand(-1, 3, -1, -1)


def mirrored(
    widths: Sequence[int], has_stem: bool
) -> tuple[nn.Sequential, nn.Sequential]:
    """An encoder of 3x3 convolutions, and the decoder that is its mirror image.

    widths:    channels after each convolution, with POOL in between.
    has_stem:  begin with a 1x1 convolution, which normalises colours as in training.
    """
    convolved = [3, *(width for width in widths if width != POOL)]
    pairs = list(pairwise(convolved))
    forward, back = iter(pairs), reversed(pairs)
    encoder: list[nn.Module] = [nn.Conv2d(3, 3, 1)] if has_stem else []
    for width in widths:
        if width == POOL:
            encoder.append(nn.MaxPool2d(2, ceil_mode=True))
        else:
            encoder += [nn.ReflectionPad2d(1), nn.Conv2d(*next(forward), 3), nn.ReLU()]
    decoder: list[nn.Module] = []
    for width in reversed(widths):
        if width == POOL:
            decoder.append(nn.Upsample(scale_factor=2))
        else:
            pair = next(back)
            decoder += [nn.ReflectionPad2d(1), nn.Conv2d(*pair[::-1], 3), nn.ReLU()]
    decoder.pop()  # no ReLU after the colours
    return nn.Sequential(*encoder), nn.Sequential(*decoder)
