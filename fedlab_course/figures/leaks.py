"""How much an attack recovers over a setting: one small axis per measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedlab_support.core.history import columns_of

from ..plots.curves import label_ends, seeds_note
from ..plots.drawing import drawing
from ..plots.style import (
    COLOURS,
    DOUBLE,
    MARKERS,
    Picture,
    Size,
    colours_for,
    inches,
    label_of,
    new_picture,
    one_row_per,
    panels_across,
    style,
)

MOST_PANELS = 4


@drawing
def leak_curves(
    table: pd.DataFrame,
    x: str,
    title: str = "",
    columns: int = 2,
    size: Size = None,
) -> Picture:
    """Draw mean ± s.d. over a setting: one line per name, one axis per measure.

    table:   columns `x` (numbers, drawn at equal distances), name, measure (with its
             unit; at most four), mean, sd, num_seeds and chance: the value that
             guessing reaches at this step, NaN if unknown.
    columns: axes side by side, where there is room.
    size:    "single", "double", "slide" or inches.
    Raises ValueError for repeated rows, more panels, or more than five lines.
    """
    columns_of(table, [x, "name", "measure", "mean", "sd", "num_seeds", "chance"])
    one_row_per(table, [x, "name", "measure"])
    shown, steps = list(table["measure"].unique()), sorted(table[x].unique())
    if len(shown) > MOST_PANELS:
        raise ValueError(f"expected at most {MOST_PANELS} measures, found {len(shown)}")
    colours = colours_for(list(table["name"].unique()))
    columns = panels_across(columns, inches(size)[0])
    rows = -(-len(shown) // columns)
    with style():
        note = seeds_note(table, "Points: mean, bars: ± s.d.") + " Dotted: guessing."
        size = inches(size, (DOUBLE[0], 0.8 + 1.9 * rows))
        figure = new_picture(size, title, note)
        axes = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for axis, panel in zip(axes.flat, shown, strict=False):
            part = table[table["measure"] == panel]
            _lines(axis, part, x, steps, colours)
            axis.set_title(str(panel), loc="left")
            axis.set_xlabel(label_of(x))
            axis.tick_params(labelbottom=True)
        for axis in axes.flat[len(shown) :]:
            axis.remove()
        label_ends(figure, axes.flat[min(columns, len(shown)) - 1], "")
    return figure


def _lines(
    axis: Axes, table: pd.DataFrame, x: str, steps: Sequence, colours: dict
) -> None:
    """Draw every line of one measure, and the value that guessing reaches."""
    axis.grid(axis="y")
    for (name, colour), marker in zip(colours.items(), MARKERS, strict=False):
        line = table[table["name"] == name].sort_values(x)
        places = np.searchsorted(steps, line[x])
        axis.plot(places, line["mean"], color=colour, marker=marker, label=str(name))
        bars = {"fmt": "none", "ecolor": colour, "capsize": 2.5, "elinewidth": 1.2}
        axis.errorbar(places, line["mean"], line["sd"].fillna(0.0), **bars)
    guess = table.dropna(subset="chance").drop_duplicates(x).sort_values(x)
    look = {"color": COLOURS["quiet"], "linestyle": ":", "linewidth": 1.2, "zorder": 0}
    axis.plot(np.searchsorted(steps, guess[x]), guess["chance"], **look)
    axis.set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
    if (table["mean"] >= 0).all():
        axis.set_ylim(bottom=0)
