"""The benchmark itself: its contestants, and the watch over its yardstick."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.benchmarks import bench
from tests.benchmarks.jobs import TINY_MANY

SMALL = replace(TINY_MANY, num_clients=6, cohort=3, num_test=1000)


@pytest.mark.parametrize("name", bench.CONTESTANTS)
def test_every_contestant_makes_rounds(name):
    rounds = bench.CONTESTANTS[name](SMALL)
    assert [bench.one_round(name, rounds) > 0 for _ in range(2)] == [True, True]


FLOOR, SERIAL = bench.PLAUSIBLE


def found(**changes: float) -> dict:
    goals = [
        ("kept", 1.0, "≤", 1.25),
        ("missed", 3.0, "≤", 1.25),
        ("told", 2.0, "", None),
    ]
    rows = pd.DataFrame({"seconds": [1.5], **dict.fromkeys(bench.RATIOS, 7.75)})
    watched = {FLOOR: 1.8, SERIAL: 2.2} | changes
    return {"watched": watched, "rows": rows, "goals": goals}


@pytest.mark.parametrize(
    "plain",
    [{FLOOR: 1.5}, {FLOOR: 2.2}, {FLOOR: float("nan")}, {SERIAL: 1.7}, {SERIAL: 5.6}],
)
def test_no_ratio_is_printed_when_the_yardstick_is_off(plain, capsys, tmp_path):
    with pytest.raises(SystemExit, match=r"no ratios: .* plain PyTorch"):
        bench.report(found(**plain), tmp_path / "out")
    out = capsys.readouterr().out
    assert "1.5" in out and "7.75" not in out and "1.25" not in out
    assert not (tmp_path / "out").exists()


def test_goals_are_printed_with_what_was_missed(capsys, tmp_path):
    bench.report(found(), tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("MISSED") for line in lines[-3:]] == [False, True, False]
    goals = pd.read_csv(tmp_path / "out" / "goals.csv")
    assert goals["value"].tolist() == [1.0, 3.0, 2.0] and np.isnan(goals["goal"][2])
