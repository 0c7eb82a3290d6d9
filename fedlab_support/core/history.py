"""The history of a run as tidy tables: measurements, traffic, and absent clients.

This module does not import torch: callers pass plain numbers and strings.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    # pandas is slow to import and only needed to read tables, after training
    import pandas as pd

from .checks import COUNT, checked
from .files import replacing

ALL_DOMAINS, ALL_CLIENTS = "", -1
PERSONAL = "personal_"
"""Prefix of metrics for which clients predict with their own personal weights."""
GROUPS = {"sort": False, "dropna": False}  # keep the table's order and empty cells
CONSTANTS = {"run": str, "method": str, "seed": int, "held_out": str}
MEASURED = {
    "round": int,
    "split": str,
    "domain": str,
    "client": int,
    "metric": str,
    "value": float,
}
TABLE = CONSTANTS | MEASURED
WIRE = {
    "run": str,
    "round": int,
    "client": int,
    "direction": str,
    "part": str,
    "bytes": int,
}
EVENTS = {"run": str, "round": int, "client": int, "event": str, "reason": str}


@dataclass
class History:
    """The record of one run; appending a row takes constant time.

    run, method, seed:  written into every row of the tables.
    held_out:           also written there: the held-out domains, joined by "+"; "" if
                        there are none.
    measured, traffic, absences:  rows of ``table``, ``wire`` and ``events``, without
                        the columns that are the same for the whole run.
    """

    run: str
    method: str
    seed: int
    held_out: str = ""
    measured: list[tuple] = field(default_factory=list, repr=False)
    traffic: list[tuple] = field(default_factory=list, repr=False)
    absences: list[tuple] = field(default_factory=list, repr=False)

    def add(
        self,
        round: int,
        split: str,
        metric: str,
        value: float,
        domain: str = ALL_DOMAINS,
        client: int = ALL_CLIENTS,
    ) -> None:
        """Add one measurement; domain "" and client -1 stand for all of them."""
        self.measured.append((round, split, domain, client, metric, float(value)))

    def add_wire(self, round: int, client: int, direction: str, **parts: int) -> None:
        """Add the bytes that one client received ("down") or sent ("up"), by part.

        Parts of zero bytes are left out. Raises ValueError for another direction.
        """
        if direction not in ("down", "up"):
            raise ValueError(f"direction must be 'down' or 'up', found {direction!r}")
        where = (round, client, direction)
        for name, num in parts.items():
            if num:
                self.traffic.append((*where, name, int(num)))

    def add_event(self, round: int, client: int, event: str, reason: str) -> None:
        """Record an event of a client (or client -1), usually that it was left out.

        reason:  cut to 10,000 characters, because ``load`` cannot read longer ones.
        """
        reason = reason[:10_000].replace("\r", "")  # csv.writer does not quote it
        self.absences.append((round, client, event, reason))

    def table(self) -> pd.DataFrame:
        """Measurements, one per row.

        Columns: run, method, seed, held_out, round, split, domain, client, metric and
        value. Splits of a ``Run``: "test", "held_out", "val", "client_test", "train",
        "server", and "cost" (seconds).
        """
        constants = (self.run, self.method, self.seed, self.held_out)
        return _frame([constants + row for row in self.measured], TABLE)

    def wire(self) -> pd.DataFrame:
        """Traffic: run, round, client, direction, part, bytes."""
        return _frame([(self.run, *row) for row in self.traffic], WIRE)

    def events(self) -> pd.DataFrame:
        """Events, with the columns run, round, client, event and reason.

        A client was left out of a round or, in round 0, of the run; "the weights stay"
        (client -1) means too few messages; "asked for its loss", a loss that is not
        finite.
        """
        return _frame([(self.run, *row) for row in self.absences], EVENTS)

    def empty(self) -> History:
        """A history of the same run without rows, to record one round in."""
        return History(self.run, self.method, self.seed, self.held_out)

    def extend(self, other: History) -> None:
        """Append all rows of ``other``, in their order."""
        self.measured += other.measured
        self.traffic += other.traffic
        self.absences += other.absences

    def files(self) -> dict[str, str]:
        """What ``save`` writes: the text of each file, by its name."""
        constants = {name: getattr(self, name) for name in CONSTANTS}
        texts = {"run.json": json.dumps(constants, indent=2) + "\n"}
        for name in ("table", "wire", "events"):
            frame = getattr(self, name)()
            texts[f"{name}.csv"] = frame.to_csv(index=False, na_rep="nan")
        return texts

    def save(self, folder: str | Path) -> None:
        """Write run.json, table.csv, wire.csv and events.csv, each one atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files().items():
            with replacing(folder / name) as part:
                part.write_text(text, encoding="utf-8", newline="")

    @classmethod
    def load(cls, folder: str | Path | Traversable) -> History:
        """Read what ``save`` wrote; floats are restored exactly.

        folder:  on disk, or inside an archive as a ``zipfile.Path``.
        Raises FileNotFoundError when the folder holds no saved history.
        """
        folder = Path(folder) if isinstance(folder, str) else folder
        if not (folder / "run.json").exists():
            raise FileNotFoundError(
                f"expected a saved history in {folder}, found no run.json; "
                "was the run started with another folder?"
            )
        constants = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return cls(
            **constants,
            measured=_read(folder / "table.csv", TABLE, len(CONSTANTS)),
            traffic=_read(folder / "wire.csv", WIRE, 1),
            absences=_read(folder / "events.csv", EVENTS, 1),
        )


