"""The leaderboard in pictures: ranks with intervals, papers' orders beside ours."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from fedlab_support.history import columns_of
from fedlab_support.plots.drawing import drawing
from fedlab_support.plots.settings import colour_of
from fedlab_support.plots.style import (
    COLOURS,
    DOUBLE,
    MARKERS,
    SMALL,
    Picture,
    Size,
    inches,
    new_picture,
    one_row_per,
    panels_across,
    style,
)


@drawing
def rank_picture(table: pd.DataFrame, title: str = "", size: Size = None) -> Picture:
    """Draw a row per method: the share of opponents that it beats, and its interval.

    table: columns method, beats, low, high (shares in [0, 1]) and num_protocols, in the
           order of the rows, as `leaderboard.ranks` returns it.
    size:  "single", "double", "slide" or inches.
    Raises ValueError for a method that stands twice.
    """
    columns_of(table, ["method", "beats", "low", "high", "num_protocols"])
    one_row_per(table, ["method"])
    data = table.assign(**{n: 100 * table[n] for n in ("beats", "low", "high")})
    data = data.reset_index(drop=True)
    note = "Dot: mean over data sets; bar: 95 % bootstrap interval over data sets and "
    note += "seeds. Right: data sets that it ran on. Dotted: as good as the others."
    with style():
        size = inches(size, (DOUBLE[0], 1.3 + 0.22 * len(data)))
        figure = new_picture(size, title, note)
        axis = figure.subplots()
        axis.axvline(50, color=COLOURS["quiet"], linestyle=":", linewidth=1, zorder=0)
        for place, row in data.iterrows():
            colour = colour_of(row["method"])
            axis.plot([row["low"], row["high"]], [place, place], color=colour)
            axis.plot(row["beats"], place, "o", color=colour)
            beside = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
            text = f"{row['beats']:.0f}   on {row['num_protocols']}"
            axis.annotate(text, (1.02, place), va="center", fontsize=SMALL, **beside)
        axis.set_yticks(range(len(data)), data["method"].astype(str))
        axis.set(ylim=(max(1, len(data)) - 0.5, -0.5), xlim=(-2, 102))
        axis.set_xlabel("Opponents beaten (%)")
        axis.tick_params(axis="y", length=0)
        axis.grid(axis="x")
    return figure


@drawing
def orders_picture(
    table: pd.DataFrame, panels: str = "paper", title: str = "", size: Size = None
) -> Picture:
    """Draw what papers print against what we found: points ahead of the reference.

    table:  columns method, printed, ours, sd, holds ("yes", "no", "unclear") and
            `panels`, as `leaderboard.orders` returns it; one small axis per value.
    size:   "single", "double", "slide" or inches.
    In a white quarter both have the same sign. Bars: ± s.d. over blocks.
    """
    columns_of(table, ["method", "printed", "ours", "sd", "holds", panels])
    shown = list(table[panels].unique())
    width = DOUBLE[0] if size is None else inches(size)[0]
    columns = min(2, panels_across(len(shown), width))
    rows = -(-len(shown) // columns)
    note = "Grey quarters: another sign than the paper's. Filled: our sign is clear "
    note += "(95 %); hollow: it is not. Bars: ± s.d. over data sets and seeds."
    with style():
        size = inches(size, (DOUBLE[0], 0.9 + 2.6 * rows))
        figure = new_picture(size, title, note)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat[len(shown) :]:
            axis.remove()
        for axis, panel in zip(axes.flat, shown, strict=False):
            _quarters(axis, table[table[panels] == panel])
            axis.set_title(str(panel), loc="left")
        for axis in axes[:, 0]:
            axis.set_ylabel("Ours (points ahead)")
        for axis in axes.flat[max(0, len(shown) - columns) : len(shown)]:
            axis.set_xlabel("Paper (points ahead)")
    return figure


def _quarters(axis: Axes, table: pd.DataFrame) -> None:
    """One panel: points with names, the quarters of another sign in grey."""
    spread = table["sd"].fillna(0.0)
    reach = 1.15 * max(1.0, (table["ours"].abs() + spread).max())
    wide = 1.6 * max(1.0, table["printed"].abs().max())
    axis.fill_between([-wide, 0], 0, reach, color=COLOURS["pale"], linewidth=0)
    axis.fill_between([0, wide], -reach, 0, color=COLOURS["pale"], linewidth=0)
    protocols = {name: i for i, name in enumerate(table["protocol"].unique())}
    for row, sd in zip(table.to_dict("records"), spread, strict=True):
        colour, mark = colour_of(row["method"]), MARKERS[protocols[row["protocol"]] % 5]
        face = "white" if row["holds"] == "unclear" else colour
        look = {"fmt": mark, "color": colour, "mfc": face, "elinewidth": 0.8}
        axis.errorbar(row["printed"], row["ours"], yerr=sd, **look)
        beside = {"xytext": (5, 3), "textcoords": "offset points", "fontsize": SMALL}
        axis.annotate(row["method"], (row["printed"], row["ours"]), **beside)
    axis.set(xlim=(-wide, wide), ylim=(-reach, reach))
