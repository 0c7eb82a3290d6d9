"""Chapter 07's tasks: who beats how many, what luck gives the best, a round chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import integrate, stats

from .checking import Wrong, call, name_mistake

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


def check_beaten(answer: Callable[[np.ndarray], np.ndarray]) -> str:
    """Check `beaten(scores)`, (K,) → (K,), with ties and with methods that are gaps."""
    for board in BOARDS:
        scores = np.array(board)
        handed = scores.copy()
        found = call(answer, handed, given=f"scores {board}")
        if not np.array_equal(handed, scores, equal_nan=True):
            raise Wrong("the scores changed; leave what you are given as it is")
        found = np.asarray(found, dtype=float)
        if found.shape != scores.shape:
            raise Wrong(f"expected {scores.shape} shares, found shape {found.shape}")
        _check_shares(found, scores)
    return "ties are halves, and who is not there neither wins nor loses"


def _check_shares(found: np.ndarray, scores: np.ndarray) -> None:
    here = ~np.isnan(scores)
    over = (scores[:, None] > scores).sum(1).astype(float)
    level = (scores[:, None] == scores).sum(1) - 1.0
    others, everybody = here.sum() - 1, len(scores) - 1
    won = np.where(here, over + level / 2, np.nan)
    if _is_near(found, won / others):
        return
    places = np.where(here, 1 + here.sum() - over - 1 - level, np.nan)
    mistakes = [
        (np.where(here, over, np.nan) / others, "who is level lost: what is a tie?"),
        (np.where(here, over + level, np.nan) / others, "a tie counts as a win"),
        (won, "these are numbers of opponents; a share has a divisor"),
        (won / (others + 1), "the divisor counts the method itself as an opponent"),
        ((won + 0.5) / (others + 1), "the method is compared with itself, too"),
        (won / everybody, "the divisor counts methods that could not run"),
        (np.nan_to_num(won) / others, "a gap is no defeat: what stands for 'no run'?"),
        (places, "these are places, 1 for the best; the share of whom it beats?"),
        (1 - won / others, "the wrong way round: the best should have 1"),
    ]
    name_mistake(found, mistakes, _is_near)
    raise Wrong(
        f"for the scores {scores.tolist()} some shares are wrong. Do the lowest one by "
        "hand: whom does it beat, and of how many?"
    )


def check_lucky_lead(answer: object, num_methods: int, sd: float) -> str:
    """Check how far the best of equal methods seems ahead, in points, by luck alone.

    num_methods: equally good ones, one seed each. sd: of a seed, in points.
    """
    if isinstance(answer, (bool, str)):
        raise Wrong(f"expected a number of points, found {type(answer).__name__}")
    lead = float(answer)
    right = sd * _largest(num_methods)
    if abs(lead - right) <= 0.05 * right:
        return f"{right:.1f} points: what one seed each has to beat to mean anything"
    bound = sd * np.sqrt(2 * np.log(num_methods))
    mistakes = [
        (0.0, "they are equal, but what is measured is not: the best was lucky"),
        (sd, "that is how far one method is off; the best is the largest of many"),
        (sd * _largest(2), "that is the better of two; how many are there?"),
        (2 * right, "that is from the worst to the best; from the truth to the best?"),
        (bound, "that is a bound for very many methods; simulate for these"),
        (1.96 * sd, "an interval of one method knows nothing of how many there are"),
        (sd / np.sqrt(num_methods), "that is how well the mean of all is known"),
        (right / sd, "in which unit? You found deviations, not points"),
    ]
    name_mistake(lead, mistakes, lambda a, b: abs(a - b) <= 0.02 * abs(b) + 1e-9)
    raise Wrong(
        "another number comes out of a simulation: draw a score for each method, take "
        "the largest, subtract the truth, and average over many such boards"
    )


def _largest(num: int) -> float:
    """Mean of the largest of `num` standard normal numbers."""
    normal = stats.norm

    def density(x: float) -> float:
        return x * num * normal.pdf(x) * normal.cdf(x) ** (num - 1)

    return integrate.quad(density, -9, 9)[0]


def report_curves(curves: np.ndarray) -> float:
    """The one number that a board prints for a method.

    curves: test accuracy, (S, R): S seeds, R evaluations. The rule that was fixed
    beforehand: the mean of the last two evaluations, averaged over seeds. It does
    something else.
    """
    at = curves.mean(axis=0).argmax()
    return float(curves[:, at].mean())


def check_reported(answer: Callable[[np.ndarray], float]) -> str:
    """Check a repaired `report_curves`."""
    for curves in (CURVES, CURVES[:2, ::-1] / 2, CURVES[:, :3]):
        handed = curves.copy()
        found = call(answer, handed, given=f"curves of shape {curves.shape}")
        if not np.array_equal(handed, curves):
            raise Wrong("the curves changed; leave what you are given as it is")
        if np.ndim(found):
            raise Wrong(f"expected one number, found shape {np.shape(found)}")
        _check_report(float(found), curves)
    return "no test score has a say in which round is reported"


def _check_report(found: float, curves: np.ndarray) -> None:
    if _is_near(found, curves[:, -2:].mean()):
        return
    mistakes = [
        (report_curves(curves), "this is the original's. Who chooses the round?"),
        (curves.max(1).mean(), "each seed's best round: still chosen on the test set"),
        (curves.max(), "the luckiest seed at its luckiest round"),
        (curves[:, -2:].mean(1).max(), "the rule holds; but whose seed is reported?"),
        (curves[:, -2:].max(1).mean(), "the better of the last two: chosen again"),
        (curves[:, -1].mean(), "one evaluation; how many does the rule average?"),
        (curves.mean(), "all evaluations; the rule wants where training ends"),
        (curves[-2:].mean(), "these are the last two seeds: which axis is time?"),
    ]
    name_mistake(found, mistakes, _is_near)
    raise Wrong("this is another number than the rule's: last two, then over seeds")


def _is_near(found: object, right: object) -> bool:
    return np.allclose(found, right, rtol=0, atol=1e-6, equal_nan=True)
