"""Networks of timm and torchvision, split into stages."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from .pretrained import before_network, timm_network
from .stages import Staged, for_images, is_small, norm2d, refuse_small


def _widths(net: nn.Module) -> list[int]:
    """The channels of timm's feature maps, one per resolution."""
    return [place["num_chs"] for place in net.feature_info]


@for_images
def resnet18(
    image_shape,
    num_classes: int,
    norm: str = "batch",
    weights: str | Path | None = None,
) -> Staged:
    """ResNet-18: D = 512; 11,689,512 parameters for a thousand classes.

    weights:  see ``pretrained.timm_network``; they need ``norm="batch"``, and images
              are converted to the normalisation of ImageNet.

    The five stages are the stem and the four layers. For images of up to 64 pixels the
    stem is a 3x3 convolution without pooling, unless ``weights`` are loaded, whose stem
    has a 7x7 convolution.
    Source: He et al., CVPR 2016.
    """
    return _resnet("resnet18", image_shape, num_classes, norm, weights, None)


@for_images
def resnet50(
    image_shape,
    num_classes: int,
    norm: str = "batch",
    weights: str | Path | None = None,
    embedding: int | None = None,
) -> Staged:
    """ResNet-50, otherwise as ``resnet18``: D = 2048; 25,557,032 parameters.

    norm may be "frozen", and ``embedding`` a number of units, as for ``mobilenet``:
    FISC's released code has both, with 2,048 units.
    """
    return _resnet("resnet50", image_shape, num_classes, norm, weights, embedding)


