"""Figures of the leaderboard: ranks, tuned methods, papers' orders and claims."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from itertools import cycle

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from ..plots.drawing import drawing
from ..plots.panels import name_rows, panels_across, write_beside
from ..plots.style import (
    COLOURS,
    DOUBLE,
    MARKERS,
    Picture,
    Size,
    expect_rows,
    inches,
    new_picture,
)
from .settings import colour_of


@drawing
def rank_picture(table: pd.DataFrame, title: str = "", size: Size = None) -> Picture:
    """Draw a row per method: the share of opponents that it beats, and its interval.

    table: columns method, beats, low, high (shares in [0, 1]) and num_protocols, in the
           order of the rows, as `leaderboard.ranks` returns it. Methods that miss data
           sets have a panel of their own, since they had other opponents.
    size:  "single", "double", "slide" or inches.
    Raises ValueError for a repeated method.
    """
    expect_rows(table, ["method"], ["beats", "low", "high", "num_protocols"])
    misses = table["num_protocols"] < table["num_protocols"].max()
    parts = [part for part in (table[~misses], table[misses]) if len(part)]
    parts = parts or [table]
    note = "Dot: mean over data sets; bar: 95 % bootstrap interval over data sets and "
    note += "seeds, from three data sets on. Right: data sets that it ran on. Dotted: "
    note += "as good as the others."
    figure, axes = _one_below_the_other(parts, (0.3, 0.22), size, title, note)
    for axis, part in zip(axes, parts, strict=True):
        _ranks(axis, part)
    if len(parts) == 2:
        axes[1].set_title("Methods that miss data sets", loc="left")
    axes[-1].set_xlabel("Opponents beaten (%)")
    return figure


def _one_below_the_other(
    parts: Sequence[pd.DataFrame],
    heights: tuple[float, float],
    size: Size,
    title: str,
    note: str,
) -> tuple[Picture, Sequence[Axes]]:
    """A figure with a panel per part, on one x-axis.

    heights: of what is around a panel and of one of its rows, in inches.
    """
    rows = [max(1, len(part)) for part in parts]
    around, row = heights
    size = inches(size, (DOUBLE[0], 1.0 + around * len(parts) + row * sum(rows)))
    figure = new_picture(size, title, note)
    look = {"squeeze": False, "sharex": True, "height_ratios": rows}
    return figure, figure.subplots(len(parts), 1, **look)[:, 0]


def _ranks(axis: Axes, table: pd.DataFrame) -> None:
    """One panel, in per cent."""
    data = table.assign(**{n: 100 * table[n] for n in ("beats", "low", "high")})
    axis.axvline(50, color=COLOURS["quiet"], linestyle=":", linewidth=1, zorder=0)
    for place, row in enumerate(data.to_dict("records")):
        _draw_interval(
            axis, place, row["method"], [row["low"], row["high"]], row["beats"]
        )
        write_beside(axis, place, f"{row['beats']:.0f}   on {row['num_protocols']}")
    name_rows(axis, data["method"].astype(str))
    axis.set_xlim(-2, 102)


def _draw_interval(
    axis: Axes, place: int, method: str, ends: list[float], value: float
) -> None:
    """A method's value as a dot on the bar of its interval."""
    colour = colour_of(method)
    axis.plot(ends, [place, place], color=colour)
    axis.plot(value, place, "o", color=colour)


