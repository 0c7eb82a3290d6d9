"""ResNet-18 and ResNet-50 from timm, in stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from .pretrained import at_first, timm_network
from .stages import Staged, for_images, is_small, norm2d


class ResNet(Staged):
    """A residual network in five stages: the stem and four layers.

    net:    the timm network.
    first:  modules applied to the images.
    """

    def __init__(self, net: nn.Module, first: Sequence[nn.Module] = ()):
        stem = nn.Sequential(*first, net.conv1, net.bn1, net.act1, net.maxpool)
        stages = nn.Sequential(stem, net.layer1, net.layer2, net.layer3, net.layer4)
        widths = [place["num_chs"] for place in net.feature_info]
        super().__init__(stages, widths, net.global_pool, net.fc)


@for_images
def resnet18(
    image_shape,
    num_classes: int,
    norm: str = "batch",
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-18: D = 512; 11,689,512 parameters for a thousand classes.

    weights:  see ``pretrained.timm_network``; they need ``norm="batch"``, and images
              are converted to the normalisation of ImageNet.

    For images of up to 64 pixels the stem is a 3x3 convolution without pooling, unless
    ``weights`` are loaded, whose stem has a 7x7 convolution.
    Source: He et al., CVPR 2016.
    """
    return _resnet("resnet18", image_shape, num_classes, norm, weights)


@for_images
def resnet50(
    image_shape,
    num_classes: int,
    norm: str = "batch",
    weights: str | Path | None = None,
) -> ResNet:
    """ResNet-50, otherwise as ``resnet18``: D = 2048; 25,557,032 parameters."""
    return _resnet("resnet50", image_shape, num_classes, norm, weights)


def _resnet(name: str, image_shape, num_classes: int, norm: str, weights) -> ResNet:
    def normalised(channels: int, **_) -> nn.Module:  # timm also passes device, dtype
        return norm2d(norm, channels)

    first, shape = at_first(image_shape, weights)
    net = timm_network(name, shape, num_classes, weights, norm_layer=normalised)
    if weights is None and is_small(image_shape):
        net.conv1 = nn.Conv2d(image_shape[0], 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
    return ResNet(net, first)
