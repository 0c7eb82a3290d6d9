"""Client types: accuracy, aggregation weights, and clusters."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from ..plots.domains import accuracy_by_domain
from ..plots.drawing import drawing
from ..plots.panels import parts_of
from ..plots.style import (
    COLOURS,
    DOUBLE,
    MARKERS,
    SMALL,
    Picture,
    Size,
    expect_rows,
    label_of,
    looks_for,
    new_picture,
)

SHAPES = (*MARKERS, "p", "h", "8")
"""Markers with room for a letter, one per cluster."""


@drawing
def accuracy_by_type(
    table: pd.DataFrame, title: str = "", size: Size = None
) -> Picture:
    """Draw mean ± s.d. of every client type, the type with most clients first.

    table: columns type, num_clients (of that type), name, mean, sd, num_seeds.
    size:  "single", "double", "slide" or inches.
    Raises ValueError as `accuracy_by_domain` does.
    """
    counts = table[["type", "num_clients"]].drop_duplicates()
    counts = counts.sort_values("num_clients", ascending=False, kind="stable")
    pairs = zip(counts["type"], counts["num_clients"], strict=True)
    names = {t: f"{t}\n{n} client{'s' * (n > 1)}" for t, n in pairs}
    named = table.assign(type=table["type"].map(names))
    order = list(names.values())
    return accuracy_by_domain(named, "type", title=title, order=order, size=size)


@drawing
def weights_picture(
    table: pd.DataFrame, panels: str = "name", title: str = ""
) -> Picture:
    """Draw the aggregation weight of each client (rows, by type) in every round.

    table:  columns client, type, round, weight (share in 0…1) and `panels`; one run
            per panel. A client has no row for a round in which it did not participate.
    All panels share one scale, from 0.
    Raises ValueError for repeated rows or other columns.
    """
    import seaborn  # slow to import, and it brings pyplot

    expect_rows(table, [panels, "client", "round"], "draw one run in each panel")
    shown = parts_of(table, panels)
    clients = _in_rows(table)
    rounds = range(table["round"].min(), table["round"].max() + 1)
    norm = Normalize(0, 100 * table["weight"].max())
    note = "A row is a client."
    if len(table) < len(rounds) * len(clients) * len(shown):
        note += " Grey: it did not participate in that round."
    size = (DOUBLE[0], 1.3 + max(1.2, 0.125 * len(clients)))
    figure = new_picture(size, title, note)
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, (panel, part) in zip(axes, shown.items(), strict=True):
        cells = part.pivot(index="client", columns="round", values="weight")
        cells = 100 * cells.reindex(index=clients["client"], columns=rounds)
        every = -(-len(rounds) // 6)  # of the rounds, named
        look = {"norm": norm, "cmap": "viridis", "cbar": False, "rasterized": True}
        axis.set_facecolor(COLOURS["pale"])
        seaborn.heatmap(cells, ax=axis, xticklabels=every, yticklabels=False, **look)
        axis.set_title(str(panel))
        axis.set(xlabel="Round", ylabel="")
        axis.tick_params(axis="x", rotation=0)
        _part_types(axis, list(clients["type"]))
    scale = ScalarMappable(norm, "viridis")
    bar = figure.colorbar(scale, ax=axes, label="Weight (%)", pad=0.02)
    bar.outline.set_visible(False)
    return figure


def _in_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return each client once with its type, the largest type first."""
    clients = table[["client", "type"]].drop_duplicates()
    sizes = clients.groupby("type", sort=False)["client"].transform("size")
    keys, falls = ["size", "type", "client"], [False, True, True]
    return clients.assign(size=sizes).sort_values(keys, ascending=falls)


def _part_types(axis: Axes, types: list[object]) -> None:
    """Write each type's name beside its rows, and separate types by white lines."""
    names = list(dict.fromkeys(types))
    middles = [
        np.flatnonzero([t == name for t in types]).mean() + 0.5 for name in names
    ]
    axis.set_yticks(middles, [str(name) for name in names], rotation=0)
    axis.tick_params(axis="y", length=0)
    for name in names[1:]:
        axis.axhline(types.index(name), color="white", linewidth=2)


@drawing
def clusters_picture(
    table: pd.DataFrame,
    x: str = "x",
    y: str = "y",
    panels: str | None = None,
    title: str = "",
) -> Picture:
    """Draw clients as points: colour and letter for the type, shape for the cluster.

    table:  columns type, cluster, `x` and `y`, a row per client; at most six types
            and eight clusters.
    panels: column with one axis per value; every axis has its own range.
    Raises ValueError for other columns or too many types or clusters.
    """
    shown = parts_of(table, panels)
    types, clusters = list(table["type"].unique()), sorted(table["cluster"].unique())
    if len(clusters) > len(SHAPES):
        raise ValueError(
            f"expected at most {len(SHAPES)} clusters, found {len(clusters)}: more "
            "shapes are hard to tell apart"
        )
    letters = dict(zip(types, "ABCDEF", strict=False))
    shapes = dict(zip(clusters, SHAPES, strict=False))
    looks = looks_for(types, are_points=True)
    figure = new_picture((DOUBLE[0], 3.4), title)
    axes = figure.subplots(1, len(shown), squeeze=False)[0]
    for axis, (panel, part) in zip(axes, shown.items(), strict=True):
        for place, row in enumerate(part.to_dict("records")):
            kind, shape = row["type"], shapes[row["cluster"]]
            look = looks[kind] | {"marker": shape}
            _client(axis, (row[x], row[y]), letters[kind], look, 2 + place)
        axis.set(xlabel=label_of(x), ylabel=label_of(y))
        axis.set_title(str(panel))
        axis.margins(0.1)
    _name_looks(figure, letters, looks, shapes)
    return figure


def _client(
    axis: Axes, place: tuple[float, float], letter: str, look: dict, zorder: int
) -> None:
    """Draw a marker with a letter inside; higher zorders cover both."""
    size = 190 if look["marker"] in "^v" else 120  # triangles have less room
    edge = {"edgecolor": "white", "linewidth": 0.6}
    axis.scatter(*place, s=size, zorder=zorder, **look, **edge)
    inside = {"ha": "center", "va": "center_baseline", "color": "white"}
    axis.text(*place, letter, fontsize=SMALL, clip_on=True, zorder=zorder, **inside)


def _name_looks(figure: Picture, letters: dict, looks: dict, shapes: dict) -> None:
    """Add a legend: types in their colours, clusters in grey."""
    axis, mark = figure.axes[0], {"linestyle": "none", "markersize": 6}
    for kind, letter in letters.items():
        name = {"label": f"{letter}  {kind}", "color": looks[kind]["color"]}
        axis.plot([], [], marker="o", **name, **mark)
    for cluster, shape in shapes.items():
        name = {"label": f"cluster {cluster}", "color": COLOURS["quiet"]}
        axis.plot([], [], marker=shape, **name, **mark)
    figure.legend(loc="outside right upper", handletextpad=0.2)
