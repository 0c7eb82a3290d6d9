"""Learning curves: mean and spread over seeds, labelled at the ends of the lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedlab_support.core.checks import checked
from fedlab_support.core.history import (
    ALL_CLIENTS,
    ALL_DOMAINS,
    MEASURED,
    columns_of,
    summarise,
)

from .drawing import drawing
from .panels import name_axes, panel_title, panelled, parts_of
from .style import (
    COLOURS,
    SMALL,
    Picture,
    Size,
    in_units,
    label_of,
    looks_for,
    scale_of,
)

LINE_HEIGHT = 1.35  # of a label, in font sizes


@checked()
def learning_curves(
    table: pd.DataFrame,
    metric: str = "accuracy",
    split: str = "test",
    by: str = "method",
    *,
    panels: str | None = None,
    ours: object = None,
    levels: Mapping[str, float] | None = None,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw one line per value of ``by``: mean over seeds, band ± one s.d.

    table:   tidy history, possibly with further columns, such as a swept setting.
    panels:  column with one small axis per value; all axes share the range of values,
             and that of rounds if all end at the same one.
    ours:    the value of ``by`` that is drawn in blue; FedAvg is black.
    levels:  name → value of a dashed line, such as a baseline that has no rounds.
    size:    "single", "double", "slide" or inches; by default as wide as a page and as
             high as the panels need.
    Raises ValueError when no rows are left or an axis would get more than five lines.
    """
    curves = _curves(table, metric, split, by, panels)
    levels = {name: scale_of(metric) * value for name, value in (levels or {}).items()}
    options = {"panels": panels, "ours": ours, "title": title, "size": size}
    return draw_curves(curves, metric, by, levels=levels or None, **options)


