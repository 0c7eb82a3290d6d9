"""Success of an attack against a setting: one small axis per measure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..plots.curves import draw_points, label_ends, seeds_note
from ..plots.drawing import drawing
from ..plots.panels import panelled, parts_of
from ..plots.style import COLOURS, Picture, Size, expect_rows, label_of, looks_for


@drawing
def leak_curves(
    table: pd.DataFrame,
    x: str,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw mean ± s.d. over a setting: one line per name, one axis per measure.

    table:   columns `x` (numbers, drawn at equal distances), name, measure (with its
             unit), mean, sd, num_seeds and chance: the value that guessing reaches at
             this step, NaN if unknown.
    size:    "single", "double", "slide" or inches.
    Raises ValueError for repeated rows or more than five lines.
    """
    expect_rows(table, [x, "name", "measure"])
    shown, steps = parts_of(table, "measure"), sorted(table[x].unique())
    looks = looks_for(table["name"].unique())
    note = seeds_note(table, "Points: mean, bars: ± s.d.") + " Dotted: guessing."
    look = {"head": 0.8, "row": 1.9, "sharex": True}
    figure, axes = panelled(len(shown), size, title, note, **look)
    for axis, (panel, part) in zip(axes, shown.items(), strict=True):
        _lines(axis, part, x, steps, looks)
        axis.set_title(str(panel))
        axis.set_xlabel(label_of(x))
        axis.tick_params(labelbottom=True)
    label_ends(figure, axes[axes[0].get_gridspec().ncols - 1], panels=axes)
    return figure


def _lines(
    axis: Axes, table: pd.DataFrame, x: str, steps: Sequence, looks: dict
) -> None:
    """Draw all lines of one measure, and the chance level."""
    axis.grid(axis="y")
    for name, look in looks.items():
        line = table[table["name"] == name].sort_values(x)
        draw_points(axis, np.searchsorted(steps, line[x]), line, look, name)
    guess = table.dropna(subset="chance").drop_duplicates(x).sort_values(x)
    look = {"color": COLOURS["quiet"], "linestyle": ":", "linewidth": 1.2, "zorder": 0}
    axis.plot(np.searchsorted(steps, guess[x]), guess["chance"], **look)
    axis.set_xticks(range(len(steps)), [f"{step:g}" for step in steps])
    if (table["mean"] >= 0).all():
        axis.set_ylim(bottom=0)
