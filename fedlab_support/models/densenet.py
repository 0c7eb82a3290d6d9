"""DenseNet-100: every layer receives the outputs of all earlier layers of its block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .stages import Staged, for_images, is_small, norm2d, refuse_small

BOTTLENECK = 4
"""Channels between the two convolutions of a layer, as a multiple of the growth."""


def activated(channels: int, norm: str) -> list[nn.Module]:
    """Normalisation and ReLU, which precede a convolution in this network."""
    return [norm2d(norm, channels), nn.ReLU()]


class DenseLayer(nn.Sequential):
    """Norm, ReLU, 1x1 and norm, ReLU, 3x3 convolution; adds ``growth`` channels."""

    def __init__(self, channels: int, growth: int, norm: str):
        between = BOTTLENECK * growth
        super().__init__(
            *activated(channels, norm),
            nn.Conv2d(channels, between, 1, bias=False),
            *activated(between, norm),
            nn.Conv2d(between, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The input (B, C, H, W) concatenated with the new channels."""
        return torch.cat([x, super().forward(x)], dim=1)


def dense_block(channels: int, growth: int, depth: int, norm: str) -> nn.Sequential:
    """``depth`` dense layers in a row."""
    inputs = range(channels, channels + depth * growth, growth)
    return nn.Sequential(*(DenseLayer(num, growth, norm) for num in inputs))


def transition(channels: int, norm: str) -> nn.Sequential:
    """Halve the channels, height and width."""
    convolution = nn.Conv2d(channels, channels // 2, 1, bias=False)
    return nn.Sequential(*activated(channels, norm), convolution, nn.AvgPool2d(2))


def stem(image_shape, channels: int, norm: str) -> nn.Sequential:
    """The layers before the first block, for small or for large images."""
    if is_small(image_shape):
        return nn.Sequential(nn.Conv2d(image_shape[0], channels, 3, 1, 1, bias=False))
    convolution = nn.Conv2d(image_shape[0], channels, 7, 2, 3, bias=False)
    return nn.Sequential(
        convolution, *activated(channels, norm), nn.MaxPool2d(3, stride=2, padding=1)
    )


class DenseNet(Staged):
    """DenseNet-BC: three blocks of dense layers, with transitions in between.

    The five stages are the stem with block 1, transition 1, block 2, transition 2, and
    block 3 with the last norm and ReLU; the paper adds up to five layers but does not
    specify where. For images of up to 64 pixels the first layer is a 3x3 convolution at
    full resolution, for larger ones a 7x7 convolution and pooling. No dropout.

    image_shape:  (C, H, W), H and W at least 4.
    depth:        layers per block.
    growth:       channels added by a layer.
    norm:         see ``stages.norm2d``.

    Source: Huang et al., CVPR 2017, section 3.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        depth: int = 16,
        growth: int = 12,
        norm: str = "batch",
    ):
        refuse_small(image_shape, 4)
        first, added = 2 * growth, depth * growth
        one, two = first + added, (first + added) // 2 + added
        last = two // 2 + added
        blocks = [
            dense_block(channels, growth, depth, norm)
            for channels in (first, one // 2, two // 2)
        ]
        stages = nn.Sequential(
            nn.Sequential(stem(image_shape, first, norm), blocks[0]),
            transition(one, norm),
            blocks[1],
            transition(two, norm),
            nn.Sequential(blocks[2], *activated(last, norm)),
        )
        widths = (one, one // 2, two, two // 2, last)
        neck = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(stages, widths, neck, nn.Linear(last, num_classes))


@for_images
def densenet100(image_shape, num_classes: int, norm: str = "batch") -> DenseNet:
    """DenseNet-100 with growth 12: D = 342; 769,162 parameters for CIFAR-10."""
    return DenseNet(image_shape, num_classes, depth=16, growth=12, norm=norm)
