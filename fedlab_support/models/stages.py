"""The base class of networks, normalisation by name, and insertion of layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from ..core.checks import COUNT, Range, checked

NORMS = ("none", "batch", "group", "layer")
LARGEST_SMALL = 64
"""Height and width up to which the first stage keeps the full resolution."""


def _is_shape(shape: object) -> bool:
    is_row = isinstance(shape, tuple | list) and len(shape) == 3
    return is_row and all(COUNT.contains(side, "int") for side in shape)


for_images = checked(
    image_shape=Range(
        holds=_is_shape, allowed="(channels, height, width), whole numbers ≥ 1"
    ),
    num_classes=COUNT,
    prompts=Range(at_least=0),
)
"""Decorator of functions that make a network for images (C, H, W) and M classes."""


class Staged(nn.Module):
    """Base class of the networks: stages, then a neck, then a head.

    stages:  a list of ``nn.Sequential``, each of which returns (B, C, H, W), C as in
             ``widths``. A layer may be appended to each (see ``insert``).
    bypasses: in a U-Net, an empty ``nn.Sequential`` for each skip connection, to which
             a layer may be appended.
    neck:    from the output of the last stage to features (B, D).
    head:    from features to logits (B, M).
    """

    def __init__(
        self,
        stages: nn.Sequential | nn.ModuleList,
        widths: Iterable[int],
        neck: nn.Module,
        head: nn.Module,
    ):
        super().__init__()
        self.widths = tuple(widths)
        self.stages, self.neck, self.head = stages, neck, head

    def encode(self, x: Tensor) -> Tensor:
        """Features (B, D) of images (B, C, H, W)."""
        return self.neck(self.stages(x))

    def forward(self, x: Tensor) -> Tensor:
        """Output of images (B, C, H, W): ``head(encode(x))``."""
        return self.head(self.encode(x))


def refuse_small(image_shape: tuple[int, int, int], least: int) -> None:
    """Raise ValueError for images (C, H, W) with a side below ``least`` pixels."""
    _, height, width = image_shape
    if min(height, width) < least:
        raise ValueError(
            f"expected images of at least {least}x{least} pixels, found "
            f"{height}x{width}, which pooling reduces to nothing; enlarge the images "
            "or use a smaller network, such as small_cnn"
        )


def is_small(image_shape: tuple[int, int, int]) -> bool:
    """Whether images (C, H, W) are as small as those of CIFAR-10 or Tiny ImageNet."""
    return max(image_shape[1:]) <= LARGEST_SMALL


def norm2d(kind: str, channels: int, flat: bool = False) -> nn.Module:
    """A normalisation layer for values (B, C, H, W), or (B, C) if ``flat``, by name.

    'batch' normalises each channel over the batch, 'group' groups of eight channels of
    a sample, or a few more if C is not a multiple of eight, 'layer' all channels of a
    sample; 'none' is the identity. Raises ValueError for another name.
    """
    if kind not in NORMS:
        raise ValueError(f"norm must be one of {NORMS}, found {kind!r}")
    if kind == "batch":
        return nn.BatchNorm1d(channels) if flat else nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    most = max(1, channels // 8) if kind == "group" else 1
    return nn.GroupNorm(
        next(n for n in range(most, 0, -1) if channels % n == 0), channels
    )


STAGES = "numbers of stages from 1, as in (1, 2)"


def are_stages(numbers: object, first: int = 1) -> bool:
    """Whether ``numbers`` are whole numbers ≥ ``first``, at least one."""
    if not isinstance(numbers, tuple | list) or not numbers:
        return False
    return all(type(number) is int and number >= first for number in numbers)


def stage_numbers(model: nn.Module, wanted: Iterable[int] | None) -> tuple[int, ...]:
    """Check the stage numbers ``wanted``, counted from 1; None returns all of them.

    Raises ValueError for a stage that does not exist or is listed twice, and for a
    model without stages.
    """
    if not hasattr(model, "stages"):
        raise ValueError(
            "expected a network with stages, to which layers can be added, found "
            f"{type(model).__name__}; use a convolutional one, such as small_cnn"
        )
    known = range(1, len(model.stages) + 1)
    numbers = tuple(known if wanted is None else wanted)
    unknown = [n for n in numbers if n not in known]
    if unknown or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"the stages of this network are numbered 1…{len(known)}, "
            f"each at most once; found {list(numbers)}"
        )
    return numbers


def widths_of(model: nn.Module) -> tuple[int, ...]:
    """The channels of each stage; ValueError for a network that does not list them."""
    if not hasattr(model, "widths"):
        raise ValueError(
            "expected a network with widths, the channels of each stage, found "
            f"{type(model).__name__}; see models.stages.Staged"
        )
    return model.widths


def insert(
    model: nn.Module, number: int, name: str, layer: nn.Module, first: bool = False
) -> None:
    """Append ``layer`` to stage ``number``, counted from 1; in place.

    It becomes ``stages[number - 1].added.<name>``, after the layers that were added
    earlier, or before them if ``first``. Weights of the stage keep their names.
    """
    stage = model.stages[stage_numbers(model, (number,))[0] - 1]
    before = dict(stage.added.named_children()) if hasattr(stage, "added") else {}
    if name in before:
        raise ValueError(f"stage {number} already has a layer {name!r}")
    order = {name: layer, **before} if first else {**before, name: layer}
    stage.add_module("added", nn.Sequential())
    for key, value in order.items():
        stage.added.add_module(key, value)


class _WithEntry:
    """Mixin: a network whose ``entry`` acts on the images first."""

    def encode(self, x: Tensor) -> Tensor:
        """Features of images (B, C, H, W)."""
        return super().encode(self.entry(x))


def insert_entry(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Insert ``layer`` in front of a network, to act on images (B, C, H, W); in place.

    It becomes ``entry.<name>``, after the layers that were added earlier; all weights
    keep their names. Works for every network whose ``forward(x)`` is
    ``head(encode(x))``: the model's class is replaced by a subclass of the same name,
    as ``torch.nn.utils.parametrize`` does.
    Raises ValueError for a network without ``encode``, or a name that is in use.
    """
    if not hasattr(model, "encode"):
        raise ValueError(
            "a layer at the entry needs a network with encode(x) and head, such as "
            f"models.CNN, found {type(model).__name__}"
        )
    if not isinstance(model, _WithEntry):
        model.add_module("entry", nn.Sequential())
        kind = type(model)
        model.__class__ = type(kind.__name__, (_WithEntry, kind), {})
    if name in dict(model.entry.named_children()):
        raise ValueError(f"the entry already has a layer {name!r}")
    model.entry.add_module(name, layer)
