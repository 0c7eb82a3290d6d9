"""The progress of runs: learning curves, domains and participation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS

from ..plots.curves import draw_curve, tick_rounds
from ..plots.panels import name_rows
from ..plots.style import (
    COLOURS,
    MARKERS,
    ROLES,
    Picture,
    in_units,
    label_of,
    new_picture,
    scale_of,
    style,
)

SIZE = (9.2, 3.2)  # inches
MOST_DOMAINS = 10
HELD_OUT = "held out"
"""The measure of the held-out domain, and the start of its name among the domains."""
GROUPS = "groups"
"""What is drawn in place of curves: the group of each client in every round."""

MOST_RUNS = len(MARKERS)


@dataclass(frozen=True, eq=False)
class Progress:
    """The state of a run that a figure needs, or of several that differ in the seed.

    name:          of the run.
    table:         tidy history.
    times_chosen:  of every client, over all seeds.
    place:         of its colour and marker in ROLES and MARKERS.
    """

    name: str
    table: pd.DataFrame
    times_chosen: tuple[int, ...]
    place: int = 0

    @property
    def metric(self) -> str:
        """The metric of the test split, besides the loss."""
        return next(m for m in self.table["metric"] if m not in ("loss", "seconds"))

    @property
    def measures(self) -> list[str]:
        """What its curve can show: scores, losses, and what the method logs."""
        logged = self.table.loc[self.table["split"] == "train", "metric"].unique()
        held_out = [HELD_OUT] if (self.table["split"] == "held_out").any() else []
        return [self.metric, "loss", *held_out, *(m for m in logged if m != "loss")]

    @cached_property
    def groups(self) -> pd.DataFrame:
        """The groups, from 1, of clients (rows) by round, of the last seed.

        Empty for methods that form none; NaN where a client did not participate.
        """
        rows = self.table[self.table["seed"] == self.table["seed"].iloc[-1]]
        rows = rows[(rows["split"] == "server") & (rows["metric"] == "group")]
        return 1 + rows.pivot(index="client", columns="round", values="value")

    @property
    def colour(self) -> str:
        """The colour of everything that belongs to it."""
        return COLOURS[ROLES[self.place]]

    def curve(self, measure: str = "") -> pd.DataFrame:
        """Columns round, mean and sd over seeds of one of ``measures``, found once."""
        measure = measure or self.metric
        if measure not in self._curves:
            self._curves[measure] = self._curve(measure)
        return self._curves[measure]

    @cached_property
    def _curves(self) -> dict[str, pd.DataFrame]:
        return {}

    def _curve(self, measure: str) -> pd.DataFrame:
        rows = self.table
        if measure in (self.metric, "loss", HELD_OUT):
            split = "held_out" if measure == HELD_OUT else "test"
            rows = rows[(rows["split"] == split) & (rows["client"] == ALL_CLIENTS)]
            measure = self.metric if measure == HELD_OUT else measure
        else:
            rows = rows[rows["split"] == "train"]
        rows = rows[(rows["metric"] == measure) & (rows["domain"] == ALL_DOMAINS)]
        seeds = rows.groupby(["round", "seed"], as_index=False)["value"].mean()
        return seeds.groupby("round")["value"].agg(mean="mean", sd="std").reset_index()

    @cached_property
    def domains(self) -> pd.Series:
        """The last value on each domain, in the order of the data."""
        rows = self.table[self.table["client"] == ALL_CLIENTS]
        rows = rows[(rows["metric"] == self.metric) & (rows["domain"] != ALL_DOMAINS)]
        rows = rows[rows["split"].isin(["test", "held_out"])]
        newest = rows[rows["round"] == rows.groupby("seed")["round"].transform("max")]
        is_out = newest["split"] == "held_out"
        names = newest["domain"].where(~is_out, f"{HELD_OUT}: " + newest["domain"])
        return newest.groupby(names, sort=False)["value"].mean()

    @property
    def num_seeds(self) -> int:
        """The number of its runs."""
        return self.table["seed"].nunique()


def progress_picture(
    runs: Sequence[Progress] = (), rounds: int = 20, measure: str = ""
) -> Picture:
    """Draw curves, domains and participation of runs; the last is the present one.

    runs:     at most MOST_RUNS; none draws empty axes.
    rounds:   minimum length of the axis of rounds.
    measure:  what the curves show; "": the score. GROUPS: the present run's groups.
    """
    with style():
        title = _finding(runs[-1]) if runs else "Press Start to train"
        figure = new_picture(SIZE, title, _note(runs))
        axes = figure.subplots(1, 3, width_ratios=(1.5, 1, 1.1))
        if measure == GROUPS:
            figure.data = runs[-1].groups.reset_index()
            _draw_groups(axes[0], runs[-1], rounds)
        else:
            figure.data = runs[-1].curve(measure) if runs else None
            _draw_curves(axes[0], runs, rounds, measure)
        _draw_domains(axes[1], runs)
        _draw_participation(axes[2], runs)
    return figure


def _finding(now: Progress) -> str:
    last = now.curve().iloc[-1]
    score = scale_of(now.metric) * last["mean"]
    what = label_of(now.metric).removesuffix(" (%)").lower()
    return f"{now.name}: {what} {score:.0f} % after round {last['round']:.0f}"


def _note(runs: Sequence[Progress]) -> str:
    most = max((run.num_seeds for run in runs), default=0)
    if most < 2:
        return "One seed: no spread is known." if runs else ""
    return "Line: mean over seeds, band: ± s.d."


def _draw_curves(
    axis: Axes, runs: Sequence[Progress], rounds: int, measure: str
) -> None:
    metric = measure or (runs[-1].metric if runs else "accuracy")
    score = runs[-1].metric if runs and metric == HELD_OUT else metric
    for run in runs:
        if measure and measure not in run.measures:
            continue
        curve = in_units(run.curve(measure), score)
        look = {"color": run.colour, "marker": MARKERS[run.place]}
        draw_curve(axis, curve, look).set(label=run.name, clip_on=False)
        rounds = max(rounds, int(curve["round"].max()))
    axis.set(xlabel="Round", ylabel=label_of(score), xlim=(0, rounds))
    if scale_of(score) != 1:
        axis.set_ylim(0, 100)
    is_test = not runs or metric in (runs[-1].metric, "loss")
    where = {HELD_OUT: "Held-out domain"}.get(metric, "Logged by the method")
    axis.set_title("All test images" if is_test else where)
    tick_rounds(axis)
    axis.grid(axis="y")
    if len(runs) > 1:
        rising = is_test and metric != "loss"
        axis.legend(loc="lower right" if rising else "upper right")


def _draw_groups(axis: Axes, now: Progress, rounds: int) -> None:
    """A field per client and round, in the colour of the group."""
    last = now.groups.columns.max()
    clients, done = range(len(now.times_chosen)), range(1, last + 1)
    cells = now.groups.reindex(index=clients, columns=done)
    num = int(cells.max().max())
    colours = {
        "cmap": colormaps["viridis"].resampled(num),
        "vmin": 0.5,
        "vmax": num + 0.5,
    }
    edges = [np.arange(count + 1) for count in cells.shape]
    fields = axis.pcolormesh(
        edges[1] + 0.5, edges[0] - 0.5, cells, edgecolor="white", **colours
    )
    axis.figure.colorbar(fields, ax=axis, ticks=range(1, num + 1), label="Group")
    axis.set(xlabel="Round", ylabel="Client")
    axis.set(xlim=(0.5, max(rounds, last) + 0.5))
    axis.invert_yaxis()
    axis.set_title(f"Groups of {now.name}")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MaxNLocator(5, integer=True))


def _draw_domains(axis: Axes, runs: Sequence[Progress]) -> None:
    """One row per domain; if there are many, those with the lowest scores."""
    values = runs[-1].domains if runs else pd.Series(dtype=float)
    title = "Domain by domain"
    if len(values) > MOST_DOMAINS:
        title = f"The {MOST_DOMAINS} worst of {len(values)} domains"
        values = values.nsmallest(MOST_DOMAINS)
    rows = np.arange(len(values))
    for run in runs:
        found = 100 * run.domains.reindex(values.index)  # NaN where the data differ
        hollow = {} if run is runs[-1] else {"fillstyle": "none"}
        axis.plot(found, rows, MARKERS[run.place], color=run.colour, **hollow)
    name_rows(axis, [str(name) for name in values.index])
    metric = runs[-1].metric if runs else "accuracy"
    axis.set(xlabel=label_of(metric), xlim=(-3, 103))
    axis.set_title(title)
    axis.grid(axis="y")


def _draw_participation(axis: Axes, runs: Sequence[Progress]) -> None:
    """Bars for the present run, an outline for the others."""
    most = clients = 1
    for run in runs:
        edges = np.arange(len(run.times_chosen) + 1) - 0.5
        is_now = run is runs[-1]
        look = {"color": run.colour, "fill": is_now, "zorder": 2 if is_now else 3}
        axis.stairs(run.times_chosen, edges, **look)
        most = max(most, *run.times_chosen)
        clients = max(clients, len(run.times_chosen))
    axis.set(xlim=(-0.5, clients - 0.5), ylim=(0, 1.05 * most))
    axis.set(xlabel="Client", ylabel="Rounds")
    axis.set_title("Participation")
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MaxNLocator(5, integer=True))
    if not runs:
        axis.set(xticks=[], yticks=[])
    axis.grid(axis="y")
