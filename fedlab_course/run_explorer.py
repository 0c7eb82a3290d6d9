"""Explore a hyper-parameter: finished runs at once, one more run on request."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import ipywidgets as W
import pandas as pd

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS, History
from fedlab_support.run.archive import find, keep
from fedlab_support.run.study import identity

from .chapter import Chapter
from .explored import EXPLORED, Axis, Exploration, place
from .figures.exploration import exploration_picture
from .plots.style import Picture, label_of, scale_of
from .widgets import Explorer, LiveTraining, in_rows, readable

AVERAGE, LOSS = "all test images", "all test images (loss)"
WORST, UNSEEN = "the worst domain", "the held-out domain"


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
        self.table = lru_cache(self._table)

    def _table(self, name: str) -> pd.DataFrame:
        """The histories of all finished runs of an axis; ``name``: of the value."""
        found = []
        for value in self.exploration.axes[name].values:
            seed = 0
            while (history := self.find(name, value, seed)) is not None:
                found.append(_labelled(history, value))
                seed += 1
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()

    def find(self, axis: str, value: object, seed: int) -> History | None:
        """One finished run, or None."""
        run = self.exploration.run(axis, value, seed)
        for folder in self.places:
            _, home = identity(run, self.exploration.rules.rounds, folder)
            if (history := find(home.name, folder)) is not None:
                return history
        return None

    def keep(self, axis: str, value: object, run) -> None:
        """Keep a run that has ended, and show it from now on."""
        made_by, home = identity(run, self.exploration.rules.rounds, self.places[0])
        keep(run.history, made_by, home)
        self.exploration = self.exploration.with_values(**{axis: [value]})
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


def _labelled(history: History, value: object) -> pd.DataFrame:
    return history.table().assign(name=name_of(value))


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


def _measures(table: pd.DataFrame) -> list[str]:
    """What the runs of a table were measured on."""
    if table.empty:
        return [AVERAGE, LOSS]
    single = table[(table["split"] == "test") & (table["domain"] != ALL_DOMAINS)]
    found = [WORST] if single["domain"].nunique() > 1 else []
    found += [UNSEEN] if "held_out" in set(table["split"]) else []
    return [AVERAGE, *found, LOSS]


class RunExplorer(Explorer):
    """The axes of an exploration; made by ``explore_runs``.

    finished: the runs behind the figure.
    training: trains one more value or seed; the figure shows it growing.
    """

    def __init__(self, finished: Finished) -> None:
        self.finished, self.training = finished, None
        axes = finished.exploration.axes
        names = [(axis.label, name) for name, axis in axes.items()]
        measures = _measures(finished.table(next(iter(axes))))
        controls = {
            "axis": W.Dropdown(options=names, description="explore"),
            "measure": W.Dropdown(options=measures, description="measured on"),
        }
        super().__init__(self.draw, {n: readable(c) for n, c in controls.items()})
        self.training = OneMore(self)
        self.children = (*self.children, self.training)
        self.add_class("fl-runs")

    def draw(self, axis: str, measure: str = AVERAGE) -> Picture:
        """The figure of one axis."""
        known = self.finished.exploration.axes[axis]
        table = scores(self.finished.table(axis), measure)
        new, values = None, list(map(name_of, known.values))
        if self.training is not None and self.training.shows(axis):
            new = scores(self.training.grown(), measure)
            mine = table["name"].isin(new["name"]) & table["seed"].isin(new["seed"])
            table = table[~mine]
            values += [name for name in new["name"].unique() if name not in values]
        return exploration_picture(
            table,
            values,
            known.label,
            label_of("loss" if measure == LOSS else "accuracy"),
            paper="" if known.paper is None else name_of(known.paper),
            new=new,
            rounds=self.finished.exploration.rules.rounds,
            title=self.finished.exploration.about,
        )


class OneMore(LiveTraining):
    """Train one more run of an axis: a value of your own, or another seed.

    The controls are read when Start is pressed; Start goes on after Stop if they are as
    they were. A run that has ended is kept, and belongs to the figure from then on.
    """

    def __init__(self, explorer: RunExplorer) -> None:
        self.explorer, self.run, self.asked = explorer, None, None
        self.value = readable(W.Combobox(description="value", ensure_option=False))
        self.seed = readable(W.BoundedIntText(0, max=10**6, description="seed"))
        rounds = explorer.finished.exploration.rules.rounds
        super().__init__(self._round, self._figure, rounds)
        self.picture = explorer.image  # the explorer's own figure grows
        row = in_rows({"value": self.value, "seed": self.seed})
        self.children = (row, self.buttons, self.note)
        explorer.controls["axis"].observe(self._offer, names="value")
        self.value.observe(self._say_seconds, names="value")
        self._offer()

    def begin(self) -> None:
        """Start, go on, or begin anew where the controls have changed."""
        if self.is_running:
            return
        asked = self.explorer.controls["axis"].value, self.value.value, self.seed.value
        if asked != self.asked:
            self.asked, self.results = asked, []
        super().begin()

    def shows(self, axis: str) -> bool:
        """Whether the latest run, ended or not, is one of this axis."""
        return self.run is not None and self.asked[0] == axis

    def grown(self) -> pd.DataFrame:
        """The history of the latest run."""
        return self.run.history.table().assign(name=name_of(self._wanted()))

    def _axis(self) -> Axis:
        return self.explorer.finished.exploration.axes[self.asked[0]]

    def _wanted(self) -> object:
        return value_of(self.asked[1], self._axis())

    def _round(self, number: int) -> int:
        """One round, the first of a new run if ``number`` is 0."""
        finished, (axis, _, seed) = self.explorer.finished, self.asked
        if number == 0:
            self.run = None
            self.run = finished.exploration.run(axis, self._wanted(), seed)
        is_last = number + 1 == self.rounds
        self.run.step(evaluate=is_last or None)
        if is_last:
            finished.keep(axis, self._wanted(), self.run)
        return number

    def _figure(self, results: list[int]) -> Picture | None:
        """The explorer's figure where the run has been measured once more."""
        if not results:
            return self.explorer.draw(**self.explorer.values())
        done, every = len(results), self.explorer.finished.exploration.rules.every
        if done > 1 and done % every and done < self.rounds:
            return None
        return self.explorer.draw(**self.explorer.values())

    def _offer(self, _change: object = None) -> None:
        """The values of the chosen axis."""
        axis = self.explorer.controls["axis"].value
        known = self.explorer.finished.exploration.axes[axis]
        self.value.options = list(map(name_of, known.values))
        self.value.value = name_of(known.values[1])
        self._say_seconds()

    def _say_seconds(self, _change: object = None) -> None:
        axis, finished = self.explorer.controls["axis"].value, self.explorer.finished
        spent = finished.seconds(axis, self.value.value)
        about = f" (about {max(1, round(spent))} s)" if spent else ""
        self.start.description = f"Train this cell{about}"
        self.seed.value = finished.next_seed(axis, self.value.value)


def explore_runs(
    chapter: Chapter, exploration: Exploration | None = None, **values: list
) -> RunExplorer:
    """Show what each hyper-parameter of a chapter does; train more on request.

    chapter:     its parameter ``runs_dir`` is where your own runs are kept.
    exploration: None: the chapter's in ``explored.EXPLORED``.
    values:      further values of an axis, as in ``E=[20]``; nothing is trained before
                 the button is pressed.
    Raises ValueError for an axis that the exploration does not have.
    """
    made = (exploration or EXPLORED[chapter.name]()).with_values(**values)
    return RunExplorer(Finished(made, chapter["runs_dir"], place(chapter.name)))
