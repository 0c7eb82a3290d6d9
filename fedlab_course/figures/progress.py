"""The progress of a run: learning curve, domains and participation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS

from ..plots.style import COLOURS, Picture, label_of, new_picture, scale_of, style

SIZE = (9.2, 3.2)  # inches
MOST_DOMAINS = 10
NOW = {"color": COLOURS["ours"], "zorder": 3}
BEFORE = {"color": COLOURS["quiet"], "zorder": 2, "linestyle": "--", "linewidth": 1.2}


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a run that a figure needs.

    name:          of the run.
    table:         tidy history.
    times_chosen:  of every client.
    """

    name: str
    table: pd.DataFrame
    times_chosen: tuple[int, ...]

    @property
    def metric(self) -> str:
        """The metric of the test split, besides the loss."""
        return next(m for m in self.table["metric"] if m not in ("loss", "seconds"))

    def curve(self) -> pd.DataFrame:
        """Columns round and value, over all test samples."""
        return self._measured(True)[["round", "value"]]

    def domains(self) -> pd.Series:
        """The last value on each domain, in the order of the data."""
        each = self._measured(False)
        return each[each["round"] == each["round"].max()].set_index("domain")["value"]

    def _measured(self, is_whole: bool) -> pd.DataFrame:
        rows = self.table
        rows = rows[(rows["split"] == "test") & (rows["client"] == ALL_CLIENTS)]
        rows = rows[rows["metric"] == self.metric]
        return rows[(rows["domain"] == ALL_DOMAINS) == is_whole]


def progress_picture(
    now: Progress | None, before: Progress | None = None, rounds: int = 20
) -> Picture:
    """Draw curve, domains and participation of a run, with the previous run in grey.

    now:     None draws empty axes.
    rounds:  minimum length of the axis of rounds.
    """
    with style():
        title = "Press Start to train" if now is None else _finding(now)
        note = "" if now is None else "One seed: no spread is known."
        if before is not None:
            note += (
                f" Blue: this run; grey and dashed: the previous run, {before.name}."
            )
        figure = new_picture(SIZE, title, note)
        figure.data = None if now is None else now.curve()
        axes = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.1))
        _draw_curves(axes[0], now, before, rounds)
        _draw_domains(axes[1], now, before)
        _draw_participation(axes[2], now, before)
    return figure


def _finding(now: Progress) -> str:
    last = now.curve().iloc[-1]
    score = scale_of(now.metric) * last["value"]
    what = label_of(now.metric).removesuffix(" (%)").lower()
    return f"{now.name}: {what} {score:.0f} % after round {last['round']:.0f}"


def _draw_curves(
    axis: Axes, now: Progress | None, before: Progress | None, rounds: int
) -> None:
    for run, look in ((before, BEFORE), (now, NOW)):
        if run is not None:
            curve = run.curve()
            x, y = curve["round"], scale_of(run.metric) * curve["value"]
            axis.plot(x, y, **look)
            axis.plot(x.iloc[-1:], y.iloc[-1:], "o", clip_on=False, **look)
            rounds = max(rounds, int(x.max()))
    metric = "accuracy" if now is None else now.metric
    axis.set(xlabel="Round", ylabel=label_of(metric), xlim=(0, rounds), ylim=(0, 100))
    axis.set_title("All test images", loc="left")
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.grid(axis="y")


def _draw_domains(axis: Axes, now: Progress | None, before: Progress | None) -> None:
    """One row per domain; if there are many, those with the lowest scores."""
    values = pd.Series(dtype=float) if now is None else now.domains()
    title = "Domain by domain"
    if len(values) > MOST_DOMAINS:
        title = f"The {MOST_DOMAINS} worst of {len(values)} domains"
        values = values.nsmallest(MOST_DOMAINS)
    metric = "accuracy" if now is None else now.metric
    rows = np.arange(len(values))
    if before is not None and len(values):
        old = before.domains().reindex(values.index)  # NaN where the data differ
        axis.plot(
            100 * old, rows, "D", **BEFORE | {"fillstyle": "none", "linestyle": ""}
        )
    axis.plot(100 * values, rows, "o", **NOW)
    axis.set_yticks(rows, [str(name) for name in values.index])
    axis.set(xlabel=label_of(metric), xlim=(-3, 103))
    axis.set_ylim(max(1, len(values)) - 0.5, -0.5)
    axis.set_title(title, loc="left")
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="both")


def _draw_participation(
    axis: Axes, now: Progress | None, before: Progress | None
) -> None:
    """Bars for this run, an outline for the previous one."""
    most = clients = 1
    for run, look in ((now, NOW | {"fill": True}), (before, BEFORE)):
        if run is not None:
            edges = np.arange(len(run.times_chosen) + 1) - 0.5
            axis.stairs(run.times_chosen, edges, **look)
            most = max(most, *run.times_chosen)
            clients = max(clients, len(run.times_chosen))
    axis.set(xlim=(-0.5, clients - 0.5), ylim=(0, 1.05 * most))
    axis.set(xlabel="Client", ylabel="Rounds")
    axis.set_title("Participation", loc="left")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MaxNLocator(5, integer=True))
    if now is None and before is None:
        axis.set(xticks=[], yticks=[])
    axis.grid(axis="y")
