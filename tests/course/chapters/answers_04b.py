"""Answers to chapter 04b: Dice, what it makes of size, as released, and soft."""

from itertools import chain

import torch

from fedlab_course.exercises import dice_of_a_batch

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers


def slices(found, true):
    both = (found & true).sum((1, 2))
    each = found.sum((1, 2)) + true.sum((1, 2))
    return torch.where(each == 0, 1.0, 2 * both / each)


def dice(found, true):
    return slices(found, true).mean()


def dice_by_loop(found, true):
    total = 0.0
    for p, t in zip(found.tolist(), true.tolist(), strict=True):
        p, t = list(chain(*p)), list(chain(*t))
        both, each = sum(a and b for a, b in zip(p, t, strict=True)), sum(p) + sum(t)
        total += 2 * both / each if each else 1.0
    return total / len(found)


RIGHT["dice"] = [dice, dice_by_loop]


def ratio(found, true):
    return 2 * (found & true).sum((1, 2)) / (found.sum((1, 2)) + true.sum((1, 2)))


WRONG["dice"] = [
    (lambda f, t: 2 * (f & t).sum() / (f.sum() + t.sum()), "all pixels of all slices"),
    (lambda f, t: ratio(f, t).mean(), "0 / 0"),
    (lambda f, t: ratio(f, t).nan_to_num(0).mean(), "worst answer"),
    (lambda f, t: ratio(f, t).nanmean(), "left out"),
    (lambda f, t: (slices(f, t) / (2 - slices(f, t))).mean(), "over union"),
    (lambda f, t: (f == t).float().mean(), "share of right pixels"),
    (lambda f, t: (dice(f, t) + dice(~f, ~t)) / 2, "background is averaged in"),
    (lambda f, t: (ratio(f, t) / 2).nan_to_num(1).mean(), "one half"),
    (slices, "one number per slice"),
    (lambda f, t: dice(f, t) ** 3, "by hand"),
    (lambda f, t: "1", "expected one number"),
    (lambda f, t: dice(f.logical_not_(), t), "'found' changed"),
]


STUBS = {"shifted_dice": [{"large": ..., "small": ..., "wide": ...}]}


GUESS = {"large": 0.9, "small": 0.6, "wide": 0.68}
RIGHT["shifted_dice"] = [GUESS]
WRONG["shifted_dice"] = [
    (GUESS | change, words)
    for change, words in [
        ({"large": 18 / 22}, ("over union", "'large'")),
        ({"small": 3 / 7}, ("over union", "'small'")),
        ({"small": 60.0}, "per cent"),
        ({"small": 0.3}, "one half"),
        ({"wide": 25 / 49}, "over union"),
        ({"wide": 1.0}, "cost nothing"),
        ({"wide": 50 / 61}, "every side"),
        ({"large": 0.2}, "both squares"),
        ({"large": 0.95}, "both squares"),  # one pixel off, and not wider
        ({"small": 1.0}, "both squares"),
        ({"large": "0.9"}, "expected a number"),
        ({"other": 0.9}, "the names"),
    ]
]
SLICE = {"pixels": 384 * 384, "true": 3000, "found": 2800, "both": 2400}
GIVEN = {"released_dice": SLICE}


def released_dice(pixels, true, found, both):
    organ = 2 * both / (true + found)
    rest = 2 * (pixels - true - found + both) / (2 * pixels - true - found)
    return (organ + rest) / 2


def released_dice_from_masks(pixels, true, found, both):
    first, second = torch.zeros(2, 1, pixels, dtype=torch.bool)
    first[0, :true], second[0, true - both : true - both + found] = True, True
    pair, rest = (first[None], second[None]), (~first[None], ~second[None])
    return float(dice(*pair) + dice(*rest)) / 2


RIGHT["released_dice"] = [released_dice, released_dice_from_masks]
RIGHT["released_dice"] += [answer(**SLICE) for answer in RIGHT["released_dice"]]
WRONG["released_dice"] = [
    (lambda n, t, f, b: 2 * b / (t + f), "organ's own"),
    (lambda n, t, f, b: 2 * (n - t - f + b) / (2 * n - t - f), "background's Dice"),
    (lambda *counts: 100 * released_dice(*counts), "per cent"),
    (lambda n, t, f, b: (n - t - f + 2 * b) / n, "right pixels"),
    (lambda n, t, f, b: 0.5 + b / (t + f), "not quite perfect"),
    (lambda n, t, f, b: b / n, "two-by-two table"),
]
WRONG["released_dice"] += [
    (answer(*SLICE.values()), words) for answer, words in WRONG["released_dice"]
]


def soft_dice(logits, masks, smooth=1.0, change=lambda loss: loss.mean()):
    p = logits.softmax(1)[:, 1].flatten(1)
    t = (masks == 1).flatten(1)
    both, each = (p * t).sum(1), p.sum(1) + t.sum(1)
    return change(1 - (2 * both + smooth) / (each + smooth))


def soft_dice_by_loop(logits, masks, smooth):
    pairs = zip(logits, masks, strict=True)
    losses = [dice_of_a_batch(z[None], m[None], smooth) for z, m in pairs]
    return torch.stack(losses).mean()


RIGHT["soft_dice"] = [soft_dice, soft_dice_by_loop]


def wrong_soft_dices():
    def hard(logits, masks, smooth):
        p = (logits.softmax(1)[:, 1] > 0.5).float()
        odd = torch.stack([1 - p, p], 1).mul(1e4) + 0 * logits
        return soft_dice(odd, masks, smooth)

    def with_ground(logits, masks, smooth):
        rest = soft_dice(logits.flip(1), 1 - masks, smooth)
        return (soft_dice(logits, masks, smooth) + rest) / 2

    def smooth_below(logits, masks, smooth):
        p, t = logits.softmax(1)[:, 1].flatten(1), (masks == 1).flatten(1)
        return (1 - 2 * (p * t).sum(1) / (p.sum(1) + t.sum(1) + smooth)).mean()

    def detached(logits, masks, smooth):
        return soft_dice(logits.detach(), masks, smooth)

    def over_slices(logits, masks, smooth):
        p, t = logits.softmax(1)[:, 1].flatten(1), (masks == 1).flatten(1)
        both, each = (p * t).sum(0), p.sum(0) + t.sum(0)
        return (1 - (2 * both + smooth) / (each + smooth)).mean()

    return [
        (dice_of_a_batch, "one fraction"),
        (lambda z, m, s: dice_of_a_batch(z, m, s) / len(z), "one fraction"),
        (lambda z, m, s: soft_dice(z, m, s, lambda loss: loss.sum()), "summed"),
        (lambda z, m, s: 1 - soft_dice(z, m, s), "Dice itself"),
        (hard, "threshold"),
        (with_ground, "background is averaged in"),
        (lambda z, m, s: soft_dice(z, m, 0.0), "happened to smooth"),
        (smooth_below, "denominator only"),
        (over_slices, "other way round"),
        (detached, "no gradient"),
        (lambda z, m, s: soft_dice(z, m, s, lambda loss: loss), "one loss per slice"),
        (lambda z, m, s: soft_dice(z, m, s).item(), "float"),
        (lambda z, m, s: soft_dice(z, m, s) ** 2, "mixes the slices"),
    ]


WRONG["soft_dice"] = wrong_soft_dices()
