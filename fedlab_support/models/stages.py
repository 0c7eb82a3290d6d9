"""What all networks share: one name per normalisation, and places for more layers."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

NORMS = ("none", "batch", "group", "layer")


def norm2d(kind: str, channels: int) -> nn.Module:
    """A normalisation of values (B, C, H, W) by its name.

    'batch': each channel over the batch; 'group': eight channels of a sample together;
    'layer': all channels of a sample together; 'none': the values as they are. Raises
    ValueError for another name.
    """
    if kind not in NORMS:
        raise ValueError(f"norm must be one of {NORMS}, found {kind!r}")
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "none":
        return nn.Identity()
    return nn.GroupNorm(max(1, channels // 8) if kind == "group" else 1, channels)


def stage_numbers(model: nn.Module, wanted: Iterable[int] | None) -> tuple[int, ...]:
    """The numbers, from 1, of the stages that ``wanted`` names; None: of all.

    Raises ValueError for a stage that the model lacks, or one that is named twice.
    """
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
