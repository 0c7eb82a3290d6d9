"""Features in two dimensions, and soft histograms of their values."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..plots.drawing import drawing
from ..plots.panels import name_axes, panelled, parts_of
from ..plots.style import (
    COLOURS,
    DOUBLE,
    SMALL,
    Picture,
    Size,
    label_of,
    legend_columns,
    looks_for,
    new_picture,
)


@drawing
def scatter_panels(
    table: pd.DataFrame,
    x: str,
    y: str,
    by: str,
    *,
    panels: str | None = None,
    text: str | None = None,
    cloud: pd.DataFrame | None = None,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw points, one colour and marker per value of `by`.

    panels: column with one axis per value; every axis has its own range.
    text:   column with a few characters to draw in place of a point's marker.
    cloud:  more points with the same columns x and y, drawn in grey below the others.
    size:   "single" (panels below each other), "double", "slide" or inches.
    Raises ValueError for other columns, or more than six values of `by`.
    """
    shown = parts_of(table, panels)
    looks = looks_for(table[by].unique(), are_points=True)
    figure, axes = panelled(len(shown), size, title)
    for axis, (panel, part) in zip(axes, shown.items(), strict=True):
        if cloud is not None:
            grey = {"color": COLOURS["faint"], "s": 5, "linewidths": 0, "zorder": 1}
            axis.scatter(cloud[x], cloud[y], **grey)
        for name, look in looks.items():
            mine = part[part[by] == name]
            _points(axis, mine[x], mine[y], mine[text] if text else None, look)
        axis.set_xlabel(label_of(x))
        axis.set_title(str(panel))
    name_axes(axes, label_of(y))
    _legend(figure, looks, with_markers=text is None)
    return figure


def _points(axis: Axes, x, y, letters, look: dict[str, str]) -> None:
    if letters is None:
        dots = {"s": 14, "linewidths": 0, "alpha": 0.75, "zorder": 2}
        axis.scatter(x, y, **look, **dots)
        return
    axis.scatter(x, y, s=0)  # lets the axis find its range
    centred = {"ha": "center", "va": "center", "fontsize": SMALL, "clip_on": True}
    for place, letter in zip(zip(x, y, strict=True), letters, strict=True):
        axis.text(*place, str(letter), color=look["color"], **centred)


def _legend(figure: Picture, looks: dict, with_markers: bool) -> None:
    """The names below the panels, each in its colour."""
    for name, look in looks.items():
        look = look if with_markers else look | {"marker": "s"}
        figure.axes[0].plot([], [], linestyle="none", label=str(name), **look)
    columns = legend_columns(list(looks), figure.get_size_inches()[0])
    figure.legend(loc="outside lower left", ncols=columns, handletextpad=0.2)


def bins_picture(
    places: np.ndarray, memberships: np.ndarray, shares: pd.DataFrame, title: str = ""
) -> Picture:
    """Draw the memberships of soft bins, and the histogram that they give.

    places:      (n,) scaled values, in order. memberships: (L, n), columns sum to 1.
    shares:      columns bin (from 1), soft, hard: the shares of some values in each.
    """
    curves = pd.DataFrame(memberships.T, columns=shares["bin"].astype(str))
    curves.insert(0, "place", places)
    return draw_bins(shares, curves, title)


@drawing
def draw_bins(
    shares: pd.DataFrame, memberships: pd.DataFrame, title: str = ""
) -> Picture:
    """Draw `bins_picture` from tables.

    shares:      columns bin, soft, hard. memberships: a column place, then one per bin.
    """
    curves = memberships.drop(columns="place")
    figure = new_picture(DOUBLE, title)
    left, right = figure.subplots(1, 2)
    for number, bin_ in enumerate(curves, 1):
        is_outer = number in (1, curves.shape[1])
        colour = COLOURS["other 1" if is_outer else "ours"]
        strength = 1 if is_outer or number % 2 else 0.5
        look = {"color": colour, "alpha": strength}
        left.plot(memberships["place"], curves[bin_], **look)
    for end in (0, 1):
        left.axvline(end, color=COLOURS["quiet"], linestyle=":", linewidth=1)
    left.set(xlabel="Scaled value (0: least, 1: largest)", ylabel="Membership")
    left.set_title("Each bin's membership; orange: the outermost")
    wide = {"width": 0.8, "color": COLOURS["faint"], "label": "hard bins"}
    right.bar(shares["bin"], 100 * shares["hard"], **wide)
    narrow = {"width": 0.4, "color": COLOURS["ours"], "label": "soft bins"}
    right.bar(shares["bin"], 100 * shares["soft"], **narrow)
    right.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    right.set(xlabel="Bin", ylabel="Share of the values (%)")
    right.legend(loc="upper right")
    return figure
