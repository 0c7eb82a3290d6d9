"""Participation and accuracy of clients, sorted from most to least."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from fedlab_support.core.history import columns_of

from ..plots.curves import label_ends, seeds_note
from ..plots.drawing import drawing
from ..plots.panels import name_axes, panel_title, panelled
from ..plots.style import (
    COLOURS,
    SMALL,
    Picture,
    Size,
    expect_rows,
    inches,
    label_of,
    looks_for,
    new_picture,
    scale_of,
)

PERCENT = "percent_of_rounds"
SIGNS = "●■▲◆▼"  # as MARKERS, for texts
BARE = {"linewidth": 0, "edgecolor": "white"}  # hatches take the edge's colour
GROUPS = (  # styles of up to three groups of clients
    {"facecolor": COLOURS["ours"]},
    {"facecolor": COLOURS["other 1"], "hatch": "////"},
    {"facecolor": COLOURS["other 2"], "hatch": "...."},
)


def participation_picture(
    table: pd.DataFrame, by: str = "name", group: str | None = None, title: str = ""
) -> Picture:
    """Draw the clients' shares of rounds: one panel per value of `by`.

    table: from `measures.participation`: columns `by`, seed, client and share (of the
           rounds). Within each seed clients are sorted from most to least chosen; then
           the n-th clients of all seeds are averaged.
    group: column with the group of each client, such as "often" and "rarely" available.
           Groups are drawn side by side, each sorted and in its own colour.
    Raises ValueError for repeated clients, seeds with unlike numbers of clients, or
    more than three groups.
    """
    columns_of(table, [by, "seed", "client", "share", *([group] if group else [])])
    places = pd.DataFrame(_places(table, by, group))
    return draw_participation(places, by, group, title)


@drawing
def draw_participation(
    places: pd.DataFrame,
    by: str = "name",
    group: str | None = None,
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw clients that `participation_picture` has sorted and averaged.

    places: columns `by`, `group`, place, percent_of_rounds, never_chosen, num_seeds.
    size:   "single" (panels below each other), "double", "slide" or inches.
    """
    panels = list(places[by].unique())
    groups = list(places[group].unique()) if group else [None]
    if len(groups) > len(GROUPS):
        raise ValueError(
            f"expected at most {len(GROUPS)} groups, found {len(groups)}: {groups}"
        )
    note = seeds_note(places, "Mean after sorting within each seed")
    look = {"row": 1.65, "sharex": True, "sharey": True}
    figure, axes = panelled(len(panels), size, title, note, **look)
    columns = axes[0].get_gridspec().ncols
    room = int((figure.get_figwidth() - 1.0) / columns * 12)  # letters above a panel
    names = {panel: textwrap.fill(panel_title(by, panel), room) for panel in panels}
    for axis, panel in zip(axes, panels, strict=True):
        part = places[places[by] == panel]
        for one, look in zip(groups, GROUPS, strict=False):
            bars = part if one is None else part[part[group] == one]
            _draw_bars(axis, bars, BARE | look)
        _name_panel(axis, names[panel], part)
    axes[0].set_ylim(0, 1.05 * places[PERCENT].max())
    name_axes(axes, "Share of rounds (%)", "Clients, sorted")
    means = places.groupby(by, sort=False)[PERCENT].mean()
    _name_equal(axes[columns - 1], means)
    if group:
        lines = max(name.count("\n") for name in names.values())
        _name_groups(axes[0], groups, 0.42 + 0.15 * lines)
    return figure


def _places(table: pd.DataFrame, by: str, group: str | None) -> Iterator[dict]:
    """Yield the n-th client of each panel, group by group: its mean share in %."""
    cure = "filter the table, or choose a column for `by` that separates the runs"
    expect_rows(table, [by, "seed", "client"], cure)
    for panel, clients in table.groupby(by, sort=False):
        place = 0
        num_seeds = clients["seed"].nunique()
        never = (clients["share"] == 0).sum() / num_seeds
        parts = clients.groupby(group, sort=False) if group else [(None, clients)]
        for one, members in sorted(parts, key=lambda p: -p[1]["share"].mean()):
            shares = [np.sort(s)[::-1] for _, s in members.groupby("seed")["share"]]
            if len({len(s) for s in shares}) > 1 or len(shares) < num_seeds:
                where = f"{panel!r}" + (f", {group} {one!r}" if group else "")
                raise ValueError(
                    f"expected as many clients in every seed of {where}, found "
                    f"{[len(s) for s in shares]}; keep clients that were never selected"
                )
            for percent in 100 * np.mean(shares, axis=0):
                place += 1
                row = {by: panel, "place": place, PERCENT: percent}
                row |= {group: one} if group else {}
                yield row | {"never_chosen": never, "num_seeds": num_seeds}


