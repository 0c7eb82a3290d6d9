"""Explorations: hyper-parameters, one at a time, and the finished runs of each.

An *axis* is one hyper-parameter with a few values; everything else stays as the
*exploration* has it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import pandas as pd

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS, History
from fedlab_support.run.archive import as_text, find, keep, name_for
from fedlab_support.run.run import Run
from fedlab_support.run.study import identity, study

from .plots.style import scale_of
from .protocols import Protocol
from .settings import Setting, run_of, trained

AVERAGE, LOSS = "all test images", "all test images (loss)"
WORST, UNSEEN = "the worst domain", "the held-out domain"


@dataclass(frozen=True)
class Axis:
    """One hyper-parameter of an exploration.

    label:   what a reader calls it, with its sign.
    setting: a value → the setting to run.
    values:  those that have been run, in order.
    paper:   the value that the method's paper uses; "" if it has none.
    """

    label: str
    setting: Callable[[object], Setting]
    values: Sequence[object]
    paper: object = ""


@dataclass(frozen=True)
class Exploration:
    """Axes, and the protocol around them.

    about:   data and clients in words, for the figure.
    rules:   the protocol; its seeds are those of every value.
    axes:    by a short name.
    """

    about: str
    rules: Protocol
    axes: Mapping[str, Axis]

    def run(self, axis: str, value: object, seed: int = 0) -> Run:
        """A new run of one value."""
        setting, held_out = self.axes[axis].setting(value), self.rules.held_out[0]
        return run_of(setting, self.rules, seed, held_out)

    def with_value(self, axis: str, value: object) -> Exploration:
        """The same with a further value on an axis, which nobody has run yet."""
        known = self.axes[axis]
        if value in known.values:
            return self
        grown = replace(known, values=ordered([*known.values, value]))
        return replace(self, axes={**self.axes, axis: grown})

    def study(self, axis: str, folder: str | Path) -> pd.DataFrame:
        """Train what the folder lacks of an axis; return the table of all its runs."""

        def build(at: object, seed: int) -> Run:
            return self.run(axis, at, seed)

        grid = {"at": self.axes[axis].values, "seed": self.rules.seeds}
        return study(build, grid, self.rules.rounds, folder)


def ordered(values: Sequence[object]) -> tuple[object, ...]:
    """Numbers by size; anything else in the order given."""
    is_number = [isinstance(value, int | float) for value in values]
    return tuple(sorted(values) if all(is_number) else values)


# ---- axes of any method -------------------------------------------------------------
def of_method(label: str, name: str) -> Callable[[object], Setting]:
    """A field of a method."""
    return lambda value: Setting(label, {name: value})


def of_training(name: str) -> Callable[[object], Setting]:
    """A setting of the clients' training, with FedAvg."""
    return lambda value: Setting("FedAvg", {}, trained(**{name: value}))


# ---- finished runs ------------------------------------------------------------------
def name_of(value: object) -> str:
    """A value of an axis as the reader sees it; the stages of FedFA are a tuple."""
    if value is None:
        return "all"
    if isinstance(value, tuple):
        return " and ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_of(text: str, axis: Axis) -> object:
    """The value that a reader typed: one of the axis, or another number.

    Raises ValueError if the axis takes no such value.
    """
    named = {name_of(value): value for value in axis.values}
    if text.strip() in named:
        return named[text.strip()]
    kind = type(axis.values[-1])
    if kind not in (int, float):
        raise ValueError(f"{axis.label} is one of {', '.join(named)}, found {text!r}")
    try:
        return kind(text)
    except ValueError:
        whole = "a whole number" if kind is int else "a number"
        raise ValueError(f"{axis.label} is {whole}, found {text!r}") from None


class Finished:
    """The finished runs of an exploration, read when an axis is first asked for.

    places: folders or archives to search, in this order; new runs go to the first.
    """

    def __init__(self, exploration: Exploration, *places: str | Path) -> None:
        self.exploration, self.places = exploration, places
        self.table, self.made_by = lru_cache(self._table), lru_cache(self._made_by)

    def _table(self, name: str) -> pd.DataFrame:
        """The histories of all finished runs of an axis; ``name``: of the value."""
        found = []
        for value in self.exploration.axes[name].values:
            seed = 0
            while (history := self.find(name, value, seed)) is not None:
                found.append(history.table().assign(name=name_of(value)))
                seed += 1
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()

    def find(self, axis: str, value: object, seed: int) -> History | None:
        """One finished run, or None."""
        settings = json.loads(self.made_by(axis, value)) | {"seed": seed}
        name = name_for(as_text(settings))
        found = (find(name, folder) for folder in self.places)
        return next((history for history in found if history is not None), None)

    def _made_by(self, axis: str, value: object) -> str:
        """The settings of a value's run; seeds differ in nothing else."""
        run = self.exploration.run(axis, value)
        return identity(run, self.exploration.rules.rounds, self.places[0])[0]

    def keep(self, axis: str, value: object, run) -> None:
        """Keep a run that has ended, and show it from now on."""
        made_by, home = identity(run, self.exploration.rules.rounds, self.places[0])
        keep(run.history, made_by, home)
        self.exploration = self.exploration.with_value(axis, value)
        self.table.cache_clear()

    def seconds(self, axis: str, name: str) -> float:
        """What a run of a value took, or of any value; 0 if there is none."""
        table = self.table(axis)
        if table.empty:
            return 0.0
        spent = table[table["metric"] == "seconds"]
        totals = spent.groupby(["name", "seed"])["value"].sum().groupby("name").mean()
        return totals.get(name, totals.max())

    def next_seed(self, axis: str, name: str) -> int:
        """The first seed of a value that has no finished run."""
        table = self.table(axis)
        return 0 if table.empty else table.loc[table["name"] == name, "seed"].nunique()


def scores(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """The rows of a measure: one value per run and round."""
    if table.empty:
        return pd.DataFrame(columns=["name", "seed", "round", "value"], dtype=float)
    rows = table[table["client"] == ALL_CLIENTS]
    rows = rows[rows["metric"] == ("loss" if measure == LOSS else "accuracy")]
    rows = rows[rows["split"] == ("held_out" if measure == UNSEEN else "test")]
    is_whole = rows["domain"] == ALL_DOMAINS
    keys = ["name", "seed", "round"]
    if measure == WORST:
        rows = rows[~is_whole].groupby(keys, as_index=False, sort=False)["value"].min()
    else:
        rows = rows[is_whole]
    scale = 1.0 if measure == LOSS else scale_of("accuracy")
    return rows.assign(value=rows["value"] * scale)[[*keys, "value"]]


def measures(table: pd.DataFrame) -> list[str]:
    """What the runs of a table were measured on."""
    if table.empty:
        return [AVERAGE, LOSS]
    single = table[(table["split"] == "test") & (table["domain"] != ALL_DOMAINS)]
    found = [WORST] if single["domain"].nunique() > 1 else []
    found += [UNSEEN] if "held_out" in set(table["split"]) else []
    return [AVERAGE, *found, LOSS]


def main_measure(table: pd.DataFrame) -> str:
    """What a table is about: the held-out domain, where there is one."""
    return UNSEEN if UNSEEN in measures(table) else AVERAGE
