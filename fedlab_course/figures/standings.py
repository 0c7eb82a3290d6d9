"""Figures of the leaderboard: ranks, tuned methods and papers' claims."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from ..plots.drawing import drawing
from ..plots.panels import name_rows, write_beside
from ..plots.style import (
    COLOURS,
    DOUBLE,
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
    expect_rows(table, ["method"])
    misses = table["num_protocols"] < table["num_protocols"].max()
    parts = [part for part in (table[~misses], table[misses]) if len(part)]
    parts = parts or [table]
    note = "Dot: mean over data sets; bar: 95 % bootstrap interval over data sets and "
    note += "seeds, for methods with three or more data sets. Right: number of data "
    note += "sets that a method ran on. Dotted: half of the opponents beaten."
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
        _draw_interval(axis, place, row, "beats", colour_of(row["method"]))
        write_beside(axis, place, f"{row['beats']:.0f}   on {row['num_protocols']}")
    name_rows(axis, data["method"].astype(str))
    axis.set_xlim(-2, 102)


def _draw_interval(
    axis: Axes, place: int, row: Mapping | pd.Series, value: str, colour: str
) -> None:
    """A value as a dot on the bar of its interval: columns ``value``, low and high."""
    axis.plot([row["low"], row["high"]], [place, place], color=colour)
    axis.plot(row[value], place, "o", color=colour)


@drawing
def tuning_picture(table: pd.DataFrame, title: str = "", size: Size = None) -> Picture:
    """Draw how far methods are ahead of a reference before and after tuning.

    table: columns method, rates ("default" or "tuned", of both methods of a pair),
           mean, low and high in points, as `evidence.comparisons` has them.
    size:  "single", "double", "slide" or inches.
    A row per method, by its lead after tuning. Raises ValueError for a repeated pair of
    method and rates.
    """
    expect_rows(table, ["method", "rates"])
    before, after = (
        table[table["rates"] == which].set_index("method")
        for which in ("default", "tuned")
    )
    order = after["mean"].sort_values(ascending=False).index
    note = "Filled: learning rates chosen on validation data; bar: 95 % interval over "
    note += "seeds. Hollow: default rates, where the lead differs."
    size = inches(size, (DOUBLE[0], 1.2 + 0.2 * max(1, len(order))))
    figure = new_picture(size, title, note)
    axis = figure.subplots()
    axis.axvline(0, color=COLOURS["baseline"], linewidth=0.8, zorder=1)
    for place, method in enumerate(order):
        lead, usual = after.loc[method], before["mean"].get(method)
        look = {"color": colour_of(method), "mfc": "white", "zorder": 3}
        _draw_interval(axis, place, lead, "mean", look["color"])
        if usual not in (None, lead["mean"]):
            axis.plot(usual, place, "o", **look)
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
    expect_rows(table, ["paper", "claim", "data"])
    tested = table.dropna(subset=["mean"])
    wrap = partial(textwrap.fill, width=int(6.6 * inches(size)[0]))
    names = tested["claim"].map(wrap) + "\n" + tested["data"].map(wrap)
    lines = 1 + max(names.str.count("\n"), default=1)
    tested = tested.assign(name=names)
    parts = [part for _, part in tested.groupby("paper", sort=False)] or [tested]
    note = "Diamond: printed. Dot: ours; bar: 95 % interval over seeds. Holds and "
    note += "refuted: clear after Holm's correction, with the printed sign or against "
    note += "it. Not this size: not clear, and the bar misses the diamond. Undecided: "
    note += "not clear, and the bar reaches the diamond."
    figure, axes = _one_below_the_other(parts, (0.35, 0.17 * lines), size, title, note)
    for axis, part in zip(axes, parts, strict=True):
        _claims(axis, part)
    axes[-1].set_xlabel("Difference (points)")
    return figure


def _claims(axis: Axes, table: pd.DataFrame) -> None:
    """One panel: a row per claim of a paper."""
    axis.axvline(0, color=COLOURS["baseline"], linewidth=0.8, zorder=1)
    for place, row in enumerate(table.to_dict("records")):
        words = row["verdict"] if row["verdict"] in VERDICTS else UNDECIDED
        _draw_interval(axis, place, row, "mean", COLOURS[VERDICTS[words]])
        look = {"color": COLOURS["baseline"], "mfc": "white", "zorder": 3}
        axis.plot(row["printed"], place, "D", **look)
        write_beside(axis, place, words)
    axis.set_title(", ".join(table["paper"].unique()), loc="left")
    name_rows(axis, table["name"])
