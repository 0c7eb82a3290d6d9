"""Chapter 04b: Dice of masks, its foresight, and a soft Dice that forgets somebody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from numbers import Real
from typing import NamedTuple

import torch
from torch import Tensor

from fedlab_support.core.metrics import dice

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

HEIGHT, WIDTH = 9, 7


def _blocks(*corners: tuple[int, int, int, int]) -> Tensor:
    """Masks, one rectangle each: top, bottom, left, right; bool (N, 9, 7)."""
    masks = torch.zeros(len(corners), HEIGHT, WIDTH, dtype=torch.bool)
    for mask, (top, bottom, left, right) in zip(masks, corners, strict=True):
        mask[top:bottom, left:right] = True
    return masks


def check_dice(answer: Callable[[Tensor, Tensor], float]) -> str:
    """Check `dice(found, true)`: bool masks (N, H, W) → the mean Dice of the slices."""
    large, small, none = (1, 8, 1, 6), (4, 5, 2, 4), (0, 0, 0, 0)
    moved, missed = (2, 9, 1, 6), (4, 5, 3, 5)
    cases = [
        ((large, small), (moved, missed), "a large and a small organ"),
        ((large, none, none), (moved, small, none), "slices without an organ"),
    ]
    for true_blocks, found_blocks, words in cases:
        true, found = _blocks(*true_blocks), _blocks(*found_blocks)
        kept = found.clone(), true.clone()
        value = call(answer, found, true, given=f"bool masks {tuple(true.shape)}")
        if not (torch.equal(found, kept[0]) and torch.equal(true, kept[1])):
            raise Wrong("the masks changed; work on new tensors")
        _check_dice(value, found, true, words)
    return "every slice has its own Dice, and two empty masks agree"


def _check_dice(value: object, found: Tensor, true: Tensor, words: str) -> None:
    each = dice(found, true)
    if isinstance(value, Tensor) and value.shape == each.shape:
        raise Wrong("there is one number per slice; which one is reported?")
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Wrong(f"expected one number, found {type(value).__name__}")
    if value != value:
        raise Wrong("the result is not a number: what is 0 / 0 to mean here?")
    if not _is_close(value, each.mean().item()):
        name_mistake(value, _dice_mistakes(found, true), _is_close)
        raise Wrong(
            f"wrong for {words}: {value:.3f}. Draw two masks of nine pixels and count "
            "by hand: the pixels in both, then those of each"
        )


def _dice_mistakes(found: Tensor, true: Tensor) -> list[tuple[float, str]]:
    """What typical mistakes give, and a hint for each."""
    each, is_empty = dice(found, true), ~(found | true).any(2).any(1)
    both, sizes = (found & true).sum().item(), (found.sum() + true.sum()).item()
    over_union = each / (2 - each)
    per_slice = "one Dice over all pixels of all slices: how much does a small organ "
    unfair = "two empty masks count as the worst answer; is the network wrong there?"
    values = [
        (2 * both / sizes, per_slice + "count in it?"),
        (each[~is_empty].mean(), "slices that are empty twice are left out; the task "
         "asks for a value there"),
        ((each * ~is_empty).mean(), unfair),
        (over_union.mean(), "this is intersection over union; Dice counts the pixels "
         "in both masks once for each mask"),
        (each.where(is_empty, each / 2).mean(), "a perfect mask would get one half"),
        ((found == true).float().mean(), "this is the share of right pixels; a mask "
         "without any foreground would look good"),
        (((each + dice(~found, ~true)) / 2).mean(), "the ground is averaged in, "
         "as in the released code; asked is the foreground's Dice"),
    ]  # fmt: skip
    return [(float(value), hint) for value, hint in values]


class Counts(NamedTuple):
    """Pixels of one slice, of the true organ, of what was found, and of both."""

    pixels: int
    true: int
    found: int
    both: int


def check_released_dice(
    answer: object, pixels: int, true: int, found: int, both: int
) -> str:
    """Check the mean Dice of organ and background of one slice.

    answer: a share, or a function of the four numbers of pixels that returns one.
    """
    for case in (Counts(pixels, true, found, both), Counts(4096, 300, 500, 200)):
        value = answer
        if callable(answer):
            given = ", ".join(f"{name}={n}" for name, n in case._asdict().items())
            value = call(answer, *case, given=given)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise Wrong(f"expected a share in [0, 1], found {type(value).__name__}")
        _check_released(float(value), case)
        if not callable(answer):
            break
    return "the background fits by itself, and lifts the mean above the organ's Dice"


def _check_released(value: float, case: Counts) -> None:
    pixels, true, found, both = case
    neither = pixels - true - found + both
    organ, rest = 2 * both / (true + found), 2 * neither / (2 * pixels - true - found)
    right = (organ + rest) / 2
    if _is_close(value, right):
        return
    share = true / pixels
    mistakes = [
        (organ, "this is the organ's own Dice; what does the released code add?"),
        (rest, "this is the background's Dice; and the organ's?"),
        (100 * right, "right in per cent; asked is a share"),
        ((both + neither) / pixels, "this is the share of right pixels"),
        (share * organ + (1 - share) * rest, "the two count the same, however large"),
        ((organ / (2 - organ) + rest / (2 - rest)) / 2, "intersection over union"),
        ((organ + 1) / 2, "the background is not quite perfect: who is wrong there?"),
    ]
    name_mistake(value, mistakes, _is_close)
    raise Wrong(
        f"{value:g} is not the mean of the two. A table of four helps: true or not, "
        "found or not; how many pixels are in each field?"
    )


def _is_close(found: float, wanted: float) -> bool:
    return isclose(found, wanted, rel_tol=1e-4)


SHIFTS = {"large": (20, 2), "small": (5, 2), "wide": (5, -1)}
"""Side of a square organ, and how far its mask is moved; -1: one pixel too wide."""


def check_shifted_dice(answer: Mapping[str, float]) -> str:
    """Check three predicted numbers: how Dice depends on the size of the organ."""
    if not isinstance(answer, Mapping) or set(answer) != set(SHIFTS):
        raise Wrong(f"expected a dictionary with the names {sorted(SHIFTS)}")
    for name, (side, shift) in SHIFTS.items():
        value = answer[name]
        if isinstance(value, bool) or not isinstance(value, Real):
            raise Wrong(f"{name!r}: expected a number, found {type(value).__name__}")
        _check_shift(name, float(value), side, shift)
    return "the same two pixels cost a small organ four times as much as a large one"


def _check_shift(name: str, value: float, side: int, shift: int) -> None:
    area = side**2
    found = area if shift > 0 else (side + 2) ** 2
    both = area - side * shift if shift > 0 else area
    if abs(value - 2 * both / (area + found)) < 0.0051:
        return
    mistakes = [
        (both / (area + found - both), "this is intersection over union"),
        (both / (area + found), "a mask that fits perfectly would get one half"),
        (200 * both / (area + found), "right in per cent; asked is a share in [0, 1]"),
        (1.0, "the true organ is covered, but the mask is larger: who pays for that?"),
        (2 * area / (area + (side + 1) ** 2), "too wide on every side: how much longer "
         "is the whole side?"),
    ]  # fmt: skip
    hints = [(number, f"{name!r}: {hint}") for number, hint in mistakes]
    name_mistake(value, hints, lambda a, b: abs(a - b) < 0.0051 * max(1.0, b / 1.01))
    raise Wrong(
        f"{name!r}: not {value:g}. Draw both squares: how many pixels lie in both, and "
        "how many does each have?"
    )


def dice_of_a_batch(logits: Tensor, masks: Tensor, smooth: float = 1.0) -> Tensor:
    """Return 1 - soft Dice, (), meant to let every slice count the same.

    logits: (B, 2, H, W); masks: int (B, H, W) of 0 and 1. smooth: pixels added above
    and below the fraction of a slice. One bug is hidden here.
    """
    p = logits.softmax(1)[:, 1].flatten()
    t = (masks == 1).flatten()
    both, each = (p * t).sum(), p.sum() + t.sum()
    return 1 - (2 * both + smooth) / (each + smooth)


def check_soft_dice(answer: Callable[[Tensor, Tensor, float], Tensor]) -> str:
    """Check a repaired `dice_of_a_batch`: its value, and its gradient."""
    for number, blocks in enumerate([[(1, 8, 1, 6), (4, 5, 2, 4)], [(0, 0, 0, 0)]]):
        rng = torch.Generator().manual_seed(number)
        masks = _blocks(*blocks).long()
        logits = torch.randn(len(masks), 2, HEIGHT, WIDTH, generator=rng)
        logits[:, 1] += 3 * masks - 1
        handed, smooth = logits.clone().requires_grad_(), 1.0 - 0.5 * number
        given = f"logits {tuple(logits.shape)}, masks {tuple(masks.shape)}, {smooth=}"
        found = call(answer, handed, masks.clone(), smooth, given=given)
        if isinstance(found, Tensor) and found.shape == (len(masks),) and number == 0:
            raise Wrong("one loss per slice came back; the step needs their mean, ()")
        value = expect_tensor(found, ())
        _check_soft(value, logits, masks, smooth)
        if not found.requires_grad:
            raise Wrong("the value is right, but no gradient flows back to the logits")
    return "every slice has its own soft Dice, however small its organ"


def _check_soft(value: Tensor, logits: Tensor, masks: Tensor, smooth: float) -> None:
    p, t = logits.softmax(1)[:, 1].flatten(1), (masks == 1).flatten(1)
    each = _soft(p, t, smooth, 1)
    if is_near(value, each.mean()):
        return
    still = "the pixels of all slices still go into one fraction: in which of the sums "
    hard = "a threshold stands before the fraction, and what is cut has no gradient"
    rest = _soft(1 - p, ~t, smooth, 1)
    mistakes = [
        (_soft(p.flatten(), t.flatten(), smooth, 0), still + "is a slice forgotten?"),
        (_soft(p.flatten(), t.flatten(), smooth, 0) / len(p), still + "is it?"),
        (each.sum(), "the losses are summed: a larger batch would take larger steps"),
        ((1 - each).mean(), "this is the Dice itself; a step would make it smaller"),
        (_soft((p > 0.5).float(), t, smooth, 1).mean(), hard),
        (((each + rest) / 2).mean(), "the ground is averaged in; the original's sums "
         "of the foreground are right"),
        (_soft(p, t, 0.0, 1).mean(), "what happened to smooth?"),
        (_soft(p, t, smooth * len(p), 1).mean(), "smooth is there once per slice"),
        ((1 - 2 * (p * t).sum(1) / (p.sum(1) + t.sum(1) + smooth)).mean(),
         "smooth stands below only: what is the loss of an empty slice?"),
        (_soft(p, t, smooth, 0).mean(), "sums over the slices, mean over pixels: the "
         "other way round"),
    ]  # fmt: skip
    name_mistake(value, mistakes, is_near)
    raise Wrong(
        "this is another number than the mean of the slices' own losses. Change only "
        "what mixes the slices"
    )


def _soft(p: Tensor, t: Tensor, smooth: float, dim: int) -> Tensor:
    both, each = (p * t).sum(dim), p.sum(dim) + t.sum(dim)
    return 1 - (2 * both + smooth) / (each + smooth)
