"""Networks of timm, untrained or with weights by name or from a file."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..core.torchvision_compat import import_torchvision

SUFFIXES = {".safetensors", ".pth", ".pt", ".bin"}
"""Of files with weights; no tag of timm ends in one of them."""
UNITS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Means and standard deviations by which images are made ready for a network."""

_UNFIT = (RuntimeError, AttributeError, LookupError, EOFError, SafetensorError)
"""What a file that is broken, or of another network, may raise."""


class Units(nn.Module):
    """Images as this package hands them out, in the units of pretrained weights.

    From (c - 0.5) / 0.5, c the colours in [0, 1], to (c - mean) / std of ``UNITS``: all
    sets of images here are of the first kind. A grey image gets three equal
    channels. A fixed part of the network, which neither trains nor travels; a layer and
    not folded into a convolution, whose padding would then be another colour.
    """

    def __init__(self, name: str):
        super().__init__()
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in UNITS[name])
        self.register_buffer("scale", 0.5 / std, persistent=False)
        self.register_buffer("shift", (0.5 - mean) / std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 1 or 3, H, W) → (B, 3, H, W)."""
        return x * self.scale + self.shift


def entry(image_shape, units: str, weights: str | Path | None) -> nn.Module:
    """What comes ahead of the first convolution: ``Units`` if there are weights.

    Raises ValueError for unknown units, and for images that are neither grey nor in
    colour.
    """
    if units not in UNITS:
        raise ValueError(f"units must be one of {sorted(UNITS)}, found {units!r}")
    if weights is None:
        return nn.Identity()
    if image_shape[0] not in (1, 3):
        raise ValueError(
            "weights are for images of 1 or 3 channels, found "
            f"{image_shape[0]}; use weights=None"
        )
    return Units(units)


def at_first(image_shape, weights: str | Path | None) -> tuple[list[nn.Module], tuple]:
    """What precedes a network with weights of ImageNet, and the shape that it sees.

    Nothing, and ``image_shape``, without weights; raises ValueError as ``entry``.
    """
    first = entry(image_shape, "imagenet", weights)
    if weights is None:
        return [], image_shape
    return [first], (3, *image_shape[1:])


def freeze_norms(model: nn.Module) -> None:
    """Keep every BatchNorm as it was loaded: it stays in evaluation mode, unsent."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.requires_grad_(False)


def weights_file(weights: str | Path) -> Path:
    """The file ``weights``, as it is or in the folder that $FEDLAB_WEIGHTS names."""
    places = (Path(weights), Path(os.environ.get("FEDLAB_WEIGHTS", ".")) / weights)
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"expected a file with weights, found nothing at {weights}, there or in the "
        "folder that $FEDLAB_WEIGHTS names"
    )


def read_into(net: nn.Module, name: str, weights: str | Path) -> None:
    """Load the file ``weights`` into a network called ``name``, all of it or nothing.

    Raises ValueError and FileNotFoundError as ``timm_network``.
    """
    path = weights_file(weights)
    import_torchvision()
    from timm.models import load_checkpoint

    try:
        load_checkpoint(net, str(path))
    except _UNFIT as error:
        raise _unfit(name, error) from error


def timm_network(
    name: str, image_shape, num_classes: int, weights: str | Path | None, **settings
) -> nn.Module:
    """The network that timm calls ``name``, for images (C, H, W) and M classes.

    weights:   None; a name of timm with its tag, as ``resnet18.tv_in1k``, which is
               downloaded unless it was before; or the path of such a file (safetensors,
               or pth of which tensors are read and nothing is run), there or in the
               folder that $FEDLAB_WEIGHTS names. The head is new unless M is that of
               the weights; codes of another image size are resampled.
    settings:  further arguments of ``timm.create_model``.

    Raises ValueError when the weights are not those of this network, with the first
    name or shape that differs, and FileNotFoundError when they cannot be had.
    """
    import_torchvision()
    import timm

    settings["in_chans"] = image_shape[0]
    if weights is None:
        return timm.create_model(name, num_classes=num_classes, **settings)
    if Path(weights).suffix in SUFFIXES:
        overlay = settings.get("pretrained_cfg_overlay", {})
        file = {"file": str(weights_file(weights))}
        settings["pretrained_cfg_overlay"] = overlay | file
    elif str(weights).partition(".")[0] != name:
        raise ValueError(
            f"expected weights of {name}: a name as {name}.<tag> or the path of a file "
            f"that ends in one of {sorted(SUFFIXES)}, found {str(weights)!r}"
        )
    else:
        name = str(weights)
    model = _trained(timm, name, settings)
    if num_classes != model.num_classes:
        model.reset_classifier(num_classes)
    return model


def _trained(timm, name: str, settings: dict) -> nn.Module:
    """The network with its weights and the head that they have.

    With as many classes as the weights, timm refuses names that differ; with another
    number it would leave what does not fit as it was drawn.
    """
    try:
        return timm.create_model(name, pretrained=True, **settings)
    except _UNFIT as error:
        raise _unfit(name, error) from error
    except OSError as error:
        raise FileNotFoundError(
            f"expected the weights {name} on their hub, found: {_short(error)}; fetch "
            "the file where there is a network, and give its path"
        ) from error


def _unfit(name: str, error: Exception) -> ValueError:
    return ValueError(
        f"expected weights of {name} with the head that they were trained with, "
        f"found: {_short(error)}"
    )


def _short(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 400)


def plain_attention(model: nn.Module) -> nn.Module:
    """The model, whose attention is computed step by step.

    timm's usual one is fused: the same up to rounding, but without second derivatives.
    """
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model
