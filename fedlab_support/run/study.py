"""Many runs, one table: every run is kept on disk, so a study can be stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from zipfile import ZIP_LZMA, BadZipFile, ZipFile, ZipInfo

import numpy as np
from tqdm.auto import tqdm

from ..core.history import TABLE, History, concat
from ..core.naming import is_nameless, name_of, plain
from .checkpoint import claimed
from .run import Run

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def study(
    build: Callable[..., Run],
    grid: Mapping[str, Sequence],
    rounds: int,
    folder: str | Path | None = None,
    jobs: int = 1,
    progress: bool = True,
) -> pd.DataFrame:
    """Fit ``build(**cell)`` for every cell of ``grid``; the history table of all.

    - ``build``: one value per axis of the grid → a fresh :class:`Run`.
    - ``grid``: name of an axis → its values, e.g. ``{"epochs": [1, 5], "seed": [0]}``.
    - ``folder``: where finished runs are kept. A cell whose run is there, with the same
      settings, data and rounds, is read instead of trained, and one that was stopped
      goes on from its last checkpoint; None keeps nothing. Code is not compared, nor
      are the contents of a file of weights: delete the folder after changing a method,
      a model or such a file.
    - ``jobs``: runs at a time; with more than one, build them with ``workers=1``. An
      interrupt waits for the runs that are under way, and keeps them.

    Returns the tidy table with one more column per axis (``seed`` is there already);
    values that are no numbers, texts or booleans stand there as text. Raises ValueError
    for an axis without values or one named like a column of the table.
    """
    for name, values in grid.items():
        if len(values) == 0 or isinstance(values, str):
            raise ValueError(
                f"axis {name!r} needs a list of at least one value, found {values!r}"
            )
        if name in TABLE and name not in ("seed", "method"):
            raise ValueError(
                f"axis {name!r} would overwrite that column of the history; rename it"
            )
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]

    def fit(cell: dict) -> pd.DataFrame:
        return _labelled(fit_once(build(**cell), rounds, folder).table(), cell)

    return concat(each(fit, cells, jobs, progress))


def each(
    fit: Callable[[dict], T], cells: Sequence[dict], jobs: int, progress: bool
) -> list[T]:
    """``fit(cell)`` for all cells, in their order, ``jobs`` at a time."""
    show = partial(tqdm, total=len(cells), disable=not progress, desc="runs")
    if jobs == 1:
        return list(show(map(fit, cells)))
    with ThreadPoolExecutor(jobs) as pool:
        return list(show(pool.map(fit, cells)))


def fit_once(
    run: Run,
    rounds: int,
    folder: str | Path | None = None,
    others: Sequence[str | Path] = (),
) -> History:
    """``run.fit(rounds)``, or what an equal run left in ``folder``.

    ``others``: folders of other studies; an equal run that one of them holds is copied.

    Nothing half-written is ever left: a run's file appears when it is complete. Until
    then there is a hidden folder with checkpoints, about ten of them in a whole run.
    Raises ValueError when ``folder`` is given and the run cannot be told from another,
    because its model or selection has no name of its own. Warns of a run in which no
    message was ever accepted: its numbers are those of the first weights.
    """
    if folder is None:
        return _heard(run.fit(rounds, progress=False))
    text, home = _identity(run, rounds, Path(folder))
    if not home.exists():
        elsewhere = (Path(other, home.name) for other in others)
        found = next((place for place in elsewhere if place.exists()), None)
        if found:
            keep(kept(found), text, home)
        else:
            unfinished = home.with_name(f".unfinished_{home.stem}")
            keep(_fit(run, rounds, unfinished), text, home)
            with suppress(BlockingIOError), claimed(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)
    return _heard(replace(kept(home), run=run.history.run))


def trained(run: Run, rounds: int, folder: str | Path) -> Run:
    """``run`` after ``rounds``, its network included; ``folder`` may have an equal one.

    Beside the last checkpoint stands the history, as `fit_once` keeps it.
    Raises ValueError as that does.
    """
    text, home = _identity(run, rounds, Path(folder))
    run.fit(rounds, False, checkpoint=home.with_suffix(""), every=rounds)
    if not home.exists():
        keep(run.history, text, home)
    return run


def _identity(run: Run, rounds: int, folder: Path) -> tuple[str, Path]:
    """What makes a run, as JSON, and the file that is named after it."""
    made_by = run.describe() | {"rounds": rounds, "evaluate_every": run.evaluate_every}
    for part in ("model", "select"):
        if is_nameless(made_by[part]):
            raise ValueError(
                f"a run is kept under its settings, and its {part} is only known as "
                f"{made_by[part]!r}; use functools.partial, or a function or frozen "
                "dataclass of a module or notebook cell"
            )
    text = json.dumps(made_by, indent=2, sort_keys=True, default=plain) + "\n"
    return text, folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.zip"


def _heard(history: History) -> History:
    if not any(split == "train" for _, split, *_ in history.measured):
        reasons = [reason for _, who, _, reason in history.absences if who >= 0]
        last = f"the last: {reasons[-1]}" if reasons else "nobody was asked"
        text = f"{history.run}: no message was accepted in any round; {last}"
        warnings.warn(text, stacklevel=3)
    return history


def kept(home: Path) -> History:
    """The finished run in the file ``home``; ValueError if it is damaged."""
    try:
        with tempfile.TemporaryDirectory() as folder, ZipFile(home) as file:
            file.extractall(folder)
            return History.load(folder)
    except BadZipFile as error:
        raise ValueError(
            f"{home}: expected a finished run, found {error}; delete the file, and the "
            "run is made again"
        ) from None


def keep(history: History, made_by: str, home: Path) -> None:
    """Write a finished run and what it was made by into one file, which appears whole.

    Nothing in it depends on the day, so a file under version control stays as it is.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".unfinished_") as made:
        tables = Path(made) / "run"
        history.save(tables)
        (tables / "made_by.json").write_text(made_by, encoding="utf-8")
        with ZipFile(whole := Path(made) / home.name, "w", ZIP_LZMA) as file:
            for table in sorted(tables.iterdir()):
                file.writestr(ZipInfo(table.name), table.read_bytes(), ZIP_LZMA)
        whole.replace(home)


def _fit(run: Run, rounds: int, unfinished: Path) -> History:
    """Fit with checkpoints, where the engine and an equal run at work allow them."""
    if run.engine.holds_clients:
        every = max(1, rounds // 10)
        with suppress(BlockingIOError):  # that run is writing into the same folder
            return run.fit(rounds, False, checkpoint=unfinished, every=every)
    return run.fit(rounds, progress=False)


def _labelled(table: pd.DataFrame, cell: dict) -> pd.DataFrame:
    for name, value in cell.items():
        if name != "seed":
            is_plain = isinstance(value, str | int | float | np.generic)
            table[name] = value if is_plain else name_of(value)
    return table
