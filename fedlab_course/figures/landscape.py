"""The loss on a plane through several networks, with the networks marked on it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..plots.drawing import drawing
from ..plots.style import COLOURS, DOUBLE, Picture, new_picture

MARKS = {"client": ("o", "other 1"), "mean": ("D", "ours")}
LEVELS = 14


@drawing
def loss_planes(table: pd.DataFrame, marks: pd.DataFrame, title: str = "") -> Picture:
    """Draw the loss on a plane of weights, one axis per network.

    table: columns network, x, y, loss; every pair of x and y of a network once.
    marks: columns network, x, y, what: "client" or "mean".
    All panels share colours and the range of the axes.
    """
    shown = list(table["network"].unique())
    low, high = table["loss"].min(), table["loss"].quantile(0.97)
    levels = np.linspace(low, max(high, low + 1e-6), LEVELS)
    figure = new_picture(DOUBLE, title)
    look = {"sharex": True, "sharey": True, "squeeze": False}
    axes = figure.subplots(1, len(shown), **look)[0]
    for axis, panel in zip(axes, shown, strict=True):
        part = table[table["network"] == panel]
        grid = part.pivot(index="y", columns="x", values="loss")
        values = (grid.columns, grid.index, grid)
        hills = axis.contourf(*values, levels, cmap="viridis_r", extend="max")
        _stand(axis, marks[marks["network"] == panel])
        axis.set(xlabel="First direction of weights", aspect="equal")
        axis.set_title(str(panel))
    axes[0].set_ylabel("Second direction")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower left", ncols=len(names))
    figure.colorbar(hills, ax=list(axes), label="Loss", format="%.2f")
    return figure


def _stand(axis, marks: pd.DataFrame) -> None:
    for what, (marker, role) in MARKS.items():
        mine = marks[marks["what"] == what]
        look = {"marker": marker, "color": COLOURS[role], "edgecolors": "white"}
        axis.scatter(mine["x"], mine["y"], s=34, label=what, zorder=3, **look)
