"""Explore a hyper-parameter: finished runs at once, one more run on request."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

import ipywidgets as W
import pandas as pd

from fedlab_support.run.run import Run

from .chapter import Chapter
from .controls import in_rows, readable
from .exploration import (
    AVERAGE,
    LOSS,
    Finished,
    main_measure,
    measures,
    name_of,
    scores,
    value_of,
)
from .explored import EXPLORED, place
from .figures.exploration import Shown, exploration_picture
from .plots.style import Picture, label_of
from .widgets import Explorer, LiveTraining


class RunExplorer(Explorer):
    """The axes of an exploration; made by ``explore_runs``.

    finished: the runs behind the figure.
    training: trains one more value or seed; the figure shows it growing.
    """

    def __init__(self, finished: Finished) -> None:
        self.finished, self.training = finished, None
        axes = finished.exploration.axes
        names = [(axis.label, name) for name, axis in axes.items()]
        first = finished.table(next(iter(axes)))
        measured = W.Dropdown(options=measures(first), value=main_measure(first))
        measured.description = "measured on"
        controls = {
            "axis": W.Dropdown(options=names, description="explore"),
            "measure": measured,
        }
        super().__init__(self.draw, {n: readable(c) for n, c in controls.items()})
        self.training = OneMore(self)
        self.children = (*self.children, self.training)
        self.add_class("fl-runs")

    def draw(self, axis: str, measure: str = AVERAGE) -> Picture:
        """The figure of one axis."""
        known = self.finished.exploration.axes[axis]
        table = scores(self.finished.table(axis), measure)
        new, latest = table[:0], self.training.latest if self.training else None
        if latest and latest.axis == axis:
            grown = self.finished.exploration.with_value(axis, latest.value)
            known, new = grown.axes[axis], scores(latest.table(), measure)
            mine = table["name"].isin(new["name"]) & table["seed"].isin(new["seed"])
            table = table[~mine]
        values = list(map(name_of, known.values))
        return exploration_picture(
            Shown(table, values, new),
            known.label,
            label_of("loss" if measure == LOSS else "accuracy"),
            paper=name_of(known.paper),
            rounds=self.finished.exploration.rules.rounds,
            title=self.finished.exploration.about,
        )


@dataclass
class Trained:
    """A run of a value of an axis."""

    axis: str
    value: object
    run: Run

    def table(self) -> pd.DataFrame:
        """Its history so far, as in ``Finished.table``."""
        return self.run.history.table().assign(name=name_of(self.value))


class OneMore(LiveTraining):
    """Train one more run of an axis: a value of your own, or another seed.

    The controls are read when Start is pressed; Start goes on after Stop if they are as
    they were. A run that has ended is kept, and belongs to the figure from then on.

    latest: the run that is trained, or that was last.
    """

    def __init__(self, explorer: RunExplorer) -> None:
        self.explorer, self.latest = explorer, None
        self.value = readable(W.Combobox(description="value", ensure_option=False))
        self.seed = readable(W.BoundedIntText(description="seed"))
        rounds = explorer.finished.exploration.rules.rounds
        super().__init__(self._round, self._figure, rounds, picture=explorer.image)
        row = in_rows(self.value, self.seed)
        self.children = (row, self.buttons, self.note)
        explorer.controls["axis"].observe(self._offer, names="value")
        self.value.observe(self._say_seconds, names="value")
        self._offer()

    def wanted(self) -> tuple[str, str, int]:
        """Axis, value and seed."""
        return self.explorer.controls["axis"].value, self.value.value, self.seed.value

    def _round(self, number: int) -> int:
        """One round, the first of a new run if ``number`` is 0."""
        if number == 0:
            self.latest = None  # also where the next line raises
            self.latest = self._new(*self.asked)
        latest, is_last = self.latest, number + 1 == self.rounds
        latest.run.step(evaluate=is_last or None)
        if is_last:
            self.explorer.finished.keep(latest.axis, latest.value, latest.run)
            self._say_seconds()
        return number

    def _new(self, axis: str, text: str, seed: int) -> Trained:
        """A run of the value that a text names; ValueError in the words of the axis."""
        exploration = self.explorer.finished.exploration
        known = exploration.axes[axis]
        value = value_of(text, known)
        try:
            return Trained(axis, value, exploration.run(axis, value, seed))
        except ValueError as error:
            # only the axis differs from settings that have been run
            said = re.sub(r"^\w+ must be", f"{known.label} must be", str(error))
            raise ValueError(said) from error

    def _figure(self, results: list[int]) -> Picture | None:
        """The explorer's figure where the run has been measured once more."""
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
        name = self.value.value
        with suppress(ValueError):  # it is told when Start is pressed
            name = name_of(value_of(name, finished.exploration.axes[axis]))
        spent = finished.seconds(axis, name)
        about = f" (about {max(1, round(spent))} s)" if spent else ""
        self.start.description = f"Train this setting{about}"
        self.seed.max = finished.next_seed(axis, name)  # without gaps
        self.seed.value = self.seed.max


def explore_runs(chapter: Chapter) -> RunExplorer:
    """Show what each hyper-parameter of a chapter does; train more on request.

    chapter: one of ``explored.EXPLORED``; its parameter ``runs_dir`` is where your own
             runs are kept.
    Nothing is trained before the button is pressed.
    """
    made = EXPLORED[chapter.name]()
    return RunExplorer(Finished(made, chapter["runs_dir"], place(chapter.name)))
