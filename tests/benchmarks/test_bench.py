"""The benchmark itself: its loops, its neighbour, and the watch over its yardstick."""

import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
import psutil
import pytest

from tests.benchmarks import bench, jobs
from tests.benchmarks.jobs import FEMNIST_100, TINY_MANY

SMALL = replace(TINY_MANY, num_clients=6, cohort=3, num_test=1000)


@pytest.mark.parametrize("name", bench.CONTESTANTS)
def test_every_contestant_makes_rounds(name):
    rounds = bench.CONTESTANTS[name](SMALL)
    assert [bench.one_round(name, rounds) > 0 for _ in range(2)] == [True, True]


def test_the_plain_loop_is_the_one_that_is_described(monkeypatch):
    """A deep copy per client, a shuffling DataLoader, momentum that starts anew."""
    seen = {"copies": 0, "shuffled": []}
    original = jobs.copy.deepcopy
    monkeypatch.setattr(
        jobs.copy,
        "deepcopy",
        lambda model: seen.update(copies=seen["copies"] + 1) or original(model),
    )
    loader = jobs.DataLoader
    monkeypatch.setattr(
        jobs,
        "DataLoader",
        lambda data, size, shuffle: (
            seen["shuffled"].append((len(data), size, shuffle))
            or loader(data, size, shuffle=shuffle)
        ),
    )
    list(islice(jobs.plain(SMALL), 2))
    assert seen["copies"] == 2 * SMALL.cohort
    assert set(seen["shuffled"]) == {(SMALL.samples, SMALL.batch_size, True)}


def test_the_jobs_are_those_of_the_comparison():
    def parameters(job):
        return sum(p.numel() for p in job.initial().parameters())

    assert parameters(FEMNIST_100) == 6_603_710 and parameters(TINY_MANY) == 4_810
    for job, sizes in (
        (FEMNIST_100, (100, 200, 10, 64, 2000)),
        (TINY_MANY, (1000, 20, 100, 10, 2000)),
    ):
        names = ("num_clients", "samples", "cohort", "batch_size", "num_test")
        assert tuple(getattr(job, name) for name in names) == sizes


def test_the_run_trains_what_the_job_says():
    run = SMALL.run(engine="stacked").step()
    assert len(run.messages) == SMALL.cohort
    assert {m.num_examples for m in run.messages} == {SMALL.samples}
    assert len(run.federation.test) == SMALL.num_test


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


def becomes(process, is_stopped, seconds=5):
    """Signals take a moment on a busy machine."""
    end = time.monotonic() + seconds
    while (process.status() == psutil.STATUS_STOPPED) != is_stopped:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def test_the_neighbour_works_only_when_told_and_is_ended():
    before = psutil.Process().children()
    with bench.neighbour() as take_a_core:
        (process,) = set(psutil.Process().children()) - set(before)
        assert becomes(process, is_stopped=True)
        take_a_core(True)
        assert becomes(process, is_stopped=False)
        take_a_core(False)
    assert not process.is_running()


@pytest.mark.slow
def test_memory_is_that_of_a_process_of_its_own():
    assert 100 < bench.peak_megabytes("tiny-many", "stacked") < 1000
