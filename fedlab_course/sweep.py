r"""Sweep a chapter over a grid of its parameters: in parallel, resumable, one table.

    python -m fedlab_course.sweep notebooks/03_fedsr_feddg.ipynb --profile smoke \
        --grid seed=0,1,2 lr=0.01,0.03 --jobs 2

Axes are parameters of the chapter; where it has only the plural, as ``seeds``, the
singular sets a list of one. Under ``build/sweeps/<chapter>``, or ``--out``, stand

    table.csv, table.parquet   all runs of all cells: the history's columns, the axes,
                               and ``settings``, the name of the run's file, whose
                               settings ``archive.settings_in`` reads; runs in which the
                               chapter ignores an axis stand in several cells
    <cell>/notebook.ipynb      the executed copy, or notebook.failed.ipynb
    <cell>/figures, runs       what it exported and trained

A cell that is done is not run again unless the chapter, its parameters or the package
changed; one that was killed begins again and finds the runs that it had finished.

Any ``concurrent.futures`` executor can run the cells, on machines that share ``out``:

    from dask.distributed import Client
    with Client("scheduler:8786") as client:
        table = sweep(notebook, grid, out=folder, executor=client.get_executor())
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import papermill

from fedlab_support.core.files import replacing
from fedlab_support.core.history import TABLE, concat
from fedlab_support.run.archive import kept
from fedlab_support.run.checkpoint import claimed

from .papermill_runner import (
    ChapterError,
    Parameters,
    check,
    end_running,
    execute,
    own_folders,
    read_yaml,
    stopped_by_signals,
)
from .runner import BUILD, assignment, each_once, fingerprint, profile

LONGEST_NAME = 80
"""Of a cell's folder, in characters; longer names are cut, and stay different."""


class SweepError(Exception):
    """Some cells failed; ``table`` holds the runs of all others."""

    def __init__(self, failures: Mapping[str, str], table: pd.DataFrame):
        lines = [f"  {name}: {reason}" for name, reason in failures.items()]
        super().__init__("\n".join([f"cells that failed: {len(lines)}", *lines]))
        self.table = table


@dataclass(frozen=True)
class Cell:
    """One point of a grid, with the chapter's parameters and the folder of results."""

    notebook: Path
    point: Parameters
    params: Parameters
    folder: Path

    @property
    def name(self) -> str:
        """The point in words, as ``seed=0, lr=0.1``."""
        return ", ".join(f"{axis}={value}" for axis, value in self.point.items())

    @property
    def is_done(self) -> bool:
        """Whether this cell has completed with the current settings."""
        return _read(self.folder / "done.json") == self.mark

    @cached_property
    def mark(self) -> str:
        """A hash of everything the results depend on, computed at first use."""
        return fingerprint(self.notebook, self.params)

    def run(self) -> str:
        """Execute the chapter at this point; return the reason for a failure, or ""."""
        claim = self.folder.with_name(f".{self.folder.name}")  # of no other sweep
        try:
            with claimed(claim):
                if not self.is_done:
                    self._execute()
        except (ChapterError, OSError) as error:
            return str(error) or type(error).__name__
        return ""

    def _execute(self) -> None:
        if _read(self.folder / "begun.json") != self.mark:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self._note("begun.json")
        execute(self.notebook, self.folder / "notebook.ipynb", self.params)
        self._note("done.json")

    def _note(self, name: str) -> None:
        with replacing(self.folder / name) as part:
            part.write_text(json.dumps(self.mark), encoding="utf-8")

    def table(self) -> pd.DataFrame:
        """The histories of all runs of the cell, with the axes as columns."""
        axes = {
            axis: value if isinstance(value, str | int | float) else str(value)
            for axis, value in self.point.items()
            if axis not in TABLE
        }
        tables = [
            kept(home).table().assign(**axes, settings=home.stem)
            for home in sorted((self.folder / "runs").glob("*.zip"))
        ]
        columns = [*TABLE, *axes, "settings"]
        return concat(tables) if tables else pd.DataFrame(columns=columns)


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def plan(
    notebook: Path, grid: Mapping[str, Sequence], params: Parameters, out: Path
) -> list[Cell]:
    """The checked cells of a grid.

    Raises ValueError for a parameter that the chapter lacks, a value of another type,
    an axis without values or with one twice, axes of one parameter or of a folder, a
    chapter that keeps no runs.
    """
    known = papermill.inspect_notebook(str(notebook))
    if known and "runs_dir" not in known:
        raise ValueError(
            f"{notebook.name} keeps no runs to make a table of: expected a parameter "
            f"'runs_dir', found {sorted(known)}"
        )
    for axis, values in grid.items():
        if not values or len({str(value) for value in values}) < len(values):
            raise ValueError(
                f"axis {axis!r} needs different values, found {list(values)}"
            )
    set_by = _as_parameters(dict.fromkeys(grid), known)
    if len(set_by) < len(grid) or set_by.keys() & {"figures_dir", "runs_dir"}:
        raise ValueError(
            "axes must set different parameters, and no folder, since each cell has "
            f"its own; found {list(grid)}"
        )
    cells = []
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        folder = out / _folder_name(point)
        given = params | _as_parameters(point, known)
        homes = {"figures_dir": folder / "figures", "runs_dir": folder / "runs"}
        given |= own_folders(notebook, **homes)
        check(notebook, given)
        cells.append(Cell(notebook, point, given, folder))
    return cells


