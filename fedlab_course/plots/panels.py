"""Small axes side by side: one part of a table on each."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from .style import DOUBLE, SMALL, Picture, Size, inches, label_of, new_picture

NARROWEST = 2.1  # inches of a panel


def parts_of(table: pd.DataFrame, column: str | None) -> dict[object, pd.DataFrame]:
    """The rows of each value of a column, in order of appearance.

    column: None: the whole table, under the name "".
    Raises ValueError for an empty table.
    """
    if column is None:
        return {"": table}
    groups = table.groupby(column, sort=False, observed=True, dropna=False)
    parts = dict(tuple(groups))
    if not parts:
        raise ValueError("expected rows to draw, found an empty table")
    return parts


def panelled(
    count: int,
    size: Size,
    title: str,
    note: str = "",
    *,
    head: float = 1.0,
    row: float = 1.8,
    **share: bool,
) -> tuple[Picture, list[Axes]]:
    """A figure with ``count`` axes, as many in a row as fit, in rows of equal length.

    head, row:  inches of the usual height: around all axes, and of each row.
    size, title, note, share:  as for ``inches``, ``new_picture`` and ``panel_axes``.
    """
    rows = -(-count // max(1, min(count, int(inches(size)[0] / NARROWEST))))
    figure = new_picture(inches(size, (DOUBLE[0], head + row * rows)), title, note)
    return figure, panel_axes(figure, count, -(-count // rows), **share)


def panel_axes(figure: Picture, count: int, columns: int, **share: bool) -> list[Axes]:
    """``count`` axes in rows of ``columns``; share: sharex, sharey."""
    rows = -(-count // columns)
    axes = figure.subplots(rows, columns, squeeze=False, **share).flat
    for extra in axes[count:]:
        extra.remove()
    return list(axes[:count])


def name_axes(axes: Sequence[Axes], values: str, along: str = "") -> None:
    """Label the outer axes of panels: y ``values``, x ``along``.

    along: "" if every axis has a label of its own.
    """
    columns = axes[0].get_gridspec().ncols
    for axis in axes[::columns]:
        axis.set_ylabel(values)
    if along:
        for axis in axes[-columns:]:
            axis.set_xlabel(along)
            axis.tick_params(labelbottom=True)


def panel_title(column: str, value: object) -> str:
    """The title of a panel: a text as it is, a number with its column's name."""
    return value if isinstance(value, str) else f"{label_of(column)}: {value}"


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """A row per name, from the top."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(max(1, len(names)) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x")


def write_beside(axis: Axes, place: float, text: str) -> None:
    """Write a text right of the axis, at the height ``place`` of the data."""
    where = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
    axis.annotate(text, (1.02, place), va="center", fontsize=SMALL, **where)
