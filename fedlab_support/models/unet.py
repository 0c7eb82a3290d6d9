"""U-Net, which classifies each pixel, and a narrow version for laptops."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from .stages import Staged, for_images, norm2d


def double(channels_in: int, channels_out: int, norm: str) -> nn.Sequential:
    """Twice: 3x3 convolution, normalisation, ReLU. Height and width stay."""
    layers, without = [], norm == "none"
    for channels in (channels_in, channels_out):
        layers.append(nn.Conv2d(channels, channels_out, 3, padding=1, bias=without))
        layers += [norm2d(norm, channels_out), nn.ReLU()]
    return nn.Sequential(*layers)


class Up(nn.Module):
    """Double height and width, and concatenate a map of the encoder."""

    def __init__(self, channels_in: int, channels_out: int, norm: str):
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(channels_in, channels_out, 2, stride=2)
        self.convolve = double(2 * channels_out, channels_out, norm)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Maps (B, C, 2H, 2W) from ``x`` (B, 2C, H, W), ``skip`` (B, C, 2H, 2W)."""
        return self.convolve(torch.cat([self.enlarge(x), skip], dim=1))


class UNet(Staged):
    """Encoder, bottleneck, and a decoder with skip connections from the encoder.

    The stages are the poolings after the encoder's ``blocks``, and the bottleneck: a
    layer that is added to a stage acts on the pooled map, not on the skip connection.
    Layers for skip connections belong in ``bypasses``. ``encode`` returns the decoder's
    last map (B, D, H, W); the head, a 1x1 convolution, turns it into logits
    (B, M, H, W).

    image_shape:  (C, H, W); H and W multiples of 16, or 2 to the number of poolings.
    num_classes:  M, including the background.
    widths:       channels of the blocks and the bottleneck.
    norm:         see ``stages.norm2d``.

    Raises ValueError for another H or W, here and in ``encode``.
    Source: Ronneberger et al., 2015; with norms and widths as in FedFA.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int = 2,
        widths: tuple[int, ...] = (32, 64, 128, 256, 512),
        norm: str = "batch",
    ):
        channels, *sides = image_shape
        *encoder, deepest = pairwise((channels, *widths))
        poolings = [nn.Sequential(nn.MaxPool2d(2)) for _ in encoder]
        stages = nn.ModuleList([*poolings, double(*deepest, norm)])
        decoder = [Up(*pair, norm) for pair in pairwise(reversed(widths))]
        head = nn.Conv2d(widths[0], num_classes, 1)
        super().__init__(stages, widths, nn.ModuleList(decoder), head)
        self.blocks = nn.ModuleList(double(*pair, norm) for pair in encoder)
        self.bypasses = nn.ModuleList(nn.Sequential() for _ in encoder)
        self._refuse(*sides)

    def _refuse(self, height: int, width: int) -> None:
        side = 2 ** len(self.blocks)
        if height % side or width % side or not height * width:
            raise ValueError(
                f"expected sides that are multiples of {side} pixels, since the map is "
                f"halved {len(self.blocks)} times, found {height}x{width}; resize or "
                "pad the images and their masks"
            )

    def encode(self, x: Tensor) -> Tensor:
        """Features (B, D, H, W) of the pixels of images (B, C, H, W)."""
        self._refuse(*x.shape[2:])
        *poolings, bottleneck = self.stages
        skips = []
        paths = zip(self.blocks, self.bypasses, poolings, strict=True)
        for block, bypass, pool in paths:
            x = block(x)
            skips.append(bypass(x))
            x = pool(x)
        x = bottleneck(x)
        for up in self.neck:
            x = up(x, skips.pop())
        return x


@for_images
def unet(image_shape, num_classes: int = 2, norm: str = "batch") -> UNet:
    """The U-Net of FedFA; 7,763,074 parameters for three channels: 29.6 MiB.

    Source: *Federated Feature Augmentation and Alignment*, section 6.1.
    """
    return UNet(image_shape, num_classes, norm=norm)


@for_images
def small_unet(image_shape, num_classes: int = 2, norm: str = "batch") -> UNet:
    """U-Net at a quarter of the channels."""
    return UNet(image_shape, num_classes, (8, 16, 32, 64, 128), norm)
