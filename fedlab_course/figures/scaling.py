"""The cost of a round by engine and size, and the cost of privacy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import LogLocator, NullFormatter

from ..plots.curves import label_ends, seeds_note
from ..plots.drawing import drawing
from ..plots.panels import name_axes, panelled, parts_of
from ..plots.style import (
    COLOURS,
    SMALL,
    Picture,
    Size,
    expect_rows,
    inches,
    label_of,
    looks_for,
    new_picture,
)

QUARTILES = "medians, lines from quartile to quartile."
SEES = {"server": "the server, each message", "models": "only the averaged models"}


@drawing
def seconds_by_engine(
    table: pd.DataFrame, title: str = "", size: Size = None
) -> Picture:
    """Draw bars of seconds per round: one panel per job, one bar per engine.

    table: columns job, engine, seconds (a median), quartile_1, quartile_3.
    Raises ValueError for a repeated engine within a job.
    """
    expect_rows(table, ["job", "engine"], "take the median first")
    jobs, engines = parts_of(table, "job"), list(table["engine"].unique())
    looks = looks_for(engines, baseline=engines[0])
    note = f"Seconds per round: {QUARTILES}"
    look = {"head": 0.8, "row": 0.4 + 0.3 * len(engines), "sharey": True}
    figure, axes = panelled(len(jobs), size, title, note, **look)
    for axis, (job, part) in zip(axes, jobs.items(), strict=True):
        part = part.set_index("engine").reindex(engines)
        _draw_bars(axis, part, [looks[engine]["color"] for engine in engines])
        axis.set_title(job)
        axis.set_xlabel("Seconds per round")
    axes[0].set_yticks(range(len(engines)), engines)
    axes[0].invert_yaxis()
    return figure


def _draw_bars(axis: Axes, part: pd.DataFrame, colours: list[str]) -> None:
    place, seconds = np.arange(len(part)), part["seconds"]
    reach = [seconds - part["quartile_1"], part["quartile_3"] - seconds]
    axis.barh(place, seconds, 0.6, color=colours)
    whisker = {"fmt": "none", "ecolor": COLOURS["quiet"], "elinewidth": 1.2}
    axis.errorbar(seconds, place, xerr=np.clip(reach, 0, None), **whisker)
    most = part["quartile_3"].max()
    for height, value, end in zip(place, seconds, part["quartile_3"], strict=True):
        if np.isfinite(value):
            text = f"{value:.3g}"
            axis.text(end + 0.03 * most, height, text, va="center", fontsize=SMALL)
    axis.set_xlim(0, 1.3 * most)
    axis.locator_params(axis="x", nbins=4)


@drawing
def cost_curves(table: pd.DataFrame, title: str = "", size: Size = None) -> Picture:
    """Draw seconds per round over a size, both on logarithmic axes.

    table: columns what (names a panel and its axis), size, engine, seconds (a median),
           quartile_1, quartile_3. All panels share the axis of seconds.
    A dotted line through the first point grows in proportion to the size.
    Raises ValueError when an engine has two rows for a size.
    """
    expect_rows(table, ["what", "size", "engine"], "take the median first")
    panels, engines = parts_of(table, "what"), list(table["engine"].unique())
    looks = looks_for(engines, baseline=engines[0])
    note = f"Points: {QUARTILES} Dotted: proportional growth from the first point."
    figure, axes = panelled(len(panels), size, title, note, sharey=True)
    for axis, (panel, part) in zip(axes, panels.items(), strict=True):
        axis.set(xscale="log", yscale="log", xlabel=panel)
        for engine, look in looks.items():
            _draw_cost(axis, part[part["engine"] == engine], engine, look)
        axis.grid(axis="y")
        sizes = sorted(part["size"].unique())
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axis.xaxis.set_minor_formatter(NullFormatter())
    axes[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    _plain_numbers(axes[0].yaxis)
    name_axes(axes, "Seconds per round")
    label_ends(figure, axes[-1], panels=axes)
    return figure


def _plain_numbers(axis: Axis) -> None:
    """Write 0.02 and 0.1 at a logarithmic axis, and not powers of ten."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _draw_cost(axis: Axes, line: pd.DataFrame, name: str, look: dict) -> None:
    line = line.sort_values("size")
    if line.empty:
        return
    size, seconds = line["size"].to_numpy(), line["seconds"].to_numpy()
    axis.plot(size, seconds, label=name, **look)
    axis.vlines(size, line["quartile_1"], line["quartile_3"], color=look["color"])
    dotted = {"color": look["color"], "linestyle": ":", "linewidth": 1, "label": "_"}
    axis.plot(size, seconds[0] * size / size[0], **dotted)


@drawing
def budget_picture(
    table: pd.DataFrame, title: str = "", budget: float = 1, size: Size = None
) -> Picture:
    """Draw the epsilon that has been spent over rounds, one line per observer.

    table:  columns observer ("server" or "models"), rounds, epsilon.
    budget: a level to draw.
    """
    expect_rows(table, ["observer", "rounds"])
    figure = new_picture(inches(size), title, f"Dashed: an epsilon of {budget:g}.")
    axis = figure.subplots()
    axis.set(xlabel="Rounds", ylabel="Epsilon spent", yscale="log")
    for name, look in looks_for(SEES).items():
        line = table[(table["observer"] == name) & np.isfinite(table["epsilon"])]
        axis.plot(line["rounds"], line["epsilon"], label=SEES[name], **look)
    axis.axhline(budget, color="black", linestyle="--", linewidth=1)
    axis.grid(axis="y")
    _plain_numbers(axis.yaxis)
    label_ends(figure, axis)
    return figure


@drawing
def price_of_privacy(
    table: pd.DataFrame, title: str = "", size: Size = None
) -> Picture:
    """Draw accuracy beside both observers' epsilon, over the noise.

    table: columns noise, mean (a share), sd, num_seeds, server and models (epsilons;
           infinite ones are left out and marked).
    Raises ValueError for a repeated noise level.
    """
    expect_rows(table, ["noise"], "summarise over seeds first")
    table = table.sort_values("noise", ignore_index=True)
    place = np.arange(len(table))
    note = seeds_note(table, "Accuracy: mean ± s.d.")
    if not np.isfinite(table[list(SEES)]).all(axis=None):
        note += " Without noise epsilon is infinite."
    figure, (left, right) = panelled(2, size, title, note)
    bars = {"color": COLOURS["baseline"], "marker": "o", "capsize": 3}
    spread = 100 * table["sd"].fillna(0)
    left.errorbar(place, 100 * table["mean"], spread, **bars)
    left.set(ylabel=label_of("accuracy"), ylim=(0, 100))
    for name, look in looks_for(SEES).items():
        shown = np.isfinite(table[name])
        right.plot(place[shown], table[name][shown], label=SEES[name], **look)
    right.set(ylabel="Epsilon", yscale="log")
    _plain_numbers(right.yaxis)
    right.set_xlim(left.get_xlim())
    right.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0)
    for axis in (left, right):
        axis.set_xticks(place, [f"{noise:g}" for noise in table["noise"]])
        axis.set_xlabel("Noise (deviation / clip)")
        axis.grid(axis="y")
    return figure
