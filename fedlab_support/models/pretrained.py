"""Networks from timm, untrained or with weights by name or from a file."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

SUFFIXES = {".safetensors", ".pth", ".pt", ".bin"}
"""Suffixes of files with weights; no tag of timm ends in one of them."""
UNITS = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Means and standard deviations with which images were normalised in pretraining."""

_UNFIT = (RuntimeError, AttributeError, LookupError, EOFError, SafetensorError)
"""Raised for files that are damaged or belong to another network."""


class Units(nn.Module):
    """Convert images of this package to the normalisation of pretrained weights.

    From the units of the data, which a run tells it with ``read``, to (c - mean) / std
    of ``UNITS``, c the colours in [0, 1]. A grey image gets three equal channels. This
    is a fixed part of the network, which is neither trained nor sent. It is a layer of
    its own because folding it into a convolution would change the colour of the
    padding.
    """

    def __init__(self, name: str):
        if name not in UNITS:
            raise ValueError(f"units must be one of {sorted(UNITS)}, found {name!r}")
        super().__init__()
        self.mean, self.std = (torch.tensor(v).view(1, 3, 1, 1) for v in UNITS[name])
        self.read((0.5,), (0.5,))

    def read(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Expect (c - mean) / std, one value or one per channel; at first 0.5 each."""
        given = mean or (0.0,), std or (1.0,)
        mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in given)
        self.register_buffer("scale", std / self.std, persistent=False)
        self.register_buffer("shift", (mean - self.mean) / self.std, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, 1 or 3, H, W) → (B, 3, H, W)."""
        return x * self.scale + self.shift


def before_network(
    image_shape, units: str, weights: str | Path | None
) -> tuple[list[nn.Module], tuple[int, ...]]:
    """The layers before a network that may have weights, and its input shape.

    With weights this is ``Units``, which makes three channels; without, there are none.
    Raises ValueError for unknown units, and for images with weights that do not have 1
    or 3 channels.
    """
    layer = Units(units)
    if weights is None:
        return [], image_shape
    if image_shape[0] not in (1, 3):
        raise ValueError(
            "weights are for images of 1 or 3 channels, found "
            f"{image_shape[0]}; use weights=None"
        )
    return [layer], (3, *image_shape[1:])


def weights_file(weights: str | Path) -> Path:
    """The path of the file ``weights``, as given or in the folder $FEDLAB_WEIGHTS."""
    places = (Path(weights), Path(os.environ.get("FEDLAB_WEIGHTS", ".")) / weights)
    for place in places:
        if place.is_file():
            return place
    raise FileNotFoundError(
        f"expected a file with weights, found nothing at {weights} or in the folder "
        "$FEDLAB_WEIGHTS"
    )


def timm_network(
    name: str, image_shape, num_classes: int, weights: str | Path | None, **settings
) -> nn.Module:
    """The network that timm calls ``name``, for images (C, H, W) and M classes.

    weights:   None; a timm name with its tag, such as ``resnet18.tv_in1k``, which is
               downloaded unless it is cached; or the path of a file (safetensors, or
               pth, loaded as tensors only), given as is or in the folder
               $FEDLAB_WEIGHTS. The head is new unless M is that of the weights;
               position embeddings are resampled to the image size.
    settings:  further arguments of ``timm.create_model``.

    Raises ValueError, with the first name or shape that differs, when the weights are
    not those of this network, and FileNotFoundError when they are not available.
    """
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
            f"expected weights of {name}: a name such as {name}.<tag> or the path of a "
            f"file that ends in one of {sorted(SUFFIXES)}, found {str(weights)!r}"
        )
    else:
        name = str(weights)
    model = _trained(timm, name, settings, num_classes)
    if num_classes != model.num_classes:
        model.reset_classifier(num_classes)
    return model


def _trained(timm, name: str, settings: dict, num_classes: int) -> nn.Module:
    """The network with its weights, including their head.

    It is created with the weights' number of classes, for which timm raises an error if
    names differ; otherwise timm would leave parameters that do not fit untrained. A
    file may have the published number of classes, or ``num_classes``.
    """
    try:
        return timm.create_model(name, pretrained=True, **settings)
    except _UNFIT as error:
        if "file" in settings.get("pretrained_cfg_overlay", {}):
            overlay = settings["pretrained_cfg_overlay"] | {"num_classes": num_classes}
            more = settings | {"pretrained_cfg_overlay": overlay}
            with suppress(*_UNFIT):
                return timm.create_model(name, pretrained=True, **more)
        raise ValueError(
            f"expected weights of {name} with the head that they were trained with, "
            f"found: {_short(error)}"
        ) from error
    except OSError as error:
        raise FileNotFoundError(
            f"expected the weights {name} on the hub, found: {_short(error)}; "
            "download the file on a machine with a network and pass its path"
        ) from error


def _short(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 400)


def plain_attention(model: nn.Module) -> nn.Module:
    """Switch off fused attention, in place, and return the model.

    The result is the same up to rounding, but only unfused attention has second
    derivatives.
    """
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model