@checked()
def concat(items: Iterable[History | pd.DataFrame]) -> pd.DataFrame:
    """One table from many histories or tables, in the given order."""
    import pandas as pd

    tables = [item.table() if isinstance(item, History) else item for item in items]
    if wrong := [item for item in tables if not isinstance(item, pd.DataFrame)]:
        raise ValueError(f"items must be histories or tables, found {wrong[0]!r}")
    return pd.concat(tables, ignore_index=True) if tables else _frame([], TABLE)


@checked(rounds=COUNT)
def last(table: pd.DataFrame, rounds: int = 1) -> pd.DataFrame:
    """Average the last ``rounds`` evaluated rounds of every run.

    table:   tidy; further columns, such as a swept setting, are kept.
    rounds:  ≥ 1; a run with fewer evaluated rounds is averaged over those it has.
    Returns a tidy table in which ``round`` is the last one averaged.
    """
    keys = [name for name in table.columns if name not in ("round", "value")]
    newest = table.sort_values("round", kind="stable").groupby(keys, **GROUPS)
    groups = newest.tail(rounds).groupby(keys, **GROUPS)
    averaged = groups.agg(round=("round", "max"), value=("value", "mean"))
    return averaged.reset_index()[list(table.columns)]


@checked()
def summarise(
    table: pd.DataFrame, by: str | Sequence[str] = ("method",)
) -> pd.DataFrame:
    """Mean and standard deviation over seeds for every combination of ``by``.

    Rows of one seed are averaged first, so that each seed counts once.
    Returns the columns ``by``, mean, sd (n - 1 in the denominator; NaN for one seed)
    and num_seeds.
    Raises ValueError when rows that differ in kind would be averaged: several metrics
    or splits, rows of all clients or domains mixed with rows of single ones, or several
    runs of one seed, such as runs of settings that are not in ``by``.
    """
    by = columns_of(table, by)
    for name in ("metric", "split"):
        _refuse_mixture(table, name, by, name in table and table[name].nunique() > 1)
    for name, all_of_them in (("domain", ALL_DOMAINS), ("client", ALL_CLIENTS)):
        if name in table:
            is_all = table[name] == all_of_them
            _refuse_mixture(table, name, by, is_all.any() and not is_all.all())
    _refuse_settings(table, by)
    seeds = table.groupby([*by, "seed"], as_index=False, **GROUPS)["value"].mean()
    values = seeds.groupby(by, **GROUPS)["value"]
    return values.agg(mean="mean", sd="std", num_seeds="count").reset_index()


@checked(rounds=COUNT)
def final(
    table: pd.DataFrame,
    by: str | Sequence[str] = ("method",),
    metric: str = "accuracy",
    split: str = "test",
    rounds: int = 1,
) -> pd.DataFrame:
    """Final scores: the last ``rounds`` evaluations, then mean and sd over seeds.

    Uses the rows with domain "" and client -1. Returns and raises what ``summarise``
    does. Raises ValueError also if there are no such rows, or if ``by`` contains
    "domain" or "client".
    """
    if parts := {"domain", "client"} & {*columns_of(table, by)}:
        raise ValueError(
            f"final scores are those of all domains and clients, found by={by!r}; for "
            f"each {min(parts)}, use summarise(last(rows, rounds), by) on its rows"
        )
    whole = (table["domain"] == ALL_DOMAINS) & (table["client"] == ALL_CLIENTS)
    chosen = table[whole & (table["metric"] == metric) & (table["split"] == split)]
    if chosen.empty:
        raise ValueError(
            f"expected rows with metric {metric!r} and split {split!r}, found metrics "
            f"{sorted(table['metric'].unique())} and splits "
            f"{sorted(table['split'].unique())}"
        )
    return summarise(last(chosen, rounds), by)


def columns_of(table: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return the names (or the one name) as a list.

    Raises ValueError for a name that is not a column of the table.
    """
    names = [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in names if name not in table.columns]:
        raise ValueError(
            f"expected columns {names}, found no {unknown[0]!r}; add it with "
            f"table.assign({unknown[0]}=…) or choose from {list(table.columns)}"
        )
    return names


def _refuse_mixture(
    table: pd.DataFrame, name: str, by: list[str], is_mixed: bool
) -> None:
    if is_mixed and name not in by:
        found = sorted(map(repr, table[name].unique().tolist()))[:6]
        raise ValueError(
            f"expected one {name}, or only the rows of all of them, found "
            f"{', '.join(found)}; filter the table or add {name!r} to by="
        )


def _refuse_settings(table: pd.DataFrame, by: list[str]) -> None:
    """Raise ValueError for several runs of one seed that ``by`` does not separate."""
    of_a_run = {*TABLE} - {"run", "method", "value"}
    if not of_a_run <= {*table.columns}:
        return  # a table of another form
    again = table.duplicated([*of_a_run.union(by)], keep=False)
    if again.any():
        first = table[again]
        others = [n for n in table.columns if n not in of_a_run.union(by, ["value"])]
        others = [n for n in others if first[n].nunique() > 1]
        raise ValueError(
            f"expected one run of each seed for every combination of {by}, found "
            f"several of seed {first['seed'].iloc[0]}"
            + (f"; add {' or '.join(map(repr, others))} to by=" if others else "")
        )


def _frame(rows: list[tuple], columns: dict[str, type]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _read(
    path: Path | Traversable, columns: dict[str, type], num_constants: int
) -> list[tuple]:
    """The rows of a table without its first columns, which are of the whole run."""
    with path.open("r", encoding="utf-8", newline="") as file:
        try:
            head, *lines = csv.reader(file)
        except csv.Error as error:
            raise ValueError(f"{path.name}: {error}") from error
    if head != list(columns):
        raise ValueError(f"{path.name}: expected {list(columns)}, found {head}")
    named = list(zip(head, *lines, strict=True))[num_constants:]
    values = [map(columns[name], texts) for name, *texts in named]
    return list(zip(*values, strict=True))
