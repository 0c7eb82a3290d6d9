"""SqueezeNet 1.1 from torchvision, in stages: small, and without BatchNorm."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from ..core.torchvision_compat import import_torchvision
from .pretrained import entry, read_into
from .stages import Staged, for_images, is_small, refuse_small

CUTS = ((0, 2), (2, 5), (5, 8), (8, 13))
"""The torchvision layers of each stage; all stages but the first begin with pooling."""
WIDTHS = (64, 128, 256, 512)
TRAINED_CLASSES = 1000


class SqueezeNet(Staged):
    """Four stages of fire modules, one per resolution; features are averaged maps.

    net:    the torchvision network.
    first:  a module applied to the images.
    head:   linear.

    The published network applies its head and a ReLU at every position and then
    averages; averaging first gives the features that methods need.
    """

    def __init__(self, net: nn.Module, first: nn.Module, head: nn.Linear):
        layers = net.features
        stages = nn.Sequential(*(layers[start:stop] for start, stop in CUTS))
        stages[0] = nn.Sequential(first, *stages[0])
        neck = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        super().__init__(stages, WIDTHS, neck, head)


@for_images
def squeezenet(
    image_shape,
    num_classes: int,
    weights: str | Path | None = None,
    units: str = "imagenet",
) -> SqueezeNet:
    """SqueezeNet 1.1: D = 512; 1,235,496 parameters for a thousand classes.

    image_shape:  (C, H, W), H and W at least 17.
    weights:      None, or the path of a file, such as "squeezenet1_1.fp16.safetensors"
                  in the folder $FEDLAB_WEIGHTS; the head is new unless M is 1000.
    units:        as for ``mobilenet.mobilenet``.

    Without weights, the first stage keeps the full resolution of images of up to 64
    pixels. No dropout. Raises ValueError and FileNotFoundError as
    ``pretrained.timm_network``.
    Source: Iandola et al., arXiv:1602.07360, 2016, and its version 1.1.
    """
    refuse_small(image_shape, 17)
    first = entry(image_shape, units, weights)
    net = import_torchvision().models.squeezenet1_1(num_classes=TRAINED_CLASSES)
    head = nn.Linear(WIDTHS[-1], num_classes)
    if weights is not None:
        read_into(net, "squeezenet1_1", weights)
    elif image_shape[0] != 3:
        net.features[0] = nn.Conv2d(image_shape[0], WIDTHS[0], 3, stride=2)
    if weights is None and is_small(image_shape):
        net.features[0].stride = (1, 1)
    if weights is not None and num_classes == TRAINED_CLASSES:
        with torch.no_grad():
            head.weight.copy_(net.classifier[1].weight.flatten(1))
            head.bias.copy_(net.classifier[1].bias)
    return SqueezeNet(net, first, head)
