"""Networks of timm, untrained or with weights by name or from a file."""

from __future__ import annotations

import textwrap
from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from ..vision import import_torchvision

SUFFIXES = {".safetensors", ".pth", ".pt", ".bin"}
"""Of files with weights; no tag of timm ends in one of them."""
_UNFIT = (RuntimeError, AttributeError, LookupError, EOFError, SafetensorError)
"""What a file that is broken, or of another network, may raise."""


def timm_network(
    name: str, image_shape, num_classes: int, weights: str | Path | None, **settings
) -> nn.Module:
    """The network that timm calls ``name``, for pictures (C, H, W) and M classes.

    - ``weights``: None; a name of timm with its tag, as ``resnet18.tv_in1k``, which is
      downloaded unless it was before; or the path of such a file (safetensors, or pth
      of which tensors are read and nothing is run). The head is new unless M is that of
      the weights; filters of other than three colours, and codes of another picture
      size, are resampled.
    - ``settings``: further arguments of ``timm.create_model``.

    Raises ValueError when the weights are not those of this network, with the first
    name or shape that differs, and FileNotFoundError when they cannot be had.
    """
    import_torchvision()
    import timm

    settings["in_chans"] = image_shape[0]
    if weights is None:
        return timm.create_model(name, num_classes=num_classes, **settings)
    if Path(weights).suffix in SUFFIXES:
        if not Path(weights).is_file():
            raise FileNotFoundError(f"expected a file with weights at {weights}")
        settings["pretrained_cfg_overlay"] = {"file": str(weights)}
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
        raise ValueError(
            f"expected weights of {name} with the head that they were trained with, "
            f"found: {_short(error)}"
        ) from error
    except OSError as error:
        raise FileNotFoundError(
            f"expected the weights {name} on their hub, found: {_short(error)}; fetch "
            "the file where there is a network, and give its path"
        ) from error


def _short(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 400)
