"""Swin-T from timm, in stages with channels-first outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ..core.torchvision_compat import import_torchvision
from .pretrained import at_first, timm_network
from .stages import Staged, for_images

SWIN_TINY = "swin_tiny_patch4_window7_224"
PATCH = 4


class Swin(Staged):
    """A shifted-window transformer in five stages: the patch embedding, four layers.

    net:    the timm network, (B, H, W, C) inside.
    first:  modules applied to the images.

    The paper does not specify how many layers it inserts into Swin; we use as many
    stages as in the other networks.
    """

    def __init__(self, net: nn.Module, first: Sequence[nn.Module] = ()):
        permute = import_torchvision().ops.Permute
        inwards, outwards = permute([0, 2, 3, 1]), permute([0, 3, 1, 2])
        stages = nn.Sequential(nn.Sequential(*first, net.patch_embed, outwards))
        stages.extend(nn.Sequential(inwards, layer, outwards) for layer in net.layers)
        widths = [net.embed_dim, *(place["num_chs"] for place in net.feature_info)]
        neck = nn.Sequential(inwards, net.norm, net.head.global_pool)
        super().__init__(stages, widths, neck, net.head.fc)


@for_images
def swin_tiny(
    image_shape,
    num_classes: int,
    norm: str = "layer",
    weights: str | Path | None = None,
    drop_path: float = 0.1,
) -> Swin:
    """Swin-T: D = 768; 28,288,354 parameters for a thousand classes at 224 pixels.

    image_shape:  (C, H, W), H and W multiples of 4; maps and windows shrink with them.
    weights:      see ``pretrained.timm_network``; images are then converted to the
                  normalisation of ImageNet.
    norm:         'layer', which here normalises each position over its channels.
    drop_path:    largest probability of dropping a residual branch, in [0, 1).

    Raises ValueError for another norm or size. Source: Liu et al., ICCV 2021.
    """
    _, *sides = image_shape
    if norm != "layer":
        raise ValueError(f"Swin uses layer norms: expected 'layer', found {norm!r}")
    if any(side % PATCH or side < PATCH for side in sides):
        raise ValueError(
            f"expected sides that are multiples of {PATCH} pixels, Swin's patch size, "
            f"found {sides[0]}x{sides[1]}; resize the images"
        )
    settings = {"img_size": tuple(sides), "drop_path_rate": drop_path}
    first, shape = at_first(image_shape, weights)
    net = timm_network(SWIN_TINY, shape, num_classes, weights, **settings)
    return Swin(net, first)