def _draw_bars(axis: Axes, bars: pd.DataFrame, look: dict[str, object]) -> None:
    """Bars without gaps, as one shape: a hundred clients leave no seams."""
    if len(bars):
        edges = np.append(bars["place"] - 0.5, bars["place"].max() + 0.5)
        axis.stairs(bars[PERCENT], edges, fill=True, **look)


def _name_panel(axis: Axes, name: str, part: pd.DataFrame) -> None:
    """Write the title and the count of clients never selected; mark equal shares."""
    axis.set_title(name, pad=15)
    count = f"{part['never_chosen'].iloc[0]:.1f}".removesuffix(".0")
    text = f"{count} of {len(part)} never selected"
    above = axis.annotate(text, (0, 1), (0, 4), "axes fraction", "offset points")
    above.set(fontsize=SMALL, color=COLOURS["quiet"])
    axis.axhline(part[PERCENT].mean(), color="black", linewidth=1, linestyle="--")
    axis.set_xlim(0.5, len(part) + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, prune="lower"))


def _name_equal(axis: Axes, means: pd.Series) -> None:
    """Label the dashed line once, to the right of the first row."""
    is_one = np.isclose(means, means.iloc[0]).all()
    text = "equal\nshares" + (f":\n{means.iloc[0]:.3g} %" if is_one else "")
    right = (axis.get_xlim()[1], means.iloc[axis.get_subplotspec().colspan.start])
    label = axis.annotate(text, right, (4, 0), textcoords="offset points")
    label.set(fontsize=SMALL, va="center", annotation_clip=False)


def _name_groups(axis: Axes, groups: list[object], inches: float) -> None:
    """Draw the legend above the axis, leaving room for the title of the panel."""
    lifted = ScaledTranslation(0, inches, axis.get_figure().dpi_scale_trans)
    above = {"bbox_transform": axis.transAxes + lifted, "bbox_to_anchor": (0, 1)}
    above |= {"loc": "lower left", "borderpad": 0, "borderaxespad": 0}
    looks = zip(groups, GROUPS, strict=False)
    fields = [Patch(label=str(one), **BARE, **look) for one, look in looks]
    axis.legend(handles=fields, ncols=len(groups), **above)


@drawing
def accuracy_by_client(
    table: pd.DataFrame,
    by: str = "name",
    title: str = "",
    metric: str = "accuracy",
    size: Size = None,
) -> Picture:
    """Draw all clients' accuracies in order, one line per value of `by`.

    table:  from `measures.by_client`: columns `by`, client, mean, num_seeds.
    metric: what `mean` is, such as "dice"; shares become per cent.
    size:   "single", "double", "slide" or inches.
    A line starts at the client that is served worst; at x % it is the accuracy that x %
    of the clients do not exceed.
    Raises ValueError for repeated clients or more than five lines.
    """
    expect_rows(table, [by, "client"], "average first, with measures.by_client")
    scaled = table["mean"] * scale_of(metric)
    lines = table.assign(mean=scaled).sort_values("mean", kind="stable")
    ranks = lines.groupby(by)["mean"]
    share = 100 * (ranks.cumcount() + 0.5) / ranks.transform("size")
    lines = lines.assign(percent_of_clients=share)
    note = seeds_note(table, "Each client's mean")
    figure = new_picture(inches(size), title, note)
    axis = figure.subplots()
    for place, (name, look) in enumerate(looks_for(table[by].unique()).items()):
        line = lines[lines[by] == name]
        every = (0.04 * place, 0.2)  # of the figure: marks of lines alternate
        every = every if len(line) > 1 else None
        look |= {"label": f"{SIGNS[place]} {name}"}  # ends may well coincide
        axis.plot(line["percent_of_clients"], line["mean"], markevery=every, **look)
    axis.set(xlabel="Share of clients, worst served first (%)", xlim=(0, 100))
    axis.set_ylabel(label_of(metric))
    axis.grid(axis="y")
    label_ends(figure, axis)
    return figure
