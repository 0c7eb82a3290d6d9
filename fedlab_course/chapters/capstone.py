"""Chapter 07's capstone: your own method, a prediction, and the result on a board."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch

from fedlab_support import FedAvg
from fedlab_support.methods import catalogue, changed_hooks

from ..checking.exercise import NotAttempted, Wrong, exercise
from ..checking.table import Mistakes, Rules, compare, expect_names, read
from ..leaderboard.paired import LEAST, paired
from ..protocols import COMPARED
from .fedprox import after_two_rounds

NO_DIFFERENCE, WIDEST, SMALLEST = 1.0, 10.0, 0.05
"""Limits of a prediction, in points."""
SENTENCES = {
    "a": "it also covers other data sets, networks and settings; you ran one of each",
    "b": "the interval does not lie above zero",
    "c": "the interval does not lie below zero",
    "d": "the interval excludes zero, so these seeds do decide",
    "e": "an interval that contains zero contains other differences, too, so it does "
    "not show that two methods are equal",
}
"""The letters of the exercise, and why the interval does not support each of them."""


@exercise
def own_method(answer: Mapping[str, FedAvg]) -> str:
    """Check a class over two rounds: FedAvg if neutral, different if not, reproducible.

    answer: two objects of the class, "mine" and, with other settings, "neutral".
    """
    mine, neutral = _entries(answer, ("mine", "neutral"))
    if isinstance(mine, type) or isinstance(neutral, type):
        raise Wrong("expected objects, found a class; call it, as in Mine()")
    if not isinstance(mine, FedAvg) or type(mine) is not type(neutral):
        raise Wrong("expected two objects of one class that inherits from fl.FedAvg")
    if not (hooks := changed_hooks(type(mine))):
        raise NotAttempted("not attempted: without a hook your class is FedAvg")
    if mine == neutral:
        raise Wrong("both have the same settings; which value turns your idea off?")
    runs = FedAvg(), neutral, mine, mine
    # a loss that looks twice at a batch moves running statistics twice
    plain, *ends, again = (after_two_rounds(each, buffers=False) for each in runs)
    off, on = (_is_near(end, plain) for end in ends)
    if on and not off:
        raise Wrong("the wrong way round: 'mine' is FedAvg, and 'neutral' is not")
    if not off:
        raise Wrong(
            "after two rounds 'neutral' does not have the weights of FedAvg. Which "
            "value turns your idea off, and does the hook compute FedAvg then?"
        )
    if on:
        raise Wrong("'mine' has the weights of FedAvg: does the hook use the setting?")
    if not torch.equal(ends[1], again):
        raise Wrong(
            "two runs with one seed differ, so seeds cannot be paired: draw random "
            "numbers from context.rng, and keep nothing between runs"
        )
    return f"FedAvg where it is neutral, and not elsewhere; it uses {', '.join(hooks)}"


@exercise
def own_prediction(answer: Mapping[str, object]) -> str:
    """Check that a prediction can fail: a protocol, and a narrow range of points.

    answer: "on", a protocol; "low" and "high", points ahead of FedAvg.
    """
    on, *ends = _entries(answer, ("on", "low", "high"))
    if on not in COMPARED:
        raise Wrong(f"there is no protocol {on!r}; choose from {', '.join(COMPARED)}")
    low, high = (read(end, 0.0, Rules(what="points")) for end in ends)
    largest = max(-low, high)
    if low >= high:
        raise Wrong("'low' must lie below 'high'")
    if abs(low) < SMALLEST > abs(high):
        raise Wrong("too close to zero to be measured; are these shares, not points?")
    if high - low > WIDEST:
        raise Wrong(f"a range of {high - low:g} points is hard to miss; be bolder")
    if low < 0 < high and largest > NO_DIFFERENCE:
        raise Wrong(
            "the range contains a lead and a loss, so most results confirm it. Choose "
            "a side, or predict no difference: at most a point either way"
        )
    return "a prediction that a result can contradict"


@exercise
def own_result(answer: Mapping[str, object]) -> str:
    """Check a board: paired seeds, the interval, and the sentence that it supports.

    answer: "prediction", as above; "runs", of the board; "method", its name there;
            "low" and "high", points of the 95 % interval; "sentence", a letter.
    """
    names = "prediction", "runs", "method", "low", "high", "sentence"
    prediction, runs, method, low, high, sentence = _entries(answer, names)
    own_prediction.check(prediction)
    mine, plain = _scores(runs, method, prediction["on"])
    right = paired(mine - plain)
    edges = {"low": (low, right.low, -1), "high": (high, right.high, 1)}
    for name, (given, edge, side) in edges.items():
        found = read(given, 0.0, Rules(what="points"), name)
        advice = f"{name!r} is not the end of the interval; pass `paired` the points"
        compare(found, edge, _misread(mine, plain, side), advice, 0, atol=0.06)
    if sentence not in SENTENCES:
        raise Wrong(f"expected a letter from a to e, found {sentence!r}")
    if sentence != ("b" if right.low > 0 else "c" if right.high < 0 else "d"):
        raise Wrong(f"not {sentence}: {SENTENCES[sentence]}")
    if right.high < prediction["low"] or prediction["high"] < right.low:
        return f"{sentence} is supported, and your prediction is contradicted"
    return f"{sentence} is supported, and your prediction is not contradicted"


def _is_near(end: torch.Tensor, plain: torch.Tensor) -> bool:
    """Whether two runs end with the same weights; a method may add some."""
    return end.shape == plain.shape and bool((end - plain).abs().max() <= 1e-4)


def _entries(answer: object, names: tuple[str, ...]) -> list:
    expect_names(answer, names)
    return [answer[name] for name in names]


def _scores(runs: object, method: str, on: str) -> tuple[np.ndarray, np.ndarray]:
    """The scores of a method and of FedAvg in points, by seed; Wrong if unfair."""
    if not isinstance(runs, pd.DataFrame) or "score" not in runs:
        raise Wrong("'runs' is the table of a board with a row per run: board.runs")
    scores = runs[runs["protocol"] == on].pivot_table("score", "seed", "method") * 100
    if method in catalogue():
        raise Wrong(f"{method} is a method of the package; which is your own?")
    for name in (method, "FedAvg"):
        if name not in scores:
            raise Wrong(
                f"there are no runs of {name!r} on {on!r}, the protocol that your "
                "prediction names"
            )
    pair = scores[[method, "FedAvg"]].dropna(how="all")
    if pair.isna().any(axis=None):
        raise Wrong("the two have different seeds, so they cannot be paired")
    if len(pair) < LEAST:
        raise Wrong(f"an interval needs {LEAST} seeds, found {len(pair)}")
    mine, plain = pair.to_numpy().T
    if (mine == plain).all():
        raise Wrong("every run equals FedAvg's: is this your method, and not neutral?")
    return mine, plain


def _misread(mine: np.ndarray, plain: np.ndarray, side: int) -> Mistakes:
    """Results of typical mistakes for the lower (side -1) or upper end."""
    from scipy.stats import ttest_ind

    right, edge = paired(mine - plain), "low" if side < 0 else "high"
    apart = ttest_ind(mine, plain, equal_var=False).confidence_interval(0.95)
    error = right.sd / np.sqrt(right.num)
    return [
        (getattr(right, edge) / 100, "these are shares; how many points?"),
        (getattr(paired(plain - mine), edge), "this is FedAvg minus yours; a method is "
         "ahead if the difference is positive"),
        (right.mean + side * right.sd, "this is the spread of seeds; the interval is "
         "that of their mean"),
        (right.mean + side * 1.96 * error, "1.96 is for many seeds; for few, use "
         "Student's t"),
        (getattr(apart, edge), "seeds are not paired here: subtract seed by seed"),
    ]  # fmt: skip
