"""The convolutional network of the report, and a narrow version for laptops."""

from __future__ import annotations

from torch import nn

from .stages import Staged, for_images, norm2d, refuse_small


def stage(channels_in: int, channels_out: int, norm: str) -> nn.Sequential:
    """5x5 convolution, normalisation, 2x2 max pooling, ReLU: halves height and width.

    Pooling before ReLU gives the same result as after it, at a quarter of the cost.
    """
    convolution = nn.Conv2d(channels_in, channels_out, kernel_size=5, padding=2)
    normalised = norm2d(norm, channels_out)
    return nn.Sequential(convolution, normalised, nn.MaxPool2d(2), nn.ReLU())


class CNN(Staged):
    """Two convolution stages, one hidden layer, one linear head.

    image_shape:  (C, H, W), H and W at least 4.
    num_classes:  M.
    widths:       channels of the two stages.
    hidden:       number of features D.
    norm:         see ``stages.norm2d``.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        num_classes: int,
        widths: tuple[int, int] = (32, 64),
        hidden: int = 2048,
        norm: str = "none",
    ):
        refuse_small(image_shape, 4)
        channels, height, width = image_shape
        first, second = widths
        stages = nn.Sequential(stage(channels, first, norm), stage(first, second, norm))
        pooled = second * (height // 4) * (width // 4)
        neck = nn.Sequential(nn.Flatten(), nn.Linear(pooled, hidden), nn.ReLU())
        super().__init__(stages, widths, neck, nn.Linear(hidden, num_classes))


@for_images
def report_cnn(image_shape, num_classes: int, norm: str = "none") -> CNN:
    """The report's CNN: 32 and 64 channels, 2,048 units; 6,603,710 parameters on 28x28.

    Source: *Towards Real World Federated Learning*, section 4.1.
    """
    return CNN(image_shape, num_classes, (32, 64), 2048, norm)


@for_images
def small_cnn(image_shape, num_classes: int, norm: str = "none") -> CNN:
    """``report_cnn`` at a quarter of the channels and a sixteenth of the units.

    image_shape:  (C, H, W), H and W at least 4.
    num_classes:  M, number of logits.
    norm:         "none", "batch", "group" or "layer".
    """
    return CNN(image_shape, num_classes, (8, 16), 128, norm)
