"""MobileNetV2 from timm, in stages, optionally with frozen BatchNorm."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from .pretrained import entry, freeze_norms, timm_network
from .stages import Staged, for_images, is_small

KINDS = ("batch", "frozen")


class MobileNet(Staged):
    """Five stages, one per resolution: the stem and seven groups of residual blocks.

    net:        the timm network.
    first:      a module applied to the images.
    embedding:  units of a linear layer between the network and the head; None: none.
    """

    def __init__(self, net: nn.Module, first: nn.Module, embedding: int | None = None):
        groups = net.blocks
        stages = nn.Sequential(
            nn.Sequential(first, net.conv_stem, net.bn1, groups[0]),
            groups[1],
            groups[2],
            groups[3:5],
            groups[5:7],
        )
        widths = [place["num_chs"] for place in net.feature_info]
        neck = nn.Sequential(net.conv_head, net.bn2, net.global_pool)
        head = net.classifier
        if embedding is not None:
            neck.append(nn.Linear(head.in_features, embedding))
            head = nn.Linear(embedding, head.out_features)
        super().__init__(stages, widths, neck, head)


@for_images
def mobilenet(
    image_shape,
    num_classes: int,
    norm: str | None = None,
    weights: str | Path | None = None,
    units: str = "half",
    embedding: int | None = None,
) -> MobileNet:
    """MobileNetV2: D = 1280; 3,504,872 parameters for a thousand classes.

    weights:  see ``pretrained.timm_network``; for example
              "mobilenetv2_100.fp16.safetensors" in the folder $FEDLAB_WEIGHTS.
    norm:     "batch", or "frozen": each BatchNorm keeps its loaded state, stays in
              evaluation mode and is not sent. None is "frozen" if there are weights.
              The file above needs "frozen", since its statistics are folded into the
              convolutions.
    units:    normalisation of images for the weights: "half" for the file above,
              "imagenet" for those that timm downloads (``pretrained.Units``).
    embedding: units of a linear layer, without activation, in front of the head; FISC's
              released code adds one of 2,048 to its ResNet-50. None: none.

    Without weights, the first stage keeps the full resolution of images of up to 64
    pixels.
    Source: Sandler et al., CVPR 2018.
    """
    norm = norm or ("batch" if weights is None else "frozen")
    if norm not in KINDS:
        raise ValueError(f"norm must be one of {KINDS}, or None, found {norm!r}")
    first = entry(image_shape, units, weights)
    shape = image_shape if weights is None else (3, *image_shape[1:])
    net = timm_network("mobilenetv2_100", shape, num_classes, weights, pad_type="same")
    if weights is None and is_small(image_shape):
        net.conv_stem.stride = (1, 1)
    if norm == "frozen":
        freeze_norms(net)
    return MobileNet(net, first, embedding)