@drawing
def orders_picture(
    table: pd.DataFrame, panels: str = "paper", title: str = "", size: Size = None
) -> Picture:
    """Draw what papers print and what we found: points ahead of the reference.

    table:  columns method, protocol, printed, ours, sd, holds ("yes", "no", "unclear")
            and `panels`, as `leaderboard.orders` returns it; one small axis per value.
    size:   "single", "double", "slide" or inches.
    A row per method, a mark per protocol; on its grey side ours has another sign than
    the paper's. The axis is linear up to one point, logarithmic beyond.
    """
    parts = [part for _, part in table.groupby(panels, sort=False)]
    width = DOUBLE[0] if size is None else inches(size)[0]
    columns = min(2, panels_across(len(parts), width))
    heights = [0.5 + part.groupby("method").size().map(_height).sum() for part in parts]
    rows = [max(heights[i : i + columns]) for i in range(0, len(parts), columns)]
    note = "Thick bar: the paper. Marks: ours; filled: clear (5 %, corrected); "
    note += "lines, ± s.d. over blocks. Grey: another sign than the paper's. Beyond "
    note += "one point the axis is logarithmic."
    size = inches(size, (DOUBLE[0], 1.0 + sum(0.5 + 0.2 * row for row in rows)))
    figure = new_picture(size, title, note)
    look = {"squeeze": False, "height_ratios": rows or None}
    axes = figure.subplots(max(1, len(rows)), columns, **look)
    for axis in axes.flat[len(parts) :]:
        axis.remove()
    for axis, part in zip(axes.flat, parts, strict=False):
        _signs(axis, part)
        axis.set_title(str(part[panels].iloc[0]), loc="left", pad=16)
    for axis in axes.flat[max(0, len(parts) - columns) : len(parts)]:
        axis.set_xlabel("Points ahead")
    return figure


def _height(marks: int) -> float:
    """The height of a row with this many marks, relative to a row with one."""
    return 0.55 + 0.45 * marks


def _signs(axis: Axes, table: pd.DataFrame) -> None:
    """One panel: the paper's number as a bar across the row, ours as marks on it."""
    table = table.fillna({"sd": 0.0})
    marks = dict(zip(table["protocol"].unique(), cycle(MARKERS), strict=False))
    reach = max(table["printed"].abs().max(), (table["ours"].abs() + table["sd"]).max())
    reach, top, middles = 1.6 * max(1.0, reach), 0.0, {}
    for method, mine in table.groupby("method", sort=False):
        step, printed = _height(len(mine)), mine["printed"].iloc[0]
        colour = colour_of(method)
        other = (-reach, 0) if printed > 0 else (0, reach)
        axis.fill_between(other, top, top + step, color=COLOURS["pale"], linewidth=0)
        axis.vlines(printed, top + 0.12, top + step - 0.12, color=colour, linewidth=3)
        for place, row in enumerate(mine.to_dict("records")):
            face = "white" if row["holds"] == "unclear" else colour
            look = {"fmt": marks[row["protocol"]], "color": colour, "mfc": face}
            height = top + (place + 0.5) * step / len(mine)
            spread = {"xerr": row["sd"], "elinewidth": 0.8}
            axis.errorbar(row["ours"], height, **spread, **look)
        middles[method] = top + step / 2
        top += step
        axis.axhline(top, color="white", linewidth=1.5)
    axis.axvline(0, color=COLOURS["quiet"], linewidth=0.8)
    _log_beyond_one(axis, -reach, reach)
    axis.set(ylim=(top, 0))
    axis.set_yticks(list(middles.values()), middles)
    axis.tick_params(axis="y", length=0)
    look = {"color": COLOURS["quiet"], "linestyle": "", "mfc": "white"}
    for name, mark in marks.items():
        axis.plot([], [], mark, label=name, **look)
    place = {"loc": "lower left", "bbox_to_anchor": (-0.03, 0.99), "borderpad": 0}
    axis.legend(ncols=3, handletextpad=0, columnspacing=1, **place)


def _log_beyond_one(axis: Axes, low: float, high: float) -> None:
    """Points from low < 0 to high > 0, linear up to 1 and logarithmic beyond."""
    axis.set_xscale("symlog", linthresh=1, linscale=0.6)
    ticks = [t for t in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if low < t < high]
    axis.set_xticks(ticks)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.minorticks_off()
    axis.set_xlim(low, high)


