"""One hyper-parameter: the score at each of its values, and how runs got there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedlab_support.core.history import last, summarise

from ..plots.curves import LINE_HEIGHT, draw_curve, seeds_note, tick_rounds
from ..plots.curves import spread as moved_apart
from ..plots.drawing import drawing
from ..plots.panels import name_axes, panelled, parts_of
from ..plots.style import (
    COLOURS,
    DOUBLE,
    MARKERS,
    SMALL,
    Picture,
    Size,
    inches,
    looks_for,
    new_picture,
    style,
)

SIZE = (9.2, 3.4)  # inches
PLACES = {"left": 0.065, "right": 0.91, "bottom": 0.235, "top": 0.825, "wspace": 0.06}
"""Of the axes: fixed, as finding them takes longer than drawing."""
LAST = 2
"""Evaluations that an end value averages."""

NEW = {"color": COLOURS["other 1"], "zorder": 5}


@dataclass(frozen=True, eq=False)
class Shown:
    """What both axes of the figure show.

    table:   columns name (of the value), seed, round, value; finished runs.
    values:  the names, in order; those without a run keep their place.
    new:     the latest run of the reader, with the columns of ``table``, or no rows.
    """

    table: pd.DataFrame
    values: Sequence[str]
    new: pd.DataFrame

    def limits(self) -> tuple[float, float]:
        """Of all finite values; runs that diverge may leave them."""
        known = pd.concat([self.table["value"], self.new["value"]])
        known = known[np.isfinite(known)]
        if known.empty:
            return 0.0, 1.0
        low, high = known.min(), min(known.max(), 3 * known.quantile(0.9))
        room = 0.06 * (high - low) or 1.0
        return low - room, high + room


def exploration_picture(
    shown: Shown,
    axis: str,
    score: str,
    *,
    paper: str = "",
    rounds: int = 1,
    title: str = "",
) -> Picture:
    """Draw end values with their spread over seeds, and the learning curves.

    axis:    what varies, in words; ``score``: what is measured.
    paper:   the name of the paper's value, which is marked.
    rounds:  of every run.
    """
    with style():
        told = "End: mean of the last two evaluations. Line: mean, band and bar: ± s.d."
        stored = shown.table.groupby("name", sort=False)["seed"].nunique()
        counts = pd.DataFrame({"num_seeds": stored})
        note = seeds_note(counts, told) if len(stored) else "No run is finished yet."
        note += "" if shown.new.empty else " Orange: the run that you train."
        figure = new_picture(SIZE, title, note)
        figure.set_layout_engine("none")
        ratios = {"width_ratios": (1, 1.25)}
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw=PLACES | ratios)
        left.set(xlabel=axis, ylabel=score, ylim=shown.limits())
        ends, looks = ends_of(shown.table), looks_of(shown.values)
        _draw_points(left, ends, shown.values, looks, paper)
        _draw_new_end(left, shown)
        left.set_title("At the end")
        _draw_curves(right, shown)
        right.set(xlabel="Round", xlim=(0, rounds))
        right.set_title("Over the rounds")
    figure.data = pd.concat([shown.table, shown.new], ignore_index=True)
    return figure


def ends_of(table: pd.DataFrame) -> pd.DataFrame:
    """Columns name, mean, sd and num_seeds: the last evaluations of every value."""
    return summarise(last(table, LAST), ["name"])


@drawing
def explored_picture(
    ends: pd.DataFrame, score: str, *, title: str = "", size: Size = None
) -> Picture:
    """Draw the end values of every axis, one panel each.

    ends:   columns axis, name (of the value), paper (whether it is the paper's), mean,
            sd, num_seeds; names in order.
    score:  what is measured.
    """
    parts = parts_of(ends, "axis")
    note = seeds_note(ends, "Mean of the last two evaluations, bar: ± s.d.")
    look = {"head": 0.7, "row": 1.7, "sharey": True}
    figure, axes = panelled(len(parts), size, title, note, **look)
    for axis, (name, part) in zip(axes, parts.items(), strict=True):
        paper = next(iter(part.loc[part["paper"], "name"]), "")
        values = part["name"].tolist()
        _draw_points(axis, part, values, looks_of(values), paper)
        axis.set_xlabel(name)
    name_axes(axes, score)
    return figure


@drawing
def trade_off_picture(
    ends: pd.DataFrame, worst: str, *, title: str = "", size: Size = None
) -> Picture:
    """Draw the average against the worst: a path per setting, a point per value.

    ends:   columns axis, name (of the value), average, worst, num_seeds; values in
            order.
    worst:  what the vertical axis shows.
    """
    note = seeds_note(
        ends, "Mean of the last two evaluations, first and last value named"
    )
    figure = new_picture(inches(size, (DOUBLE[0], 3.6)), title, note)
    axis = figure.subplots()
    parts, places = parts_of(ends, "axis"), ends[["average", "worst"]].to_numpy()
    for name, look in looks_for(list(parts)).items():
        part = parts[name]
        axis.plot(part["average"], part["worst"], label=name, linewidth=0.8, **look)
        _name_path(axis, part, places, look["color"])
    axis.set(xlabel="All test images: accuracy (%)", ylabel=worst)
    axis.legend(loc="best")
    return figure


def _name_path(axis: Axes, part: pd.DataFrame, points: np.ndarray, colour: str) -> None:
    """Name a path's first and last value, each on its least crowded side.

    points: average and worst of all paths, (N, 2).
    """
    inch = axis.figure.get_size_inches() / np.maximum(np.ptp(points, axis=0), 1e-9)
    angles = np.arange(8) * np.pi / 4
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1) * 10  # in 1/72 inch
    look = {"color": colour, "fontsize": SMALL, "ha": "center", "va": "center"}
    for row in part.iloc[[0, -1]].itertuples():
        place = np.array([row.average, row.worst])
        far = (place - points) * inch * 72
        crowd = (1 / ((around[:, None] + far) ** 2).sum(2)).sum(1)
        where = around[crowd.argmin()]
        axis.annotate(row.name, place, where, textcoords="offset points", **look)


def looks_of(values: Sequence[str]) -> dict[str, dict[str, object]]:
    """Colours from dark to light in the order of values, also clear in grey."""
    places = np.linspace(0.0, 0.8, max(2, len(values)))
    colours = matplotlib.colormaps["viridis"](places)
    return {
        name: {"color": colours[k], "marker": MARKERS[k % len(MARKERS)]}
        for k, name in enumerate(values)
    }


def _draw_points(
    axis: Axes, ends: pd.DataFrame, values: Sequence[str], looks: dict, paper: str
) -> None:
    """Means and their spread, one place per value."""
    means = ends.set_index("name")[["mean", "sd"]].reindex(list(values))
    means = means.assign(place=range(len(values))).dropna(subset="mean")
    axis.plot(means["place"], means["mean"], color=COLOURS["quiet"], linewidth=0.8)
    for name, row in means.fillna({"sd": 0.0}).iterrows():
        look = {"capsize": 4, "zorder": 3} | looks[name]
        axis.errorbar(row["place"], row["mean"], row["sd"], **look)
    shown = [f"{name}\n(authors)" if name == paper else name for name in values]
    axis.set_xticks(range(len(values)), shown)
    axis.set_xlim(-0.5, len(values) - 0.5)
    axis.grid(axis="y")


def _draw_new_end(axis: Axes, shown: Shown) -> None:
    if len(shown.new):
        place = list(shown.values).index(shown.new["name"].iloc[0])
        axis.plot(place, ends_of(shown.new)["mean"], "*", markersize=11, **NEW)


def _draw_curves(axis: Axes, shown: Shown) -> None:
    looks, curves = looks_of(shown.values), summarise(shown.table, ["name", "round"])
    for name, line in curves.groupby("name", sort=False):
        draw_curve(axis, line.sort_values("round"), looks[name])
    if len(shown.new):
        x, value = shown.new["round"], shown.new["value"]
        axis.plot(x, value, linewidth=2.4, **NEW)
        axis.plot(x.iloc[-1:], value.iloc[-1:], "*", **NEW)
    tick_rounds(axis)
    axis.grid(axis="y")
    _name_ends(axis, curves, looks)


def _name_ends(axis: Axes, curves: pd.DataFrame, looks: dict) -> None:
    """Marker and name of each line right of its end; moved apart if they overlap."""
    ends = curves.sort_values("round").groupby("name")["mean"].last()
    ends = ends[np.isfinite(ends)]
    low, high = axis.get_ylim()
    height = 72 * SIZE[1] * (PLACES["top"] - PLACES["bottom"])
    wanted = ((ends - low) / (high - low)).clip(0, 1)
    places = moved_apart(wanted.tolist(), SMALL * LINE_HEIGHT / height)
    beside = {"transform": axis.transAxes, "clip_on": False}
    for name, place in zip(ends.index, places, strict=True):
        axis.plot(1.025, place, **looks[name], **beside)
        axis.text(1.045, place, name, va="center", fontsize=SMALL, **beside)
