"""What all networks share: their contract, norms by name, places for more layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

NORMS = ("none", "batch", "group", "layer")
LARGEST_SMALL = 64
"""Pixels of a side up to which residual and dense networks begin at full resolution."""


class Staged(nn.Module):
    """The contract of every network here.

    stages:  a list of them. Behind each, an ``nn.Sequential`` that hands on (B, C, H,
             W), C as in ``widths``, a layer may be added (see ``insert``).
    - ``bypasses``, in a U-Net: one ``nn.Sequential`` for each skip connection, empty,
      where a layer may be added.
    neck:  from what the last stage hands on to features (B, D).
    head:  from features to the output, (B, M) logits.
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
            f"{height}x{width}, of which pooling leaves nothing; enlarge the images "
            "or take a smaller network, as small_cnn"
        )


def is_small(image_shape: tuple[int, int, int]) -> bool:
    """Whether images (C, H, W) are of the size of CIFAR-10 or Tiny-ImageNet."""
    return max(image_shape[1:]) <= LARGEST_SMALL


def norm2d(kind: str, channels: int, flat: bool = False) -> nn.Module:
    """A normalisation of values (B, C, H, W), or of (B, C) if ``flat``, by its name.

    'batch': each channel over the batch; 'group': eight channels of a sample together,
    or a few more where eight do not go into C; 'layer': all channels of a sample
    together; 'none': the values as they are. Raises ValueError for another name.
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


def stage_numbers(model: nn.Module, wanted: Iterable[int] | None) -> tuple[int, ...]:
    """The numbers, from 1, of the stages that ``wanted`` names; None: of all.

    Raises ValueError for a stage that the model lacks, or one that is named twice, and
    for a model without stages.
    """
    if not hasattr(model, "stages"):
        raise ValueError(
            "expected a network with stages, behind which layers may be added, found "
            f"{type(model).__name__}; take a convolutional one, as small_cnn"
        )
    known = range(1, len(model.stages) + 1)
    numbers = tuple(known if wanted is None else wanted)
    unknown = [n for n in numbers if n not in known]
    if unknown or len(set(numbers)) != len(numbers):
        raise ValueError(
            f"the stages of this {type(model).__name__} are numbered 1…{len(known)}, "
            f"each at most once; found {list(numbers)}"
        )
    return numbers


def insert(
    model: nn.Module, number: int, name: str, layer: nn.Module, first: bool = False
) -> None:
    """Let ``layer`` act on what stage ``number``, from 1, hands on; in place.

    It lies at ``stages[number - 1].added.<name>``, behind the layers that were added
    before, or ahead of them if ``first``. Weights of the stage keep their names.
    """
    stage = model.stages[stage_numbers(model, (number,))[0] - 1]
    before = dict(stage.added.named_children()) if hasattr(stage, "added") else {}
    if name in before:
        raise ValueError(f"stage {number} has a layer {name!r} already")
    order = {name: layer, **before} if first else {**before, name: layer}
    stage.add_module("added", nn.Sequential())
    for key, value in order.items():
        stage.added.add_module(key, value)


class _WithEntry:
    """A network whose ``entry`` acts on the images before anything else does."""

    def encode(self, x: Tensor) -> Tensor:
        """Features of images (B, C, H, W)."""
        return super().encode(self.entry(x))


def insert_entry(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Let ``layer`` act on the images (B, C, H, W) ahead of all others; in place.

    It lies at ``entry.<name>``, behind the layers that were added before; all weights
    keep their names. For every network whose ``forward(x)`` is ``head(encode(x))``,
    wherever its stages begin: the model gets a class of its own, a child of the one it
    had and of the same name, as ``torch.nn.utils.parametrize`` does it.
    Raises ValueError for a network without ``encode``, or a name that is taken.
    """
    if not hasattr(model, "encode"):
        raise ValueError(
            "a layer at the entry needs a network with encode(x) and head, as "
            f"models.CNN has; found {type(model).__name__}"
        )
    if not isinstance(model, _WithEntry):
        model.add_module("entry", nn.Sequential())
        kind = type(model)
        model.__class__ = type(kind.__name__, (_WithEntry, kind), {})
    if name in dict(model.entry.named_children()):
        raise ValueError(f"the entry has a layer {name!r} already")
    model.entry.add_module(name, layer)
