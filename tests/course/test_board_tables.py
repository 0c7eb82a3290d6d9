"""The committed tables of chapter 07 agree with each other and with their figures."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import leaderboard
from fedlab_course.chapter import ROOT

BOARD = ROOT / "figures" / "07_leaderboard"


@pytest.fixture(params=["", "real"], ids=["laptop", "real"])
def read(request):
    def table(name: str) -> pd.DataFrame:
        return pd.read_csv(BOARD / request.param / f"{name}.csv")

    return table


@pytest.fixture
def runs(read):
    return read("runs").fillna({"held_out_domain": ""})


def test_the_map_shows_the_table_of_points_ahead(read):
    pd.testing.assert_frame_equal(read("ahead"), read("ahead_of_fedavg"))


def test_points_ahead_are_differences_of_the_mean_scores(read):
    scores = read("measures").set_index(["protocol", "method"])["score"]
    ahead = read("ahead_of_fedavg").set_index(["protocol", "method"])["mean"] * 100
    base = scores.xs("FedAvg", level="method")
    wanted = scores.sub(base, level="protocol").drop("FedAvg", level="method")
    wanted = wanted.reindex(ahead.index)
    np.testing.assert_allclose(ahead, wanted, atol=1e-9)
    assert len(ahead) == len(scores) - len(base)


def test_a_score_is_the_mean_of_the_last_two_evaluations_of_its_curve(read, runs):
    curves = read("curves").set_index(["protocol", "method"])
    scores = runs.groupby(["protocol", "method"])["score"].mean() * 100
    for key in curves.index.unique():
        ends = curves.loc[[key]].sort_values("round")["mean"].iloc[-2:]
        assert ends.mean() == pytest.approx(scores[key])


def test_ranks_are_those_of_the_runs(read, runs):
    ranks = leaderboard.ranks(runs)
    pd.testing.assert_frame_equal(read("ranks"), ranks, check_exact=False)
    beats = read("cost").set_index("method")["beats"] / 100
    wanted = ranks.set_index("method")["beats"].reindex(beats.index)
    np.testing.assert_allclose(beats, wanted)