def _as_parameters(point: Parameters, known: Mapping[str, Any]) -> Parameters:
    """A point's values under the chapter's own names: seed=0 may be seeds=[0]."""
    given = {}
    for axis, value in point.items():
        is_listed = axis not in known and f"{axis}s" in known
        given |= {f"{axis}s": [value]} if is_listed else {axis: value}
    return given


def _folder_name(point: Parameters) -> str:
    text = "_".join(f"{axis}-{value}" for axis, value in point.items()) or "only"
    name = re.sub(r"[^\w.+-]+", "", text)
    if name == text and len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def sweep(
    notebook: str | Path,
    grid: Mapping[str, Sequence],
    params: Parameters | None = None,
    out: str | Path | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> pd.DataFrame:
    """Run a chapter at every point of a grid and return the table of all its runs.

    grid:     values of each parameter, by name.
    params:   other parameters to set.
    out:      folder of the results; None: ``build/sweeps/<chapter>``.
    jobs:     number of cells at a time.
    executor: runs the cells instead of ``jobs`` threads.

    Writes the table as CSV and Parquet, atomically. Raises ValueError as ``plan`` does,
    OSError if ``out`` cannot be written, and SweepError after all cells if some failed.
    """
    notebook = Path(notebook).resolve()
    out = Path(out).resolve() if out else BUILD / "sweeps" / notebook.stem
    cells = plan(notebook, grid, params or {}, out)
    out.mkdir(parents=True, exist_ok=True)
    if executor is not None:
        failures = _run_all(cells, executor)
    else:
        with ThreadPoolExecutor(jobs) as own:
            failures = _run_all(cells, own)
    good = [cell.table() for cell in cells if cell.name not in failures]
    table = concat(good) if good else pd.DataFrame(columns=[*TABLE, "settings"])
    for name in grid:  # Parquet has one type per column
        if name in table and table[name].map(type).nunique() > 1:
            table[name] = table[name].map(str)
    with (
        replacing(out / "table.csv") as csv,
        replacing(out / "table.parquet") as parquet,
    ):
        table.to_csv(csv, index=False)
        table.to_parquet(parquet, index=False)
    if failures:
        raise SweepError(failures, table)
    return table


def _run_all(cells: Sequence[Cell], executor: Executor) -> dict[str, str]:
    """Run the cells and print a line for each; return the failures by cell."""
    began, failures = time.monotonic(), {}
    futures = {executor.submit(cell.run): cell for cell in cells}
    try:
        for number, future in enumerate(as_completed(futures), start=1):
            cell, error = futures[future], future.exception()
            if failed := repr(error) if error else future.result():
                failures[cell.name] = failed
            spent = time.monotonic() - began
            how = "FAILED" if failed else "ok"
            print(f"{number:4} of {len(cells)} {spent:6.0f} s  {how:7}{cell.name}")
    except BaseException:  # an interrupt: nothing begins any more, what has begun ends
        for future in futures:
            future.cancel()
        for _ in range(20):
            end_running()
            if not wait(futures, timeout=0.5).not_done:
                break
        raise
    return {c.name: failures[c.name] for c in cells if c.name in failures}


def axis(text: str) -> tuple[str, list]:
    """Read ``seed=0,1,2`` into a name and values, which are YAML: 1, 0.1, [1, 2], x."""
    name, sign, values = text.partition("=")
    if not sign or not values:
        raise ValueError(
            f"expected an axis as seed=0,1,2, found {text!r}; values follow the ="
        )
    return name, read_yaml(f"[{values}]", f"--grid {text}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sweep on the command line; return 1 if a cell failed."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlab_course.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebook", type=Path, help="a chapter")
    parser.add_argument(
        "--profile", default="laptop", help="smoke, laptop, real or paper"
    )
    several = {"nargs": "+", "action": "extend"}
    parser.add_argument("--grid", required=True, metavar="NAME=VALUE,VALUE", **several)
    parser.add_argument("--set", default=[], metavar="NAME=VALUE", **several)
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--out", type=Path, help="folder of the results")
    chosen = parser.parse_args(arguments)
    notebook = chosen.notebook
    try:
        if not notebook.is_file():
            raise ValueError(
                f"expected a chapter, found nothing at {notebook}; chapters come with "
                "a clone of the course or with what `make handout` writes"
            )
        params = profile(chosen.profile, notebook.stem, notebook.parent)
        given = each_once(map(assignment, chosen.set))
        grid = each_once(map(axis, chosen.grid))
        known = papermill.inspect_notebook(str(notebook))
        swept = _as_parameters(grid, known)
        each_once([*given.items(), *swept.items()])  # refuses what is set and swept
        params |= given
        with stopped_by_signals():
            table = sweep(notebook, grid, params, chosen.out, chosen.jobs)
    except KeyboardInterrupt:
        print("stopped; run the same command to continue", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except SweepError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(table):,} rows of {table['settings'].nunique()} runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
