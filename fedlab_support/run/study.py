"""Studies: many runs in one table, kept on disk so that a study can be continued."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from tqdm.auto import tqdm

from ..core.checks import COUNT, checked
from ..core.history import TABLE, History, concat
from ..core.naming import name_of, short_hash
from .archive import (
    anywhere,
    as_text,
    find,
    folder_of,
    keep,
    kept,
    matching,
    name_for,
    settings_in,
)
from .checkpoint import claimed, refuse_nameless
from .run import Run

if TYPE_CHECKING:
    import pandas as pd

    from ..data import DomainData

T = TypeVar("T")


@checked(rounds=COUNT, jobs=COUNT)
def study(
    build: Callable[..., Run],
    grid: Mapping[str, Sequence],
    rounds: int,
    folder: str | Path | None = None,
    jobs: int = 1,
    progress: bool = True,
    others: Sequence[str | Path] = (),
) -> pd.DataFrame:
    """Fit `build(**cell)` for every cell of a grid and return all histories as a table.

    build:  one value per axis of the grid → a new Run.
    grid:   axis → its values, e.g. {"epochs": [1, 5], "seed": [0]}.
    folder: where finished runs are kept, or their archive (`archive.pack`). A run with
            the same settings, data and rounds is read instead of trained, whatever
            device and version of PyTorch trained it; one that was stopped resumes on
            the same machine. The code of your own method or augmentation is compared;
            other code and weights files are not: delete their runs after a change.
    jobs:   runs at a time; with more than one, build them with `workers=1`. An
            interrupt then waits for the runs that have begun and keeps them.
    others: where else finished runs are found: folders, archives, or patterns of
            either, such as `figures/*/runs.zip`. What is found there is copied.
    Returns the tidy table with one more column per axis (`seed` is there already);
    values other than numbers, texts and booleans appear as text. Raises ValueError for
    an axis without values, with equal values, that never changes the run, or with the
    name of a column of the table other than `seed` and `method`.
    """
    if not grid or str(folder) == "":
        raise ValueError(
            "grid must have an axis, and folder a name unless it is None, found "
            f"{grid!r} and {folder!r}"
        )
    for name, values in grid.items():
        _check_axis(name, values)
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    refuse_ignored_axes(build, grid)

    def fit(cell: dict) -> tuple[pd.DataFrame, bool]:
        run = expect_run(build(**cell))
        table = _labelled(fit_once(run, rounds, folder, others).table(), cell)
        return table, run.server.round > 0  # 0: it was read

    made = each(fit, cells, jobs, progress, lambda made: not made[1])
    return concat(table for table, _ in made)


def _check_axis(name: str, values: Sequence) -> None:
    """Raise ValueError unless there are values, all different, and a free column."""
    if not isinstance(name, str):
        raise ValueError(f"an axis of grid is an argument's name, found {name!r}")
    check_values(name, values)
    if name in TABLE and name not in ("seed", "method"):
        raise ValueError(
            f"axis {name!r} would overwrite that column of the history; rename it"
        )


def check_values(name: str, values: Sequence) -> None:
    """Raise ValueError unless an axis has values, all different."""
    is_list = isinstance(values, Iterable) and not isinstance(values, str)
    if not is_list or len(values) == 0:
        raise ValueError(
            f"axis {name!r} needs a list of at least one value, found {values!r}"
        )
    if len({repr(value) for value in values}) < len(values):
        raise ValueError(f"axis {name!r} has a value twice, found {values!r}")


def refuse_ignored_axes(build: Callable[..., Run], grid: Mapping) -> None:
    """Raise ValueError for an axis whose value never changes the run that is built."""

    @cache
    def made(place: tuple[int, ...]) -> tuple:
        """What decides the records of the cell with these positions on the axes."""
        values = [grid[name][number] for name, number in zip(grid, place, strict=True)]
        run = expect_run(build(**dict(zip(grid, values, strict=True))))
        engine = type(run.engine), getattr(run.engine, "workers", None)
        return run.describe(), run.evaluate_every, run.history.run, engine

    # neighbours of the first cell come first, since one difference is enough
    places = product(*[range(len(values)) for values in grid.values()])
    places = sorted(places, key=lambda place: sum(map(bool, place)))
    for axis, (name, values) in enumerate(grid.items()):
        moved = [place for place in places if place[axis]]
        if moved and not any(
            made(place) != made((*place[:axis], 0, *place[axis + 1 :]))
            for place in moved
        ):
            raise ValueError(
                f"axis {name!r} of grid changes nothing: build returns the same run "
                f"for all of {list(values)}"
            )


def expect_run(made: object) -> Run:
    """What ``build`` returned; ValueError unless it is a run."""
    if not isinstance(made, Run):
        raise ValueError(f"build must return a Run, found {type(made).__name__}")
    return made


def each(
    fit: Callable[[dict], T],
    cells: Sequence[dict],
    jobs: int,
    progress: bool,
    was_read: Callable[[T], bool] = lambda result: False,
) -> list[T]:
    """Call `fit` on all cells, `jobs` at a time; return the results in their order.

    was_read:  whether a result was read from disk, which takes no time: the time left
               is estimated from the others.
    """
    look = {"total": len(cells), "disable": not progress, "desc": "runs"}
    results = []
    with ThreadPoolExecutor(jobs) as pool, tqdm(smoothing=0, **look) as bar:
        for result in map(fit, cells) if jobs == 1 else pool.map(fit, cells):
            results.append(result)
            if progress and was_read(result):
                bar.initial += 1
            bar.update()
    return results


@checked(rounds=COUNT)
def fit_once(
    run: Run,
    rounds: int,
    folder: str | Path | None = None,
    others: Sequence[str | Path] = (),
) -> History:
    """Return the history of `run.fit(rounds)`, read from disk if an equal run is there.

    folder: where finished runs are kept, as in `study`; None keeps nothing.
    others: where else it may be found, as in `study`.
    A run's file appears when it is complete; until then a hidden folder has
    checkpoints.
    Raises ValueError when a setting has no name of its own, and for a run that has made
    rounds. Warns when no upload was accepted in any round.
    """
    if folder is None:
        return _warn_if_untrained(run.fit(rounds, progress=False))
    text, home = _identity_of_new(run, rounds, folder)
    history = _finished(text, home, folder, others)
    if history is None:
        _warn_of_changed_code(run, text, folder)
        _warn_of_another_version(run.federation.data, [folder, *matching(others)])
        unfinished = home.with_name(f".unfinished_{_checkpoints(text)}")
        keep(_fit(run, rounds, unfinished), text, home)
        history = kept(home)
        with suppress(BlockingIOError), claimed(unfinished):
            shutil.rmtree(unfinished, ignore_errors=True)
    return _warn_if_untrained(replace(history, run=run.history.run))


def _finished(
    text: str, home: Path, folder: str | Path, others: Sequence[str | Path]
) -> History | None:
    """The finished run of a folder, or that of other places, copied into the folder."""
    history = _found(home.name, folder)
    if history is None:
        elsewhere = (_found(home.name, place) for place in matching(others))
        history = next((other for other in elsewhere if other is not None), None)
        if history is not None:
            keep(history, text, home)
    return history


def _found(name: str, place: str | Path) -> History | None:
    """The finished run; None, with a warning, if its file is damaged."""
    try:
        return find(name, place)
    except ValueError as error:
        warnings.warn(f"training a damaged run again: {error}", stacklevel=4)
        return None


def trained(
    run: Run, rounds: int, folder: str | Path, others: Sequence[str | Path] = ()
) -> Run:
    """Return `run` after `rounds`, its network included, resumed from `folder`.

    folder: holds the last checkpoint and the history, as `fit_once` keeps it.
    others: where a finished run may be found, as in `study`. Its history is then the
            one that `folder` keeps, so that a study after this one reads it.
    Raises ValueError as `fit_once`.
    """
    text, home = _identity_of_new(run, rounds, folder)
    run.fit(rounds, False, home.with_name(_checkpoints(text)), every=rounds)
    if _finished(text, home, folder, others) is None:
        keep(run.history, text, home)
    return run


def _checkpoints(made_by: str) -> str:
    """The name of a run's checkpoints, which one kind of machine can continue."""
    return short_hash(made_by.encode())


