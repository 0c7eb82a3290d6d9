"""Paired statistics against scipy, tables and values by hand."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedlab_course.leaderboard.paired import (
    Paired,
    holm,
    leads,
    over_images,
    paired,
    pairs_needed,
    verdict,
)


# ---- seeds --------------------------------------------------------------------------
def test_the_interval_is_students_by_hand():
    found = paired([1.0, 2.0, 6.0])
    sd = math.sqrt(7)  # of 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, over n - 1 = 2
    reach = 4.302653 * sd / math.sqrt(3)  # t_{2, 0.975}, from a printed table
    assert (found.mean, found.num) == (3.0, 3)
    assert found.sd == pytest.approx(sd)
    assert (found.low, found.high) == pytest.approx((3 - reach, 3 + reach), rel=1e-6)


def test_pairing_removes_what_a_seed_does_to_both():
    rng = np.random.default_rng(0)
    seeds = rng.normal(0, 20, 8)
    mine, other = seeds + rng.normal(2, 1, 8), seeds + rng.normal(0, 1, 8)
    found = paired(mine - other)
    assert found.p == pytest.approx(stats.ttest_rel(mine, other).pvalue)
    assert found.low > 0 and found.p < 0.05
    assert stats.ttest_ind(mine, other).pvalue > 0.5


def test_below_three_pairs_there_is_no_interval():
    for some, sd in (([0.4], np.nan), ([0.4, 0.6], 0.1 * math.sqrt(2))):
        found = paired(some)
        assert np.isnan([found.low, found.high, found.p]).all()
        assert found.sd == pytest.approx(sd, nan_ok=True)
        assert found.mean == pytest.approx(np.mean(some))


@pytest.mark.parametrize("equal", [[0.5] * 4, [0.82 - 0.8, 0.76 - 0.74, 0.62 - 0.6]])
def test_equal_differences_cannot_be_tested(equal):
    found = paired(equal)
    assert found.low == found.high == found.mean == pytest.approx(equal[0])
    assert found.sd == 0 and np.isnan(found.p)
    assert verdict(0.1, found, found.p).startswith("undecided (equal")


def test_no_difference_in_any_pair_is_no_difference():
    assert paired([0.0] * 4) == Paired(0, 0, 0, 0.0, 4, 1)


def test_leads_are_paired_by_seed_and_say_which_difference_is_clear():
    each = pd.DataFrame(
        {"A": [50.0, 60.0, 70.0], "B": [51.0, 62.0, 76.0], "C": [49.0, np.nan, np.nan]}
    )
    found = leads(each, "A")
    b, c = found.to_dict("records")
    assert list(found.index) == ["B", "C"]
    reach = 4.302653 * math.sqrt(7 / 3)  # of 1, 2, 6, as above
    assert b == {
        "points": 3.0,
        "95 % interval": f"{3 - reach:.1f} to {3 + reach:.1f}",
        "clear from": round(reach, 1),
        "seeds": 3,
        "ahead": 3,
    }
    assert np.isnan(c["clear from"])
    assert (c["points"], c["95 % interval"], c["seeds"], c["ahead"]) == (-1, "–", 1, 0)


@pytest.mark.parametrize("wrong", [[], [1.0, np.nan], [[1.0, 2.0]]])
def test_pairs_that_are_not_pairs_are_refused(wrong):
    with pytest.raises(ValueError, match="finite difference"):
        paired(wrong)


# ---- images -------------------------------------------------------------------------
@pytest.mark.slow
def test_the_bootstrap_over_images_has_the_normal_interval():
    rng = np.random.default_rng(3)
    mine, other = rng.random((3, 4000)) < 0.6, rng.random((3, 4000)) < 0.55
    low, high = over_images(mine, other)
    each = mine.mean(0) - other.mean(0)
    reach = 1.96 * each.std(ddof=1) / math.sqrt(len(each))
    assert (low, high) == pytest.approx(
        (each.mean() - reach, each.mean() + reach), abs=reach / 10
    )
    assert (low, high) == over_images(mine, other)
    assert over_images(other, mine) == pytest.approx((-high, -low), abs=reach / 10)


def test_seeds_of_one_image_are_drawn_together():
    """Copies of one network are no further images."""
    rng = np.random.default_rng(3)
    mine, other = rng.random(500) < 0.6, rng.random(500) < 0.5
    once = over_images(mine[None], other[None])
    thrice = over_images(np.stack([mine] * 3), np.stack([other] * 3))
    assert once == pytest.approx(thrice)


def test_equal_answers_differ_by_nothing():
    same = np.ones((2, 5), dtype=bool)
    assert over_images(same, same) == (0, 0)


# ---- several claims -----------------------------------------------------------------
def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([0.2]).tolist() == [0.2]


def test_holm_ignores_claims_without_a_test_and_is_between_none_and_bonferroni():
    found = holm([0.02, np.nan, 0.03])
    assert np.isnan(found[1])
    assert found[[0, 2]].tolist() == pytest.approx([0.04, 0.04])
    p = np.random.default_rng(1).random(30)
    assert (p <= holm(p)).all() and (holm(p) <= np.minimum(1, 30 * p)).all()


# ---- how many would be needed -------------------------------------------------------
@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_pairs_needed_are_those_of_cohens_tables(effect, n):
    assert pairs_needed(1.0, effect) == n
    assert pairs_needed(3.0, -3 * effect) == n


def test_pairs_needed_at_the_ends():
    assert pairs_needed(0.0, 1.0) == 3
    assert pairs_needed(1.0, 100.0) == 3
    assert pairs_needed(1.0, 0.0) is None and pairs_needed(0.0, 0.0) is None


# ---- verdicts -----------------------------------------------------------------------
CLEAR, WIDE = paired([2.0, 2.1, 1.9]), paired([-4.0, 1.0, 5.0])
SMALL = paired([0.1, -0.1, 0.2])
AGAINST = paired([-9.0, -10.0, -12.0])


@pytest.mark.parametrize(
    ("printed", "ours", "p", "words"),
    [
        (3.6, CLEAR, 0.01, "holds"),
        (-3.6, CLEAR, 0.01, "refuted"),
        (1.9, CLEAR, 0.2, "undecided (would need more than 3 seeds)"),
        (3.6, SMALL, 0.6, "not this size"),
        (-3.6, SMALL, 0.6, "not this size"),
        (1.9, AGAINST, 0.2, "not this size"),
        (
            1.0,
            CLEAR,
            0.2,
            "undecided (would need more than 3 seeds)",
        ),  # more than printed
        (0.1, SMALL, 0.6, "undecided (would need 21 seeds)"),
        (3.6, WIDE, 0.8, "undecided (would need 15 seeds)"),
        (0.0, WIDE, 0.8, "undecided (would need more than 10,000 seeds)"),
        (3.6, paired([3.0, 3.1]), np.nan, "undecided (an interval needs at least 3"),
        (1.0, Paired(2, -1e-5, 4, 1, 3, 0.05), 0.05, "undecided"),  # 1 - 0.95 > 0.05
    ],
)
def test_a_verdict_follows_from_the_interval(printed, ours, p, words):
    assert verdict(printed, ours, p).startswith(words)