@drawing
def tuning_picture(table: pd.DataFrame, title: str = "", size: Size = None) -> Picture:
    """Draw how far methods are ahead of a reference before and after tuning.

    table: columns method, rates ("default" or "tuned", of both methods of a pair),
           mean, low and high in points, as `evidence.comparisons` has them.
    size:  "single", "double", "slide" or inches.
    A row per method, by its lead after tuning. The axis is linear up to one point,
    logarithmic beyond. Raises ValueError for a repeated pair of method and rates.
    """
    expect_rows(table, ["method", "rates"], ["mean", "low", "high"])
    before, after = (
        table[table["rates"] == which].set_index("method")
        for which in ("default", "tuned")
    )
    order = after["mean"].sort_values(ascending=False).index
    note = "Hollow: default learning rates. Filled: rates chosen on validation data; "
    note += "bar: 95 % interval over seeds. Beyond one point the axis is logarithmic."
    size = inches(size, (DOUBLE[0], 1.2 + 0.2 * max(1, len(order))))
    figure = new_picture(size, title, note)
    axis = figure.subplots()
    axis.axvline(0, color=COLOURS["quiet"], linewidth=0.8, zorder=0)
    for place, method in enumerate(order):
        row = after.loc[method]
        _draw_interval(axis, place, method, [row["low"], row["high"]], row["mean"])
        if method in before.index:
            look = {"color": colour_of(method), "mfc": "white", "zorder": 3}
            axis.plot(before.loc[method, "mean"], place, "o", **look)
    points = table[["mean", "low", "high"]]
    low, high = points.min().min(), points.max().max()
    if len(order):
        _log_beyond_one(axis, 1.2 * min(low, -1.0), 1.2 * max(high, 1.0))
    name_rows(axis, order)
    axis.set_xlabel("Points ahead")
    return figure


UNDECIDED = "undecided"
VERDICTS = {"holds": "ours", "refuted": "other 1", "not this size": "other 1"}
VERDICTS |= {UNDECIDED: "quiet"}
"""What is written beside a claim, and its colour; other verdicts are undecided."""


@drawing
def verdicts_picture(
    table: pd.DataFrame, title: str = "", size: Size = None
) -> Picture:
    """Draw papers' claims: the printed difference, ours with its interval, the verdict.

    table: columns paper, claim, data, printed, mean, low and high (points) and verdict,
           as `evidence.verdicts` has them; claims that are not tested have no mean and
           are left out.
    size:  "single", "double", "slide" or inches.
    A panel per paper. Raises ValueError for a repeated claim.
    """
    numbers = ["printed", "mean", "low", "high"]
    expect_rows(table, ["paper", "claim", "data"], numbers)
    tested = table.dropna(subset=["mean"])
    wrap = partial(textwrap.fill, width=int(6.6 * inches(size)[0]))
    names = tested["claim"].map(wrap) + "\n" + tested["data"].map(wrap)
    lines = 1 + max(names.str.count("\n"), default=1)
    tested = tested.assign(name=names)
    parts = [part for _, part in tested.groupby("paper", sort=False)] or [tested]
    note = "Diamond: printed. Dot: ours; bar: 95 % interval over seeds. Holds and "
    note += "refuted: clear after Holm's correction, with the printed sign or against "
    note += "it. Not this size: not clear, and the bar does not reach the diamond."
    figure, axes = _one_below_the_other(parts, (0.35, 0.17 * lines), size, title, note)
    for axis, part in zip(axes, parts, strict=True):
        _claims(axis, part)
    axes[-1].set_xlabel("Difference (points)")
    return figure


def _claims(axis: Axes, table: pd.DataFrame) -> None:
    """One panel: a row per claim of a paper."""
    axis.axvline(0, color=COLOURS["quiet"], linewidth=0.8, zorder=0)
    for place, row in enumerate(table.to_dict("records")):
        words = row["verdict"] if row["verdict"] in VERDICTS else UNDECIDED
        look = {"color": COLOURS[VERDICTS[words]]}
        axis.plot([row["low"], row["high"]], [place, place], **look)
        axis.plot(row["mean"], place, "o", **look)
        look = {"color": COLOURS["baseline"], "mfc": "white", "zorder": 3}
        axis.plot(row["printed"], place, "D", **look)
        write_beside(axis, place, words)
    axis.set_title(", ".join(table["paper"].unique()), loc="left")
    name_rows(axis, table["name"])
