"""Sweeps: grids are checked, cells run once, kills and failures lose nothing."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, product
from pathlib import Path

import pandas as pd
import psutil
import pytest

from fedlab_course import sweep as sweeping
from fedlab_course.sweep import SweepError, axis, main, plan, sweep
from fedlab_support.core.history import TABLE, History
from fedlab_support.run import archive
from fedlab_support.run.archive import keep
from tests.course.test_runner import write_chapter
from tests.paths import ROOT

CHAPTER = """
    seeds: list = [0]  # of the runs
    lr: float = 0.1  # learning rate
    fail: bool = False  # stop in the middle
    runs_dir: str = "runs"  # finished runs
    figures_dir: str = "figures"  # exported figures
"""
WORK = """
    import shutil
    from pathlib import Path
    for seed in seeds:  # without the package, whose import takes seconds
        Path(runs_dir).mkdir(parents=True, exist_ok=True)
        shutil.copy(f"trained/{seed}_{lr}.zip", Path(runs_dir, f"run{seed}.zip"))
"""
FAIL = "assert not fail, 'as asked'"


@pytest.fixture
def chapter(tmp_path: Path) -> Path:
    """A chapter that "trains" by taking runs from a `shelf`."""
    file = tmp_path / "notebooks" / "01_small.ipynb"
    return write_chapter(file, CHAPTER, WORK, FAIL)


@pytest.fixture
def shelf(chapter: Path) -> None:
    for seed, lr in product((0, 1), (0.1, 0.2)):
        train(seed, lr, chapter.parent / "trained" / f"{seed}_{lr}.zip")


def train(seed: int, lr: float, home: Path) -> None:
    made = History("a run", "A", seed)
    made.add(1, "test", "accuracy", seed + lr)
    keep(made, "{}", home)


def in_process(notebook, out, params, *_):
    """Stands in for papermill: what the chapter above does."""
    runs = notebook.parent / params["runs_dir"]
    for seed in params.get("seeds", [0]):
        train(seed, params.get("lr", 0.1), runs / f"run{seed}.zip")


@pytest.fixture
def undisturbed(chapter, tmp_path, monkeypatch) -> Callable[[dict], pd.DataFrame]:
    """Sweeps a grid in this process."""

    def swept(grid: dict) -> pd.DataFrame:
        with monkeypatch.context() as here:
            here.setattr(sweeping, "execute", in_process)
            return sweep(chapter, grid, out=tmp_path / "undisturbed")

    return swept


def saved(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "table.csv", keep_default_na=False)


# ---- before anything runs -----------------------------------------------------------
def test_an_axis_is_a_name_and_yaml_values():
    assert axis("seed=0,1") == ("seed", [0, 1])
    assert axis("lr=0.1,1.0e-3") == ("lr", [0.1, 0.001])
    assert axis("epochs=[1, 5],[1]") == ("epochs", [[1, 5], [1]])
    assert axis("method=FedAvg,FedFA+") == ("method", ["FedAvg", "FedFA+"])
    for wrong in ("seed", "seed="):
        with pytest.raises(ValueError, match="seed=0,1,2"):
            axis(wrong)
    with pytest.raises(ValueError, match=r"--grid seed=0\]: expected YAML"):
        axis("seed=0]")


def test_all_that_is_set_counts_however_it_is_written(chapter, tmp_path, monkeypatch):
    given = []

    def noted(*all_of_it):
        given.append(all_of_it)
        return pd.DataFrame({"settings": []})

    monkeypatch.setattr(sweeping, "sweep", noted)
    smoke = chapter.parent / "profiles" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "01_small.yaml").write_text("{}\n")
    words = [str(chapter), "--profile", "smoke", "--grid", "seed=0,1", "--grid", "lr=1"]
    assert main([*words, "--set", "fail=true", "--set", "runs_dir=there"]) == 0
    ((_, grid, params, *_),) = given
    assert grid == {"seed": [0, 1], "lr": [1]}
    assert params == {"fail": True, "runs_dir": "there"}
    again = ["--set", "fail=true", "fail=false"], ["--grid", "seed=2"]
    for twice in (*again, ["--set", "lr=1"], ["--set", "seeds=[5]"]):
        with pytest.raises(SystemExit):
            main([*words, *twice])
    assert len(given) == 1


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"lrate": [0.1]}, "lrate"),
        ({"lr": ["fast"]}, "lr to be float"),
        ({"lr": []}, "'lr' needs different values"),
        ({"lr": [0.1, 0.1]}, "'lr' needs different values"),
        ({"seed": [0, 1], "seeds": [[3], [4]]}, r"found \['seed', 'seeds'\]"),
        ({"runs_dir": ["a", "b"]}, "no folder"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused_before_anything_is_written(
    chapter, tmp_path, grid, words
):
    with pytest.raises(ValueError, match=words):
        sweep(chapter, grid, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_chapter_without_parameters_or_runs_is_refused(tmp_path):
    bare = write_chapter(tmp_path / "bare.ipynb")
    with pytest.raises(ValueError, match="one cell tagged 'parameters'"):
        plan(bare, {"lr": [0.1]}, {}, tmp_path)
    idle = write_chapter(tmp_path / "idle.ipynb", "lr: float = 0.1")
    with pytest.raises(ValueError, match="'runs_dir'"):
        plan(idle, {"lr": [0.1]}, {}, tmp_path)


def test_the_singular_of_a_list_sets_a_list_of_one(chapter, tmp_path):
    cells = plan(chapter, {"seed": [0, 3]}, {"lr": 0.5}, tmp_path)
    assert [cell.params["seeds"] for cell in cells] == [[0], [3]]
    assert [cell.name for cell in cells] == ["seed=0", "seed=3"]
    assert all(cell.params["lr"] == 0.5 for cell in cells)
    assert all(os.sep not in cell.folder.name for cell in cells)


def test_every_cell_has_a_folder_of_its_own_whatever_its_values(chapter, tmp_path):
    values = [[1], ["1"], ["a/b"], ["a b"], ["x" * 300], ["x" * 301]]
    cells = plan(chapter, {"seeds": values}, {}, tmp_path)
    names = [cell.folder.name for cell in cells]
    assert len(set(names)) == len(values)
    assert max(map(len, names)) < 100
    assert all(cell.folder.parent == tmp_path for cell in cells)


# ---- running ------------------------------------------------------------------------
def test_all_runs_of_all_cells_stand_in_one_tidy_table(chapter, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "execute", in_process)
    out = tmp_path / "out"
    table = sweep(chapter, {"lr": [0.1, 0.2], "seed": [0, 1]}, out=out, jobs=2)
    assert list(table) == [*TABLE, "lr", "settings"]
    assert table["value"].tolist() == pytest.approx([0.1, 1.1, 0.2, 1.2])
    assert table["seed"].tolist() == [0, 1, 0, 1]
    assert table["settings"].tolist() == ["run0", "run1"] * 2
    pd.testing.assert_frame_equal(pd.read_parquet(out / "table.parquet"), table)
    assert saved(out)["value"].tolist() == table["value"].tolist()


def test_an_axis_may_mix_types(chapter, tmp_path, monkeypatch):
    """A column of Parquet has one type."""
    monkeypatch.setattr(sweeping, "execute", in_process)
    text = chapter.read_text(encoding="utf-8")
    chapter.write_text(text.replace("fail: bool", "fail"), encoding="utf-8")
    table = sweep(chapter, {"fail": [False, "a", 3]}, out=tmp_path / "out")
    assert table["fail"].tolist() == ["False", "a", "3"]
    assert saved(tmp_path / "out")["fail"].tolist() == ["False", "a", "3"]


@pytest.mark.slow
def test_a_cell_that_is_done_is_not_run_again_until_something_changes(
    chapter, tmp_path, monkeypatch
):
    run = []

    def counted(notebook, out, params, *_):
        run.append(params["seeds"])
        in_process(notebook, out, params)

    monkeypatch.setattr(sweeping, "execute", counted)
    first = sweep(chapter, {"seed": [0, 1]}, out=tmp_path / "out")
    again = sweep(chapter, {"seed": [0, 1, 2]}, out=tmp_path / "out")
    assert run == [[0], [1], [2]]
    pd.testing.assert_frame_equal(again.iloc[:2], first)
    write_chapter(chapter, CHAPTER, WORK, "'changed'")
    (tmp_path / "out" / "seed-0" / "runs" / "run9").mkdir()
    sweep(chapter, {"seed": [0]}, out=tmp_path / "out")
    assert run[3:] == [[0]]
    assert not (tmp_path / "out" / "seed-0" / "runs" / "run9").exists()


def test_two_sweeps_of_one_folder_do_not_mix_their_runs(chapter, tmp_path, monkeypatch):
    out, begun, free = tmp_path / "out", threading.Event(), threading.Event()

    def slow(notebook, file, params, *_):
        begun.set()
        assert free.wait(20)
        in_process(notebook, file, params)

    monkeypatch.setattr(sweeping, "execute", slow)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(sweep, chapter, {"seed": [0]}, {"lr": 0.1}, out)
        assert begun.wait(20)
        with pytest.raises(SweepError, match=r"seed=0: .*is writing"):
            sweep(chapter, {"seed": [0]}, {"lr": 0.2}, out)
        free.set()
        assert first.result()["value"].tolist() == pytest.approx([0.1])
    second = sweep(chapter, {"seed": [0]}, {"lr": 0.2}, out)
    assert second["value"].tolist() == pytest.approx([0.2])


def test_an_interrupt_begins_no_further_cell(chapter, tmp_path, monkeypatch):
    run = []

    def interrupted(notebook, file, params, *_):
        run.append(params["seeds"])
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping, "execute", interrupted)
    monkeypatch.setattr(Future, "exception", Future.result)
    with pytest.raises(KeyboardInterrupt):
        sweep(chapter, {"seed": list(range(40))}, out=tmp_path / "out")
    assert 1 <= len(run) < 40


@pytest.mark.slow
def test_a_terminated_sweep_ends_its_kernels(tmp_path):
    begun = tmp_path / "begun"
    waits = f"open({str(begun)!r}, 'w').close()\nimport time\ntime.sleep(600)"
    file = write_chapter(tmp_path / "notebooks" / "01_small.ipynb", CHAPTER, waits)
    smoke = file.parent / "profiles" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "01_small.yaml").write_text("{}\n")
    command = [sys.executable, "-m", "fedlab_course.sweep", str(file), "--grid"]
    command += ["seed=0,1", "--profile", "smoke", "--out", str(tmp_path / "out")]
    started = subprocess.Popen(command, cwd=ROOT)
    try:
        until = time.monotonic() + 300
        while not begun.exists():
            assert started.poll() is None and time.monotonic() < until
            time.sleep(0.2)
        below = psutil.Process(started.pid).children(recursive=True)
        assert len(below) >= 2, "papermill and its kernel"
        started.terminate()
        assert started.wait(120) == 130
        assert not [p for p in below if p.is_running() and p.status() != "zombie"]
    finally:
        started.kill()


def test_an_error_without_words_is_one_too(chapter, tmp_path, monkeypatch):
    def without_room(*_):
        raise MemoryError

    monkeypatch.setattr(sweeping, "execute", without_room)
    with pytest.raises(SweepError, match="MemoryError"):
        sweep(chapter, {"seed": [0]}, out=tmp_path / "out")
    assert saved(tmp_path / "out").empty


@pytest.mark.slow
@pytest.mark.usefixtures("shelf")
def test_a_cell_that_fails_is_named_with_its_reason_and_the_rest_goes_on(
    chapter, tmp_path, capsys
):
    out = tmp_path / "out"
    with pytest.raises(SweepError) as caught:
        sweep(chapter, {"fail": [True, False]}, out=out)
    assert "cells that failed: 1" in str(caught.value)
    assert re.search(r"fail=True: cell \d: AssertionError: as asked", str(caught.value))
    assert caught.value.table["fail"].tolist() == [False]
    assert len(saved(out)) == 1
    assert "FAILED" in capsys.readouterr().out
    assert (out / "fail-True" / "notebook.failed.ipynb").exists()


def until_full(room: int):
    """Stands in for `replacing`: writes so many files, then the disk is full."""
    written, whole = count(1), archive.replacing

    @contextmanager
    def replacing(path):
        with whole(path) as part:
            yield part
            if next(written) > room:
                part.write_text("half")
                raise OSError(errno.ENOSPC, "No space left on device")

    return replacing


@pytest.mark.slow
@pytest.mark.parametrize("room", range(8))  # three files a cell, and two tables
def test_wherever_the_disk_is_full_nothing_is_corrupt_and_the_sweep_goes_on(
    chapter, undisturbed, tmp_path, monkeypatch, room
):
    grid, out = {"seed": [0, 1]}, tmp_path / "out"
    expected = undisturbed(grid)
    monkeypatch.setattr(sweeping, "execute", in_process)
    with monkeypatch.context() as full:
        full.setattr(archive, "replacing", until_full(room))
        full.setattr(sweeping, "replacing", archive.replacing)
        with pytest.raises((SweepError, OSError), match="No space left"):
            sweep(chapter, grid, out=out)
    done = [file.parent for file in out.glob("*/done.json")]
    assert len(done) == (room >= 3) + (room >= 6)
    assert all(json.loads((home / "done.json").read_text()) for home in done)
    assert not list(out.rglob("*.unfinished"))
    pd.testing.assert_frame_equal(sweep(chapter, grid, out=out), expected)


def test_a_folder_that_cannot_be_written_is_said_at_once(chapter, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    smoke = chapter.parent / "profiles" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "01_small.yaml").write_text("{}\n")
    given = [str(chapter), "--profile", "smoke", "--grid", "seed=0"]
    with pytest.raises(SystemExit):
        main([*given, "--out", str(tmp_path / "file" / "out")])
    assert "file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*given[:-1], "sed=0"])
    assert "['sed']" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("shelf")
def test_other_executors_give_the_same_table(chapter, undisturbed, tmp_path):
    with ProcessPoolExecutor(1) as pool:
        there = sweep(chapter, {"seed": [0, 1]}, out=tmp_path / "pool", executor=pool)
    assert (tmp_path / "pool" / "seed-0" / "notebook.ipynb").exists()
    pd.testing.assert_frame_equal(undisturbed({"seed": [0, 1]}), there)


@pytest.mark.slow
@pytest.mark.usefixtures("shelf")
def test_a_cluster_of_dask_gives_the_same_table(chapter, undisturbed, tmp_path):
    distributed = pytest.importorskip("distributed", reason="extra `dask`")
    with distributed.Client(
        n_workers=1, threads_per_worker=1, dashboard_address=None
    ) as c:
        there = sweep(
            chapter, {"seed": [0]}, out=tmp_path / "dask", executor=c.get_executor()
        )
    pd.testing.assert_frame_equal(undisturbed({"seed": [0]}), there)


@pytest.mark.slow
@pytest.mark.usefixtures("shelf")
def test_four_cells_killed_once_end_with_the_table_of_an_undisturbed_sweep(
    chapter, undisturbed, tmp_path
):
    smoke = chapter.parent / "profiles" / "smoke"
    smoke.mkdir(parents=True)
    (smoke / "01_small.yaml").write_text("{}\n")
    command = [sys.executable, "-m", "fedlab_course.sweep", str(chapter)]
    command += ["--profile", "smoke", "--jobs", "2"]
    command += ["--grid", "seed=0,1", "lr=0.1,0.2", "--out", str(tmp_path / "killed")]
    process = subprocess.Popen(command, start_new_session=True)
    while not list((tmp_path / "killed").glob("*/done.json")):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "table.csv").exists()
    subprocess.run(command, check=True)
    undisturbed({"seed": [0, 1], "lr": [0.1, 0.2]})
    killed = saved(tmp_path / "killed")
    pd.testing.assert_frame_equal(killed, saved(tmp_path / "undisturbed"))
    assert len(killed) == 4