def _identity_of_new(run: Run, rounds: int, folder: str | Path) -> tuple[str, Path]:
    """As ``identity``; ValueError for a run that would be kept with more rounds."""
    if run.server.round:
        raise ValueError(
            f"expected a new run, found one after {run.server.round} rounds, which "
            f"cannot be kept as a run of {rounds} rounds; build another"
        )
    return identity(run, rounds, folder)


def identity(run: Run, rounds: int, folder: str | Path) -> tuple[str, Path]:
    """The settings of a run as JSON, and the file that is named after them."""
    made_by = run.describe() | {"rounds": rounds, "evaluate_every": run.evaluate_every}
    refuse_nameless(made_by, ("model", "select", "schedule"))
    text = as_text(made_by)
    return text, folder_of(folder) / name_for(text)


def _warn_of_changed_code(run: Run, text: str, folder: str | Path) -> None:
    """Warn if the folder has this run with other code of the method."""
    wanted = anywhere(text)
    code, kind = wanted.pop("code", None), type(run.method).__name__
    if code is None or (code, str(folder)) in _REPORTED:
        return
    for other in map(anywhere, settings_in(folder)):
        if other.pop("code", None) is not None and other == wanted:
            text = f"the code of {kind} has changed since runs were kept in {folder}: "
            text += "they are trained again, and the old ones stay"
            warnings.warn(text, stacklevel=4)
            _REPORTED.add((code, str(folder)))
            return


def _warn_of_another_version(data: DomainData, places: Sequence[str | Path]) -> None:
    """Warn if all runs that places have of a published set are of another version."""
    mine = getattr(data.images, "version", "")
    asked = data.name, mine, *map(str, places)
    if mine and asked not in _REPORTED:
        _REPORTED.add(asked)
        made_by = [json.loads(text) for place in places for text in settings_in(place)]
        known = {m.get("version") for m in made_by if m["data"] == data.name}
        if known and mine not in known:
            text = f"{data.name} is another version here ({mine}) than in the finished "
            text += f"runs ({'; '.join(sorted(map(str, known)))}), which therefore stay"
            warnings.warn(f"{text} unread: new ones are trained", stacklevel=4)


_REPORTED: set[tuple[str, ...]] = set()
"""What was asked or warned about, once for all runs: code or version, and places."""


def _warn_if_untrained(history: History) -> History:
    if not any(split == "train" for _, split, *_ in history.measured):
        reasons = [reason for _, who, _, reason in history.absences if who >= 0]
        last = f"the last: {reasons[-1]}" if reasons else "no client was selected"
        text = f"{history.run}: no message was accepted in any round; {last}"
        warnings.warn(text, stacklevel=3)
    return history


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
