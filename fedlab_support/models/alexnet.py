"""AlexNet with normalisation after each layer, and a narrow version for laptops."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from .stages import Staged, for_images, norm2d, refuse_small

SHAPES = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
"""Kernel, stride and padding of the five convolutions."""
POOLED = (True, True, False, False, True)
"""Which of them are followed by pooling."""


def block(channels: tuple[int, int], shape, norm: str, pool: bool) -> nn.Sequential:
    """Convolution from ``channels[0]`` to ``channels[1]``, norm, ReLU, max pooling."""
    layers = [nn.Conv2d(*channels, *shape), norm2d(norm, channels[1]), nn.ReLU()]
    if pool:
        layers.append(nn.MaxPool2d(3, stride=2))
    return nn.Sequential(*layers)


class AlexNet(Staged):
    """Five convolution stages, two hidden layers, one linear head, no dropout.

    A stage ends with its pooling, or its ReLU if it has none: these are the five
    positions of FedFA's layers. The last map is averaged, or repeated, to 6x6
    positions.

    image_shape:  (C, H, W), H and W at least 63.
    widths:       channels of the stages.
    hidden:       number of features D.
    norm:         see ``stages.norm2d``; also used in the hidden layers.

    Source: Krizhevsky et al., 2012; normalised as by Li et al. (FedBN), ICLR 2021.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        widths: tuple[int, ...] = (64, 192, 384, 256, 256),
        hidden: int = 1024,
        norm: str = "batch",
    ):
        refuse_small(image_shape, 63)
        pairs = pairwise((image_shape[0], *widths))
        stages = nn.Sequential(
            *(
                block(channels, shape, norm, pool)
                for channels, shape, pool in zip(pairs, SHAPES, POOLED, strict=True)
            )
        )
        neck = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten())
        for features in (36 * widths[-1], hidden):
            normalised = norm2d(norm, hidden, flat=True)
            neck.extend([nn.Linear(features, hidden), normalised, nn.ReLU()])
        super().__init__(stages, widths, neck, nn.Linear(hidden, num_classes))


@for_images
def alexnet(
    image_shape, num_classes: int, norm: str = "batch", hidden: int = 1024
) -> AlexNet:
    """The AlexNet of FedFA; FedBN's has ``hidden`` = 4096.

    With three channels and ten classes it has 12,974,154 parameters, 49.5 MiB.
    Source: *Federated Feature Augmentation and Alignment*, section 6.1.
    """
    return AlexNet(image_shape, num_classes, hidden=hidden, norm=norm)


@for_images
def small_alexnet(image_shape, num_classes: int, norm: str = "batch") -> AlexNet:
    """AlexNet at a quarter of the channels and an eighth of the units."""
    return AlexNet(image_shape, num_classes, (16, 48, 96, 64, 64), 128, norm)
