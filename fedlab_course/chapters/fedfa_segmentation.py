"""Chapter 04b: Dice, its change under shifts, and a soft Dice with a bug."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedlab_support import metrics

from ..checking.table import Case, Mistakes, predictions, table

HEIGHT, WIDTH = 9, 7
Block = tuple[int, int, int, int]


def _blocks(*corners: Block) -> Tensor:
    """Masks with one rectangle each: top, bottom, left, right; bool (N, 9, 7)."""
    masks = torch.zeros(len(corners), HEIGHT, WIDTH, dtype=torch.bool)
    for mask, (top, bottom, left, right) in zip(masks, corners, strict=True):
        mask[top:bottom, left:right] = True
    return masks


@table(
    "every slice has its own Dice, and two empty masks agree",
    rtol=1e-4,
    atol=0,
    what="one number",
    not_finite="the result is not a number: what should 0 / 0 mean here?",
)
def dice() -> Iterator[Case]:
    """`dice(found, true)`: bool masks (N, H, W) → the mean Dice of the slices."""
    large, small, none = (1, 8, 1, 6), (4, 5, 2, 4), (0, 0, 0, 0)
    moved, missed = (2, 9, 1, 6), (4, 5, 3, 5)
    for true_blocks, found_blocks, words in (
        ((large, small), (moved, missed), "a large and a small organ"),
        ((large, none, none), (moved, small, none), "slices without an organ"),
    ):
        true, found = _blocks(*true_blocks), _blocks(*found_blocks)
        per_slice = "there is one number per slice; which one is reported?"
        yield Case(
            inputs={"found": found, "true": true},
            given=f"bool masks {tuple(true.shape)}: {words}",
            right=metrics.dice(found, true).mean().item(),
            mistakes=_dice_mistakes(found, true),
            shapes={(len(true),): per_slice},
            otherwise=f"wrong for {words}: {{found:.3f}}. Draw two masks of nine "
            "pixels and count by hand: the pixels in both, then those of each",
        )


def _dice_mistakes(found: Tensor, true: Tensor) -> Mistakes:
    each, is_empty = metrics.dice(found, true), ~(found | true).any(2).any(1)
    both, sizes = (found & true).sum(), found.sum() + true.sum()
    background = metrics.dice(~found, ~true)
    return [
        (2 * both / sizes, "one Dice over all pixels of all slices: a small organ "
         "hardly counts in it"),
        (each[~is_empty].mean(), "slices where both masks are empty are left out; the "
         "task asks for a value there"),
        ((each * ~is_empty).mean(), "two empty masks count as the worst answer; is the "
         "network wrong there?"),
        ((each / (2 - each)).mean(), "this is intersection over union; Dice counts the "
         "pixels in both masks once for each mask"),
        (each.where(is_empty, each / 2).mean(), "a perfect mask would get one half"),
        ((found == true).float().mean(), "this is the share of right pixels; a mask "
         "without any foreground would look good"),
        (((each + background) / 2).mean(), "the background is averaged in, as in the "
         "released code; the task asks for the foreground's Dice"),
    ]  # fmt: skip


def _shift_case(side: int, shift: int = 0, wider: int = 0) -> Case:
    """A square organ of this side; its mask is ``shift`` pixels off or ``wider``."""
    area, found = side**2, (side + 2 * wider) ** 2
    both = area - side * shift
    too_wide = [
        (1.0, "the organ is covered, but does a larger mask cost nothing?"),
        (2 * area / (area + (side + 1) ** 2), "too wide on every side: how much "
         "longer is the whole side?"),
    ]  # fmt: skip
    return Case(
        right=2 * both / (area + found),
        mistakes=[
            (both / (area + found - both), "this is intersection over union"),
            (both / (area + found), "a mask that fits perfectly would get one half"),
            (200 * both / (area + found), "right in per cent; give a share in [0, 1]"),
            *(too_wide if wider else []),
        ],
        otherwise="not {found:g}. Draw both squares: how many pixels "
        "lie in both, and how many does each have?",
    )  # fmt: skip


shifted_dice = predictions(
    "shifted_dice",
    {
        "large": _shift_case(20, shift=2),
        "small": _shift_case(5, shift=2),
        "wide": _shift_case(5, wider=1),
    },
    "the same two pixels cost a small organ four times as much as a large one",
    rtol=2e-3,
    atol=4e-3,
)


@table(
    "the background fits easily, and lifts the mean above the organ's Dice",
    rtol=1e-4,
    atol=0,
    what="a share in [0, 1]",
    accepts_values=True,
)
def released_dice(pixels: int, true: int, found: int, both: int) -> Iterator[Case]:
    """The mean Dice of organ and background of one slice.

    pixels: of the slice. true, found, both: pixels of the true organ, of the predicted
            one, and of both.
    """
    for counts in ((pixels, true, found, both), (4096, 300, 500, 200)):
        pixels, true, found, both = counts
        neither = pixels - true - found + both
        organ = 2 * both / (true + found)
        rest = 2 * neither / (2 * pixels - true - found)
        right, share = (organ + rest) / 2, true / pixels
        over_union = organ / (2 - organ) + rest / (2 - rest)
        yield Case(
            inputs={"pixels": pixels, "true": true, "found": found, "both": both},
            right=right,
            mistakes=[
                (organ, "the organ's own Dice; what does the released code add?"),
                (rest, "this is the background's Dice; and the organ's?"),
                (100 * right, "right in per cent; give a share"),
                ((both + neither) / pixels, "this is the share of right pixels"),
                (share * organ + (1 - share) * rest, "the two count the same, whatever "
                 "their size"),
                (over_union / 2, "this is a mean of intersections over unions; the "
                 "released code averages two Dice values"),
                ((organ + 1) / 2, "the background is not quite perfect; why?"),
            ],
            otherwise="{found:g} is not the mean of the two. Make a two-by-two table, "
            "organ or not by found or not: how many pixels are in each cell?",
        )  # fmt: skip


def dice_of_a_batch(logits: Tensor, masks: Tensor, smooth: float = 1.0) -> Tensor:
    """Return 1 - soft Dice, (), meant to weight every slice equally. It has one bug.

    logits: (B, 2, H, W); masks: int (B, H, W) of 0 and 1.
    smooth: pixels added to numerator and denominator of a slice's fraction.
    """
    p = logits.softmax(1)[:, 1].flatten()
    t = (masks == 1).flatten()
    both, each = (p * t).sum(), p.sum() + t.sum()
    return 1 - (2 * both + smooth) / (each + smooth)


@table("every slice has its own soft Dice, however small its organ")
def soft_dice() -> Iterator[Case]:
    """A repaired `dice_of_a_batch`: its value and its gradient."""
    slices: Sequence[Sequence[Block]] = ([(1, 8, 1, 6), (4, 5, 2, 4)], [(0, 0, 0, 0)])
    for number, blocks in enumerate(slices):
        rng = torch.Generator().manual_seed(number)
        masks = _blocks(*blocks).long()
        logits = torch.randn(len(masks), 2, HEIGHT, WIDTH, generator=rng)
        logits[:, 1] += 3 * masks - 1
        smooth = 1.0 - 0.5 * number
        per_slice = "one loss per slice came back; the step needs their mean, ()"
        p, t = logits.softmax(1)[:, 1].flatten(1), (masks == 1).flatten(1)
        yield Case(
            inputs={
                "logits": logits.requires_grad_(),
                "masks": masks,
                "smooth": smooth,
            },
            right=_soft(p, t, smooth, 1).mean(),
            mistakes=_soft_mistakes(p, t, smooth),
            shapes={(len(masks),): per_slice},
            otherwise="this is not the mean of the slices' own losses. Change only "
            "what mixes the slices",
        )


def _soft(p: Tensor, t: Tensor, smooth: float, dim: int) -> Tensor:
    both, each = (p * t).sum(dim), p.sum(dim) + t.sum(dim)
    return 1 - (2 * both + smooth) / (each + smooth)


def _soft_mistakes(p: Tensor, t: Tensor, smooth: float) -> Mistakes:
    each, rest = _soft(p, t, smooth, 1), _soft(1 - p, ~t, smooth, 1)
    batch = _soft(p.flatten(), t.flatten(), smooth, 0)
    mixed = "the pixels of all slices still go into one fraction: which sums run over "
    mixed += "more than one slice?"
    below = 1 - 2 * (p * t).sum(1) / (p.sum(1) + t.sum(1) + smooth)
    return [
        (batch, mixed),
        (batch / len(p), f"{mixed} And it is divided by their number"),
        (each.sum(), "the losses are summed: a larger batch would take larger steps"),
        ((1 - each).mean(), "this is the Dice itself; a step would make it smaller"),
        (_soft((p > 0.5).float(), t, smooth, 1).mean(), "a threshold is applied before "
         "the fraction, and a threshold has no gradient"),
        (((each + rest) / 2).mean(), "the background is averaged in; the original's "
         "sums of the foreground are right"),
        (_soft(p, t, 0.0, 1).mean(), "what happened to smooth?"),
        (_soft(p, t, smooth * len(p), 1).mean(), "smooth belongs once in each slice"),
        (below.mean(), "smooth is in the denominator only: what is the loss of an "
         "empty slice?"),
        (_soft(p, t, smooth, 0).mean(), "a sum over the slices and a mean over pixels: "
         "it should be the other way round"),
    ]  # fmt: skip
