"""Exercises of chapter 07: shares of opponents, a lucky lead, a reported number."""

import sys

import numpy as np
import pytest

from fedlab_course.chapters.leaderboard import BOARDS
from fedlab_course.exercises import check, report_curves
from fedlab_course.leaderboard import beaten as by_the_package
from tests.course.chapters.test_exercises import refuse

GIVEN = {"num_methods": 10, "sd": 1.5}


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


@pytest.mark.parametrize("answer", [beaten, beaten_by_loop])
def test_the_right_shares_pass(answer):
    assert check("beaten", answer).passed is True


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


WRONG_SHARES = [
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


@pytest.mark.parametrize(("answer", "words"), WRONG_SHARES)
def test_wrong_shares_get_their_own_hint(answer, words):
    refuse(check("beaten", answer), words)


# ---- compute ------------------------------------------------------------------------
def test_a_simulation_finds_the_lucky_lead():
    drawn = np.random.default_rng(0).normal(0, GIVEN["sd"], (20_000, 10))
    assert check("lucky_lead", drawn.max(1).mean(), **GIVEN).passed is True


def test_a_right_number_does_not_wait_for_a_library(monkeypatch):
    """The time limit would stop its import, and leave half a library behind."""
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert check("lucky_lead", 2.3, **GIVEN).passed is True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
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
    ],
)
def test_a_wrong_lead_gets_its_own_hint(answer, words):
    result = check("lucky_lead", answer, **GIVEN)
    refuse(result, words)
    assert "2.3" not in result.message


# ---- diagnose -----------------------------------------------------------------------
def test_the_rule_passes():
    assert check("reported", lambda c: c[:, -2:].mean()).passed is True
    assert check("reported", lambda c: c[:, -2:].mean(0).mean()).passed is True


@pytest.mark.parametrize(
    ("answer", "words"),
    [
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
    ],
)
def test_wrong_reports_get_their_own_hint(answer, words):
    refuse(check("reported", answer), words)
