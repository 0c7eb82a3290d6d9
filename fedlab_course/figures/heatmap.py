"""Heat maps over two settings, with numbers in the cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm

from ..plots.curves import seeds_note
from ..plots.drawing import drawing
from ..plots.style import (
    COLOURS,
    SMALL,
    Picture,
    Size,
    expect_rows,
    inches,
    label_of,
    names_below,
    new_picture,
)

ROOM = (0.45, 0.2)  # width and height in inches that a cell needs to hold a number


@drawing
def grid_heatmap(
    table: pd.DataFrame,
    x: str,
    y: str,
    *,
    orders: Mapping[str, Sequence] | None = None,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw a heat map over two settings, with numbers in the cells where they fit.

    table:   one row per cell, as ``summarise`` returns it, means are differences of
             shares; a column sd is printed too where rows are high enough. A cell
             without a number is grey, with a dash. Colours are centred at zero and
             saturate at the 90th percentile, so that one outlier does not wash out the
             other cells.
    orders:  column x or y → its values, from the origin; by default sorted.
    size:    "single", "double", "slide" or inches.
    Raises ValueError when a cell occurs twice.
    """
    import seaborn  # slow to import, and it brings pyplot

    expect_rows(table, [x, y])
    cells = 100 * table.pivot(index=y, columns=x, values="mean").sort_index()
    rows, columns = ((orders or {}).get(name) for name in (y, x))
    cells = cells.reindex(index=rows, columns=columns)
    size = inches(size, (4.6, 2.8))
    width, height = size[0] / max(1, len(cells.columns)), size[1] / max(1, len(cells))
    if height < 2 * ROOM[1] or width <= ROOM[0]:
        table = table.drop(columns="sd", errors="ignore")
    has_room = width > ROOM[0] and height > ROOM[1]
    texts = _texts(cells, table.set_index([y, x])) if has_room else None
    what = "Mean ± s.d." if "sd" in table else "Mean"
    has_seeds = "num_seeds" in table and len(table) > 0
    note = seeds_note(table, what) if has_seeds else ""
    figure = new_picture(size, title, note)
    axis = figure.subplots()
    axis.set_facecolor(COLOURS["pale"])
    if cells.empty:  # seaborn cannot draw it
        _name_cells(axis, cells)
        return figure
    options = _colours(cells)
    bar = {"label": "Difference (points)", "pad": 0.03, "extend": options.pop("extend")}
    options |= {"linewidths": 0.5, "xticklabels": False, "yticklabels": False}
    options |= {"annot": texts, "fmt": "", "annot_kws": {"fontsize": SMALL}}
    seaborn.heatmap(cells, ax=axis, cbar_kws=bar, **options)
    axis.invert_yaxis()
    if texts is not None:
        for row, column in np.argwhere(cells.isna().to_numpy()):
            dash = {"ha": "center", "va": "center", "fontsize": SMALL}
            axis.text(column + 0.5, row + 0.5, "–", **dash)
    _name_cells(axis, cells)
    return figure


def _colours(cells: pd.DataFrame) -> dict[str, object]:
    """The colour map, its range, and the ends at which values exceed the range."""
    values = cells.stack()
    limit = values.abs().quantile(0.9, interpolation="higher") or 1
    is_beyond = (values < -limit).any(), (values > limit).any()
    ends = {(True, False): "min", (False, True): "max", (True, True): "both"}
    norm = CenteredNorm(halfrange=limit)
    return {"cmap": "RdBu_r", "norm": norm, "extend": ends.get(is_beyond, "neither")}


def _texts(cells: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """The text of each cell; ``table`` is indexed by row and column, maybe with sd."""
    texts = (cells.round(1) + 0.0).map("{:.1f}".format)  # + 0.0 turns -0.0 into 0.0
    texts = texts.replace("-", "\N{MINUS SIGN}", regex=True)
    spreads = table["sd"].mul(100).to_dict() if "sd" in table else {}
    for (row, column), sd in spreads.items():
        if not math.isnan(sd) and row in texts.index and column in texts:
            texts.loc[row, column] += f"\n± {sd:.1f}"
    return texts


def _name_cells(axis: Axes, cells: pd.DataFrame) -> None:
    names_below(axis, cells.columns, 14 * (axis.figure.get_figwidth() - 1.5), 0.5)
    axis.set_yticks(np.arange(len(cells)) + 0.5, cells.index, rotation=0)
    axis.set(xlabel=label_of(cells.columns.name), ylabel=label_of(cells.index.name))
    axis.tick_params(length=0)
