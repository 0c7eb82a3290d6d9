"""Many runs, one table: every run is kept on disk, so a study can be stopped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import pandas as pd
from tqdm.auto import tqdm

from .history import History
from .run import Run


def study(
    build: Callable[..., Run],
    grid: Mapping[str, Sequence],
    rounds: int,
    folder: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Fit ``build(**cell)`` for every cell of ``grid``; the history table of all.

    - ``build``: one value per axis of the grid → a fresh :class:`Run`.
    - ``grid``: name of an axis → its values, e.g. ``{"epochs": [1, 5], "seed": [0]}``.
    - ``folder``: where finished runs are kept. A cell whose run is there, with the same
      settings, data and rounds, is read instead of trained; None keeps nothing.

    Returns the tidy table with one more column per axis (``seed`` is there already).
    """
    cells = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    tables = []
    for cell in tqdm(cells, disable=not progress, desc="runs"):
        history = fit_once(build(**cell), rounds, folder)
        labels = {name: value for name, value in cell.items() if name != "seed"}
        tables.append(history.table().assign(**labels))
    return pd.concat(tables, ignore_index=True)


def fit_once(run: Run, rounds: int, folder: str | Path | None = None) -> History:
    """``run.fit(rounds)``, or what an equal run left in ``folder``.

    Nothing half-written is ever left: a run's folder appears when it is complete.
    """
    if folder is None:
        return run.fit(rounds, progress=False)
    made_by = run.describe() | {"rounds": rounds, "evaluate_every": run.evaluate_every}
    home = Path(folder) / _key(made_by)
    if not home.exists():
        unfinished = home.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        run.fit(rounds, progress=False).save(unfinished)
        text = json.dumps(made_by, indent=2) + "\n"
        (unfinished / "made_by.json").write_text(text, encoding="utf-8")
        unfinished.rename(home)
    return History.load(home)


def _key(made_by: dict) -> str:
    text = json.dumps(made_by, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
