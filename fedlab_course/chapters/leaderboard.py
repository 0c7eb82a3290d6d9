"""Chapter 07: shares of methods beaten, a lucky lead, a score chosen on test data."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import NormalDist

import numpy as np

from ..checking.exercise import exercise
from ..checking.table import Case, Mistakes, Rules, compare, read, table

BOARDS = (
    [0.81, 0.84, 0.79, 0.84, 0.60],  # a tie
    [0.50, np.nan, 0.70, 0.65, np.nan, 0.65],  # a tie, and two that could not run
    [0.30, 0.20],
)
CURVES = np.array(
    [
        [0.30, 0.62, 0.78, 0.71, 0.74, 0.69],
        [0.25, 0.58, 0.72, 0.80, 0.66, 0.71],
        [0.34, 0.49, 0.81, 0.70, 0.75, 0.77],
    ]
)
"""Test accuracy, seeds × evaluations: the best round is not among the last."""


@table(
    "ties count one half, and methods that did not run neither win nor lose",
    rtol=0,
    atol=1e-6,
)
def beaten() -> Iterator[Case]:
    """`beaten(scores)`, (K,) → (K,), with ties and missing methods."""
    for board in BOARDS:
        scores = np.array(board)
        ran = ~np.isnan(scores)
        over = (scores[:, None] > scores).sum(1).astype(float)
        level = (scores[:, None] == scores).sum(1) - 1.0
        won = np.where(ran, over + level / 2, np.nan)
        yield Case(
            inputs={"scores": scores},
            right=won / (ran.sum() - 1),
            mistakes=_share_mistakes(ran, over, level, won),
            otherwise=f"for the scores {board} some shares are wrong. Do the lowest "
            "one by hand: how many methods does it beat, and out of how many?",
        )


def _share_mistakes(
    ran: np.ndarray, over: np.ndarray, level: np.ndarray, won: np.ndarray
) -> Mistakes:
    others = ran.sum() - 1
    return [
        (np.where(ran, over, np.nan) / others, "a tie counts as a loss"),
        (np.where(ran, over + level, np.nan) / others, "a tie counts as a win"),
        (won, "these are numbers of opponents; a share has a divisor"),
        (won / (others + 1), "the divisor counts the method itself as an opponent"),
        ((won + 0.5) / (others + 1), "the method is compared with itself, too"),
        (won / (len(won) - 1), "the divisor counts methods that could not run"),
        (np.nan_to_num(won) / others, "not a defeat: what stands for 'no run'?"),
        (np.where(ran, others + 1 - over - level, np.nan), "these are ranks, 1 for the "
         "best; what share does it beat?"),
        (1 - won / others, "the wrong way round: the best should have 1"),
    ]  # fmt: skip


@exercise
def lucky_lead(answer: object, num_methods: int, sd: float) -> str:
    """Check how far the best of equal methods seems ahead, in points, by luck alone.

    num_methods: equally good ones, one seed each. sd: of a seed, in points.
    """
    found = read(answer, 0.0, Rules(what="a number of points"))
    lead = _largest(num_methods)
    right = sd * lead
    if abs(found - right) <= 0.05 * right:  # a simulation is never exact
        return f"{right:.1f} points: what luck alone gives the winner, on average"
    mistakes = [
        (0.0, "they are equal, but their measured scores are not: the best was lucky"),
        (sd, "that is how far one method is off; the best is the largest of many"),
        (sd * _largest(2), "that is the better of two; how many are there?"),
        (2 * right, "that is from the worst to the best; from the truth to the best?"),
        (sd * np.sqrt(2 * np.log(num_methods)), "a bound for very many methods; "
         "simulate these"),
        (1.96 * sd, "an interval for one method ignores how many there are"),
        (sd / np.sqrt(num_methods), "that is the error of the mean of all"),
        (lead, "in which unit? You found deviations, not points"),
    ]  # fmt: skip
    otherwise = "a simulation gives another number: draw a score for each method, take "
    otherwise += "the largest, subtract the truth, and average over many such boards"
    compare(found, right, mistakes, otherwise, rtol=0.02, atol=1e-9)


def _largest(num: int) -> float:
    """Mean of the largest of `num` standard normal numbers, to four digits."""
    x = np.linspace(-9, 9, 2001)
    below = np.array([NormalDist().cdf(value) for value in x]) ** num
    return float((x[1:] + x[:-1]) / 2 @ np.diff(below))


def report_curves(curves: np.ndarray) -> float:
    """The one number that a leaderboard prints for a method.

    curves: test accuracy, (S, R): S seeds, R evaluations.
    The rule that was fixed beforehand: the mean of the last two evaluations, averaged
    over seeds. The function does something else.
    """
    at = curves.mean(axis=0).argmax()
    return float(curves[:, at].mean())


@table(
    "no test score influences which round is reported",
    rtol=0,
    atol=1e-6,
    what="one number",
)
def reported() -> Iterator[Case]:
    """A repaired `report_curves`."""
    for curves in (CURVES, CURVES[:2, ::-1] / 2, CURVES[:, :3]):
        last = curves[:, -2:]
        yield Case(
            inputs={"curves": curves},
            right=float(last.mean()),
            mistakes=[
                (report_curves(curves), "this is the original's. On which data is the "
                 "round chosen?"),
                (curves.max(1).mean(), "each seed's best round, chosen on the test "
                 "set"),
                (curves.max(), "the luckiest seed at its luckiest round"),
                (last.mean(1).max(), "the rule holds; but whose seed is reported?"),
                (last.max(1).mean(), "the better of the last two: chosen again"),
                (curves[:, -1].mean(), "this is the last evaluation alone; how many "
                 "does the rule average?"),
                (curves.mean(), "all evaluations; look where training ends"),
                (curves[-2:].mean(), "the last two seeds; which axis is time?"),
            ],
            otherwise="this is not the rule's number: last two evaluations, then over "
            "seeds",
        )  # fmt: skip
