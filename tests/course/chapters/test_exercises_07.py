"""Exercises of chapter 07: shares of opponents, a lucky lead, a reported number."""

import sys

import numpy as np

from fedlab_course.chapters.leaderboard import BOARDS
from fedlab_course.exercises import check, report_curves
from fedlab_course.leaderboard import beaten as by_the_package

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
GIVEN = {"lucky_lead": {"num_methods": 10, "sd": 1.5}}
HIDDEN = {"lucky_lead": ["2.3"]}


# ---- implement ----------------------------------------------------------------------
def beaten(scores):
    here = ~np.isnan(scores)
    wins = (scores[:, None] > scores).sum(1)
    ties = (scores[:, None] == scores).sum(1) - 1
    return np.where(here, wins + ties / 2, np.nan) / (here.sum() - 1)


def beaten_by_loop(scores):
    found = []
    for i, mine in enumerate(scores):
        others = [s for j, s in enumerate(scores) if j != i and s == s]
        points = [1.0 * (mine > s) + 0.5 * (mine == s) for s in others]
        found.append(np.mean(points) if mine == mine else np.nan)
    return found


RIGHT["beaten"] = [beaten, beaten_by_loop]


def test_the_package_gives_the_same_shares():
    import pandas as pd

    for board in BOARDS:
        (found,) = by_the_package(pd.DataFrame([board])).to_numpy()
        np.testing.assert_allclose(found, beaten(np.array(board)))


def with_ties_worth(value):
    def answer(scores):
        here = ~np.isnan(scores)
        wins = (scores[:, None] > scores).sum(1)
        ties = (scores[:, None] == scores).sum(1) - 1
        return np.where(here, wins + value * ties, np.nan) / (here.sum() - 1)

    return answer


def spoils_scores(scores):
    scores[:] = 0
    return scores


WRONG["beaten"] = [
    (with_ties_worth(0), "counts as a loss"),
    (with_ties_worth(1), "counts as a win"),
    (lambda s: beaten(s) * ((~np.isnan(s)).sum() - 1), "a share has a divisor"),
    (lambda s: beaten(s) * ((~np.isnan(s)).sum() - 1) / len(s), "itself"),
    (lambda s: 1 - beaten(s), "wrong way round"),
    (lambda s: beaten(np.nan_to_num(s)), "some shares are wrong"),
    (lambda s: np.nan_to_num(beaten(s)), "not a defeat"),
    (lambda s: beaten(s) * ((~np.isnan(s)).sum() - 1) / (len(s) - 1), "could not run"),
    (lambda s: beaten(s)[:-1], "shape"),
    (spoils_scores, "changed"),
]


# ---- compute ------------------------------------------------------------------------
DRAWN = np.random.default_rng(0).normal(0, 1.5, (20_000, 10))
RIGHT["lucky_lead"] = [DRAWN.max(1).mean()]


def test_a_right_number_does_not_wait_for_a_library(monkeypatch):
    """The time limit would stop its import, and leave half a library behind."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert check("lucky_lead", 2.3, **GIVEN["lucky_lead"]).passed is True


WRONG["lucky_lead"] = [
    (0, "the best was lucky"),
    (1.5, "largest of many"),
    (1.5 * 0.5642, "better of two"),
    (2 * 1.5388 * 1.5, "from the worst to the best"),
    (1.5 * np.sqrt(2 * np.log(10)), "a bound"),
    (1.96 * 1.5, "how many there are"),
    (1.5 / np.sqrt(10), "mean of all"),
    (1.5388, "which unit"),
    (7.7, "simulation"),
    ("two", "expected a number"),
]


# ---- diagnose -----------------------------------------------------------------------
RIGHT["reported"] = [lambda c: c[:, -2:].mean(), lambda c: c[:, -2:].mean(0).mean()]
WRONG["reported"] = [
    (report_curves, "original"),
    (lambda c: c.max(1).mean(), "each seed's best"),
    (lambda c: c.max(), "luckiest seed"),
    (lambda c: c[:, -2:].mean(1).max(), "whose seed"),
    (lambda c: c[:, -2:].max(1).mean(), "chosen again"),
    (lambda c: c[:, -1].mean(), "how many does the rule average"),
    (lambda c: c.mean(), "where training ends"),
    (lambda c: c[-2:].mean(), "which axis"),
    (lambda c: np.median(c), "not the rule's number"),
    (lambda c: c[:, -2:].mean(0), "one number"),
]
