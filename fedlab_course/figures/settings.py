"""Many settings of one method: a dot each, against the same yardstick."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ..plots.curves import seeds_note
from ..plots.drawing import drawing
from ..plots.panels import name_rows, write_beside
from ..plots.style import (
    COLOURS,
    DOUBLE,
    Picture,
    Size,
    expect_rows,
    in_units,
    inches,
    new_picture,
)

NARROWEST = 6.0
"""Least range of an axis in per cent, so that noise does not look like an effect."""

OURS = ("FedFA", "FedFA+", "FISC", "FedGCR")
ROLES = {"FedAvg": "baseline"} | dict.fromkeys(OURS, "ours")


@drawing
def accuracy_by_setting(
    table: pd.DataFrame,
    by: str = "name",
    yardsticks: Sequence[str] = ("FedAvg",),
    unit: str = "Accuracy (%)",
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw a row per setting: a dot for the mean, a bar for ± s.d., and its number.

    table:      columns `by`, mean, sd, num_seeds, in the order of the rows.
    yardsticks: settings whose mean is drawn as a line through all rows.
    size:       "single", "double", "slide" or inches.
    Rows such as "FISC, 5 of 200" have the colour of their method, if no method is there
    by itself. The axis need not start at zero, since these are dots and not bars.
    Raises ValueError for a repeated setting.
    """
    expect_rows(table, [by])
    data = in_units(table, unit).reset_index(drop=True)
    size = inches(size, (DOUBLE[0], 1.15 + 0.24 * len(data)))
    figure = new_picture(size, title, _note(data))
    axis = figure.subplots()
    for row in data.to_dict("records"):
        if row[by] in yardsticks:
            line = {"linestyle": ":", "linewidth": 1, "zorder": 0}
            axis.axvline(row["mean"], color=colour_of(row[by]), **line)
    methods = data[by].astype(str).str.partition(", ")[0]  # "FISC, 5 of 200": FISC
    shown_as = data[by] if methods.isin(data[by]).any() else methods
    for place, row in data.iterrows():
        spread = 0.0 if pd.isna(row["sd"]) else row["sd"]
        look = {"fmt": "o", "color": colour_of(shown_as[place]), "capsize": 2.5}
        axis.errorbar(row["mean"], place, xerr=spread, **look)
        number = f"{row['mean']:.1f}" + (f" ± {spread:.1f}" if spread else "")
        write_beside(axis, place, number)
    name_rows(axis, data[by].astype(str))
    axis.set_xlabel(unit)
    axis.margins(x=0.1)
    if unit.endswith("(%)"):
        low, high = axis.get_xlim()
        more = max(0.0, NARROWEST - (high - low)) / 2
        axis.set_xlim(low - more, high + more)
    return figure


def colour_of(name: object) -> str:
    """Black for the baseline, blue for the course's four methods, grey for others."""
    return COLOURS[ROLES.get(str(name), "quiet")]


def _note(data: pd.DataFrame) -> str:
    """The number of seeds; settings with a single seed have no bar."""
    counts = data["num_seeds"].unique()
    if len(counts) > 1 and 1 in counts:
        return "Dot: mean, bar: ± s.d. over seeds; a dot without a bar is one seed."
    return seeds_note(data, "Dot: mean, bar: ± s.d.")
