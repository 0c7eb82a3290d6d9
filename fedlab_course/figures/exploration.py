"""One hyper-parameter: the score at each of its values, and how runs got there."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedlab_support.core.history import last, summarise

from ..plots.curves import label_ends, seeds_note
from ..plots.style import COLOURS, MARKERS, Picture, new_picture, style

SIZE = (9.2, 3.4)  # inches
LAST = 2
"""Evaluations that an end value averages."""

NEW = {"color": COLOURS["other 1"], "zorder": 5}


def exploration_picture(
    table: pd.DataFrame,
    values: Sequence[str],
    axis: str,
    score: str,
    *,
    paper: str = "",
    new: pd.DataFrame | None = None,
    rounds: int = 1,
    title: str = "",
) -> Picture:
    """Draw end values with their spread over seeds, and the learning curves.

    table:   columns name (of the value), seed, round, value; finished runs.
    values:  the names, in order; those without a run keep their place.
    axis:    what varies, in words; ``score``: what is measured.
    paper:   the name of the paper's value, which is marked.
    new:     the latest run of the reader, with the columns of ``table``.
    rounds:  of every run.
    """
    with style():
        told = "End: mean of the last two evaluations. Line: mean, band and bar: ± s.d."
        stored = table.groupby("name", sort=False)["seed"].nunique()
        counts = pd.DataFrame({"num_seeds": stored})
        note = seeds_note(counts, told) if len(stored) else "No run is finished yet."
        if new is not None:
            note += " Orange: the run that you train."
        figure = new_picture(SIZE, title, note)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1, 1.25))
        colours = _colours(values)
        _draw_ends(left, table, values, colours, new, paper)
        left.set(xlabel=axis, ylabel=score)
        _draw_curves(right, table, values, colours, new, rounds)
        right.set(xlabel="Round", xlim=(0, rounds))
        _fit_values(left, table, new)
        label_ends(figure, right, "")
    figure.data = table
    return figure


def _colours(values: Sequence[str]) -> dict[str, tuple]:
    """From dark to light in the order of the values; also clear in grey."""
    places = np.linspace(0.0, 0.8, max(2, len(values)))
    return dict(zip(values, matplotlib.colormaps["viridis"](places), strict=False))


def _draw_ends(
    axis: Axes,
    table: pd.DataFrame,
    values: Sequence[str],
    colours: dict[str, tuple],
    new: pd.DataFrame | None,
    paper: str,
) -> None:
    means = summarise(last(table, LAST), ["name"]).set_index("name")
    means = means.reindex([name for name in values if name in means.index])
    places = [values.index(name) for name in means.index]
    axis.plot(places, means["mean"], color=COLOURS["quiet"], linewidth=0.8, zorder=2)
    for place, (name, row) in zip(places, means.iterrows(), strict=True):
        look = {"color": colours[name], "marker": MARKERS[place % len(MARKERS)]}
        spread = 0.0 if np.isnan(row["sd"]) else row["sd"]
        axis.errorbar(place, row["mean"], spread, capsize=4, zorder=3, **look)
    if new is not None and len(new):
        place = values.index(new["name"].iloc[0])
        axis.plot(place, new["value"].iloc[-1], "*", markersize=11, **NEW)
    shown = [f"{name}\n(paper)" if name == paper else name for name in values]
    axis.set_xticks(range(len(values)), shown)
    axis.set_xlim(-0.5, len(values) - 0.5)
    axis.set_title("At the end", loc="left")
    axis.grid(axis="y")


def _draw_curves(
    axis: Axes,
    table: pd.DataFrame,
    values: Sequence[str],
    colours: dict[str, tuple],
    new: pd.DataFrame | None,
    rounds: int,
) -> None:
    curves = summarise(table, ["name", "round"])
    for place, name in enumerate(values):
        line = curves[curves["name"] == name].sort_values("round")
        if line.empty:
            continue
        x, mean, spread = line["round"], line["mean"], line["sd"].fillna(0.0)
        look = {"color": colours[name], "zorder": 3}
        axis.plot(x, mean, label=name, **look)
        axis.plot(x.iloc[-1:], mean.iloc[-1:], MARKERS[place % len(MARKERS)], **look)
        band = {"color": colours[name], "alpha": 0.15, "linewidth": 0}
        axis.fill_between(x, mean - spread, mean + spread, **band)
    if new is not None and len(new):
        axis.plot(new["round"], new["value"], linewidth=2.4, **NEW)
        axis.plot(new["round"].iloc[-1:], new["value"].iloc[-1:], "*", **NEW)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_title("Over the rounds", loc="left")
    axis.grid(axis="y")


def _fit_values(axis: Axes, table: pd.DataFrame, new: pd.DataFrame | None) -> None:
    """Show what is finite, also when a run diverges."""
    known = table["value"] if new is None else pd.concat([table, new])["value"]
    known = known[np.isfinite(known)]
    if len(known):
        low, high = known.min(), min(known.max(), 3 * known.quantile(0.9))
        room = 0.06 * (high - low) or 1.0
        axis.set_ylim(low - room, high + room)
