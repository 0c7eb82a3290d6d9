"""Accuracy of methods on each domain: dots side by side, with their spread."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from .curves import seeds_note
from .drawing import drawing
from .style import (
    COLOURS,
    Picture,
    Size,
    expect_rows,
    in_units,
    inches,
    label_of,
    legend_columns,
    looks_for,
    names_below,
    new_picture,
)

NAMES = {
    "held_out": "Held-out domain",
    "type": "Client type, from most clients to fewest",
}
ROOM = 0.7  # of the width of a domain, for its dots


@drawing
def accuracy_by_domain(
    table: pd.DataFrame,
    x: str = "held_out",
    by: str = "name",
    title: str = "",
    unit: str = "Accuracy (%)",
    order: Sequence[object] | None = None,
    size: Size = None,
) -> Picture:
    """Draw mean ± s.d. of every domain, one dot per value of ``by``.

    table:  from ``history.final`` or ``summarise``: columns ``x``, ``by``, mean, sd,
            num_seeds.
    unit:   label of the axis; shares become per cent where it ends in (%).
    order:  the domains from left to right; by default as in the table.
    size:   "single", "double", "slide" or inches.
    The axis need not start at zero, since these are dots and not bars.
    Raises ValueError for repeated rows, an order that does not fit, or more than five
    values of ``by``.
    """
    expect_rows(table, [x, by])
    domains = _in_order(table[x], order)
    data = in_units(table, unit)
    names = list(table[by].unique())
    note = seeds_note(data, "Dot: mean, bar: ± s.d.")
    width, height = inches(size)
    columns = legend_columns(names, width)
    if isinstance(size, str):  # a named size grows with the rows of the legend
        height += 0.17 * (-(-len(names) // columns) - 1)
    figure = new_picture((width, height), title, note)
    axis = figure.subplots()
    gap = min(0.18, ROOM / len(names))
    for place, (name, look) in enumerate(looks_for(names).items()):
        dots = data[data[by] == name].set_index(x).reindex(domains)
        options = {"capsize": 2.5, "elinewidth": 1.2, "markersize": 5.5} | look
        options |= {"linestyle": "none", "label": str(name)}
        places = np.arange(len(domains)) + (place - (len(names) - 1) / 2) * gap
        axis.errorbar(places, dots["mean"], dots["sd"].fillna(0.0), **options)
    _name_domains(axis, domains, width)
    axis.set(xlabel=NAMES.get(x, label_of(x)), ylabel=unit)
    axis.grid(axis="y")
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axis.legend(ncols=columns, columnspacing=1.5, handletextpad=0.3, **above)
    return figure


def _in_order(found: pd.Series, order: Sequence[object] | None) -> list[object]:
    domains = list(found.unique() if order is None else order)
    if set(domains) != set(found) or len(domains) > len(set(domains)):
        raise ValueError(
            f"expected an order of {list(found.unique())}, found {domains}; list every "
            "domain of the table once"
        )
    return domains


def _name_domains(axis: Axes, domains: Sequence[object], width: float) -> None:
    """Write the names below the axis and draw lines between domains."""
    names_below(axis, domains, 13 * (width - 0.8))
    axis.tick_params(axis="x", length=0)
    axis.set_xlim(-0.5, len(domains) - 0.5)
    for edge in np.arange(1, len(domains)) - 0.5:
        axis.axvline(edge, color=COLOURS["pale"], linewidth=0.8, zorder=0)