@drawing
def draw_curves(
    curves: pd.DataFrame,
    metric: str,
    by: str,
    *,
    panels: str | None = None,
    ours: object = None,
    levels: Mapping[str, float] | None = None,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw the averages of ``learning_curves``: mean, sd and num_seeds per round.

    curves:  columns ``by``, ``panels``, round, mean, sd, num_seeds; shares in per cent.
    The other arguments are those of ``learning_curves``.
    """
    shown = parts_of(curves, panels)
    looks = looks_for(list(curves[by].unique()), ours)
    note = seeds_note(curves, "Line: mean, band: ± s.d.")
    lengths = curves.groupby(panels)["round"].max().nunique() if panels else 1
    share = {"sharex": lengths == 1, "sharey": True}
    figure, axes = panelled(len(shown), size, title, note, **share)
    for axis, (panel, part) in zip(axes, shown.items(), strict=True):
        _draw_lines(axis, part, by, looks)
        ends = part["round"].min(), part["round"].max()
        for name, value in (levels or {}).items():
            look = {"color": COLOURS["quiet"], "linestyle": "--", "linewidth": 1}
            axis.plot(ends, [value, value], label=name, **look)
        axis.set_title(panel_title(panels, panel))
    name_axes(axes, label_of(metric), "Round")
    heading = "" if curves[by].map(type).eq(str).all() else label_of(by)
    columns = axes[0].get_gridspec().ncols
    for axis in axes[columns - 1 :: columns]:
        label_ends(figure, axis, heading, axes)
    return figure


def _curves(
    table: pd.DataFrame, metric: str, split: str, by: str, panels: str | None
) -> pd.DataFrame:
    """Mean, sd and num_seeds per line and round, scaled for the axis."""
    columns_of(table, [*MEASURED, by, *([panels] if panels else [])])
    chosen = table[(table["metric"] == metric) & (table["split"] == split)]
    for name, all_of_them in (("domain", ALL_DOMAINS), ("client", ALL_CLIENTS)):
        is_all = chosen[name] == all_of_them
        chosen = chosen[~is_all if name in (by, panels) else is_all]
    if chosen.empty:
        raise ValueError(
            f"expected rows with metric {metric!r} and split {split!r}, found none; "
            f"the table has metrics {sorted(table['metric'].unique())} "
            f"and splits {sorted(table['split'].unique())}"
        )
    keys = [by, *([panels] if panels else []), "round"]
    curves = in_units(summarise(chosen, by=keys), metric)
    return curves.sort_values("round", kind="stable", ignore_index=True)


def seeds_note(table: pd.DataFrame, what: str) -> str:
    """The note under a figure: what is shown, over how many seeds.

    table:  with a column num_seeds.
    what:   such as "Line: mean, band: ± s.d.".
    Raises ValueError for an empty table.
    """
    if table.empty:
        raise ValueError("expected rows to draw, found an empty table")
    counts = sorted(table["num_seeds"].unique())
    if counts[-1] <= 1:  # 0 where the only seed has diverged
        return "One seed: no spread is known."
    seeds = " to ".join(str(count) for count in sorted({counts[0], counts[-1]}))
    return f"{what}, {seeds} seeds."


def _draw_lines(
    axis: Axes, curves: pd.DataFrame, by: str, looks: dict[object, dict[str, str]]
) -> None:
    axis.grid(axis="y")
    tick_rounds(axis)
    for name, look in looks.items():
        line = curves[curves[by] == name]
        if len(line):
            draw_curve(axis, line, look, str(name))


def tick_rounds(axis: Axes) -> None:
    """Put few ticks at round numbers of rounds, such as 0, 10, 20, 30."""
    axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


def draw_curve(
    axis: Axes, line: pd.DataFrame, look: dict[str, str], name: str = "_"
) -> Line2D:
    """Draw means over rounds in a band of ± one s.d.; return the mark at their end.

    line: columns round, mean and sd, in order. look: colour and marker.
    """
    x, mean, spread = line["round"], line["mean"], line["sd"].fillna(0.0)
    axis.plot(x, mean, color=look["color"], label=name, zorder=3)
    band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
    axis.fill_between(x, mean - spread, mean + spread, **band)
    end = line[np.isfinite(mean)].tail(1)  # a run may diverge
    return axis.plot(end["round"], end["mean"], **look, zorder=4)[0]


def draw_points(
    axis: Axes, x: pd.Series, line: pd.DataFrame, look: dict[str, str], name: object
) -> None:
    """Draw a line through means, with bars of ± one s.d.; x: the places of its rows."""
    axis.plot(x, line["mean"], **look, label=str(name))
    bars = {"fmt": "none", "ecolor": look["color"], "capsize": 2.5, "elinewidth": 1.2}
    axis.errorbar(x, line["mean"], line["sd"].fillna(0.0), **bars)


def label_ends(
    figure: Picture, axis: Axes, heading: str = "", panels: Sequence[Axes] = ()
) -> None:
    """Write each line's name at its end, and move overlapping names apart.

    heading: written above the names. panels: further axes, whose lines are named here
    if ``axis`` has none of that name. Axes may be logarithmic. Lines without finite
    points get no name.
    """
    quiet = COLOURS["quiet"]
    above = axis.text(1.08, 1, heading, transform=axis.transAxes, color=quiet)
    above.set(fontsize=SMALL, va="bottom")
    ends = {}
    for line in [line for each in (axis, *panels) for line in each.get_lines()]:
        points = line.get_xydata()
        points = points[np.isfinite(points).all(axis=1)]
        if len(points) and line.get_label()[0] != "_":
            ends.setdefault(line.get_label(), (line, points[-1]))
    arrow = {"arrowstyle": "-", "color": quiet, "linewidth": 0.5}
    arrow |= {"relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 4}
    labels = [
        axis.annotate(
            name,
            end,
            xytext=(1.08, 0.5),
            textcoords="axes fraction",
            color=line.get_color(),
            fontsize=SMALL,
            va="center",
            annotation_clip=False,
            arrowprops=arrow if line.axes is axis else None,
        )
        for name, (line, end) in ends.items()
    ]
    figure.get_layout_engine().execute(figure)  # fixes the size of the axis
    frame = axis.get_window_extent()
    width, height = (inches * 72 / figure.dpi for inches in (frame.width, frame.height))
    beside = 1 + 10 / width
    above.set_position((beside, 1 + 6 / height))
    to_share = axis.transScale + axis.transLimits
    wanted = [to_share.transform(end)[1] for _, end in ends.values()]
    gap = SMALL * LINE_HEIGHT / height
    for label, place in zip(labels, spread(wanted, gap), strict=True):
        label.set_position((beside, place))


def spread(wanted: Sequence[float], gap: float) -> np.ndarray:
    """Move positions in [0, 1] as little as possible until they are ``gap`` apart.

    Returns the new positions in the given order.
    """
    from scipy.optimize import isotonic_regression  # slow to import

    order = np.argsort(wanted, kind="stable")
    steps = gap * np.arange(len(order))
    places = np.empty(len(order))
    close = isotonic_regression(np.asarray(wanted)[order] - steps).x
    places[order] = close.clip(0, max(0, 1 - steps.max(initial=0))) + steps
    return places