def _resnet(name: str, image_shape, num_classes, norm, weights, embedding) -> Staged:
    def normalised(channels: int, **_) -> nn.Module:  # timm also passes device, dtype
        return norm2d("batch" if norm == "frozen" else norm, channels)

    first, shape = before_network(image_shape, "imagenet", weights)
    net = timm_network(name, shape, num_classes, weights, norm_layer=normalised)
    if weights is None and is_small(image_shape):
        net.conv1 = nn.Conv2d(image_shape[0], 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
    stem = nn.Sequential(*first, net.conv1, net.bn1, net.act1, net.maxpool)
    stages = nn.Sequential(stem, net.layer1, net.layer2, net.layer3, net.layer4)
    _freeze(stages, norm)
    neck, head = _embedded(nn.Sequential(net.global_pool), net.fc, embedding)
    return Staged(stages, _widths(net), neck, head)


def _freeze(net: nn.Module, norm: str) -> None:
    """Freeze each BatchNorm in place if ``norm`` is "frozen"."""
    for module in net.modules() if norm == "frozen" else ():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.requires_grad_(False)


def _embedded(neck: nn.Sequential, head: nn.Linear, units: int | None):
    """The neck with a linear layer of so many units, if any, and a head behind it."""
    if units is None:
        return neck, head
    neck.append(nn.Linear(head.in_features, units))
    return neck, nn.Linear(units, head.out_features)


@for_images
def densenet100(image_shape, num_classes: int, norm: str = "batch") -> Staged:
    """DenseNet-BC with growth 12: D = 342; 769,162 parameters for CIFAR-10.

    The five stages are the stem with block 1, transition 1, block 2, transition 2, and
    block 3 with the last norm and ReLU; FedFA+ adds up to five layers but does not
    specify where. For images of up to 64 pixels the stem is a 3x3 convolution at full
    resolution, for larger ones a 7x7 convolution and pooling.
    Source: Huang et al., CVPR 2017, section 3.
    """
    refuse_small(image_shape, 4 if is_small(image_shape) else 16)
    from timm.models.densenet import DenseNet

    def activated(channels: int, **_) -> nn.Module:  # timm also passes device, dtype
        return nn.Sequential(norm2d(norm, channels), nn.ReLU())

    channels, depths = image_shape[0], (16, 16, 16)
    net = DenseNet(12, depths, num_classes, channels, norm_layer=activated)
    parts = net.features
    stem = [parts.conv0, parts.norm0, parts.pool0]
    if is_small(image_shape):
        stem = [nn.Conv2d(channels, 24, 3, padding=1, bias=False)]
        nn.init.kaiming_normal_(stem[0].weight)
    stages = nn.Sequential(
        nn.Sequential(*stem, parts.denseblock1),
        parts.transition1,
        nn.Sequential(parts.denseblock2),
        parts.transition2,
        nn.Sequential(parts.denseblock3, parts.norm5),
    )
    _, one, two, last = _widths(net)
    widths = (one, one // 2, two, two // 2, last)
    neck = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Staged(stages, widths, neck, net.classifier)


class MobileNet(Staged):
    """MobileNetV2; finished runs are found by a hash that contains this name."""


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
    embedding: units of a linear layer, without activation, in front of the head, or
              None.

    The five stages have one resolution each. Without weights, the first keeps the full
    resolution of images of up to 64 pixels.
    Source: Sandler et al., CVPR 2018.
    """
    norm = norm or ("batch" if weights is None else "frozen")
    if norm not in (known := ("batch", "frozen")):
        raise ValueError(f"norm must be one of {known}, or None, found {norm!r}")
    first, shape = before_network(image_shape, units, weights)
    net = timm_network("mobilenetv2_100", shape, num_classes, weights, pad_type="same")
    if weights is None and is_small(image_shape):
        net.conv_stem.stride = (1, 1)
    _freeze(net, norm)
    blocks = net.blocks
    stem = nn.Sequential(*first or [nn.Identity()], net.conv_stem, net.bn1, blocks[0])
    stages = nn.Sequential(stem, blocks[1], blocks[2], blocks[3:5], blocks[5:7])
    neck = nn.Sequential(net.conv_head, net.bn2, net.global_pool)
    neck, head = _embedded(neck, net.classifier, embedding)
    return MobileNet(stages, _widths(net), neck, head)


@for_images
def swin_tiny(
    image_shape,
    num_classes: int,
    norm: str = "layer",
    weights: str | Path | None = None,
    drop_path: float = 0.1,
) -> Staged:
    """Swin-T: D = 768; 28,288,354 parameters for a thousand classes at 224 pixels.

    image_shape:  (C, H, W), H and W multiples of 4; maps and windows shrink with them.
    weights:      see ``pretrained.timm_network``; images are then converted to the
                  normalisation of ImageNet.
    norm:         'layer', which here normalises each position over its channels.
    drop_path:    largest probability of dropping a residual branch, in [0, 1).

    The five stages are the patch embedding and the four layers, with channels-first
    outputs; FedFA+ does not specify how many layers it inserts.
    Raises ValueError for another norm or size. Source: Liu et al., ICCV 2021.
    """
    _, *sides = image_shape
    patch = 4
    if norm != "layer":
        raise ValueError(f"Swin uses layer norms: expected 'layer', found {norm!r}")
    if any(side % patch for side in sides):
        raise ValueError(
            f"expected sides that are multiples of {patch} pixels, Swin's patch size, "
            f"found {sides[0]}x{sides[1]}; resize the images"
        )
    settings = {"img_size": tuple(sides), "drop_path_rate": drop_path}
    first, shape = before_network(image_shape, "imagenet", weights)
    name = "swin_tiny_patch4_window7_224"
    net = timm_network(name, shape, num_classes, weights, **settings)
    from torchvision.ops import Permute

    inwards, outwards = Permute([0, 2, 3, 1]), Permute([0, 3, 1, 2])
    stages = nn.Sequential(nn.Sequential(*first, net.patch_embed, outwards))
    stages.extend(nn.Sequential(inwards, layer, outwards) for layer in net.layers)
    neck = nn.Sequential(inwards, net.norm, net.head.global_pool)
    return Staged(stages, (net.embed_dim, *_widths(net)), neck, net.head.fc)
