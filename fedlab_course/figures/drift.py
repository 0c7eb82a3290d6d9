"""Client drift: paths of the clients' weights during local training, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..plots.drawing import drawing
from ..plots.style import COLOURS, SMALL, Picture, Size, inches, new_picture

RIGHT = {"xytext": (7, 0), "ha": "left", "va": "center"}  # where a name stands
LEFT = {"xytext": (-7, 0), "ha": "right", "va": "center"}
ABOVE = {"xytext": (0, 7), "ha": "center", "va": "bottom"}
MARKS = {  # marker, colour, place of the name
    "broadcast": ("o", COLOURS["baseline"], LEFT),
    "average": ("D", COLOURS["other 1"], ABOVE),
    "trained together": ("*", COLOURS["other 2"], RIGHT),
}


def drift_picture(
    paths: Sequence[np.ndarray],
    start: np.ndarray,
    average: np.ndarray,
    together: np.ndarray,
    *,
    axes: tuple[str, str] = ("First direction", "Second direction"),
    title: str = "",
) -> Picture:
    """Draw the paths of local weights, projected to a plane.

    paths:   one (T, 2) array per client, from the broadcast weights to the message.
    start:   (2,) the broadcast weights. average: (2,) the aggregated weights.
    together: (2,) the weights after the same steps on the pooled data.
    axes:    names of the two directions of the plane.
    """
    lines = {f"client {k}": path for k, path in enumerate(paths)}
    lines |= zip(MARKS, ([start], [average], [together]), strict=True)
    rows = [
        (name, step, *map(float, point))
        for name, line in lines.items()
        for step, point in enumerate(line)
    ]
    table = pd.DataFrame(rows, columns=["what", "step", "first", "second"])
    return draw_drift(table, axes, title)


@drawing
def draw_drift(
    table: pd.DataFrame,
    axes: tuple[str, str],
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw the paths of `drift_picture`.

    table: columns what (a client's name or one of MARKS), step, first, second.
    size:  "single", "double", "slide" or inches.
    """
    lines = {
        name: line[["first", "second"]].to_numpy()
        for name, line in table.groupby("what", sort=False)
    }
    paths = {name: line for name, line in lines.items() if name not in MARKS}
    figure = new_picture(inches(size, (4.6, 3.6)), title)
    axis = figure.subplots()
    axis.set(xlabel=axes[0], ylabel=axes[1])
    axis.grid(axis="both")
    for path in paths.values():
        _draw_path(axis, path)
    for name, (marker, colour, _) in MARKS.items():
        area = 130 if marker == "*" else 42
        look = {"marker": marker, "c": colour, "edgecolors": "white", "zorder": 5}
        axis.scatter(*lines[name][0], s=area, linewidths=0.8, **look)
    _equal_limits(figure, axis, table[["first", "second"]].to_numpy())
    for name, line in lines.items():
        _, colour, beside = MARKS.get(name, ("", COLOURS["ours"], RIGHT))
        look = {"textcoords": "offset points", "color": colour, "fontsize": SMALL}
        axis.annotate(name, line[-1], zorder=6, **look, **beside)
    return figure


def _draw_path(axis: Axes, path: np.ndarray) -> None:
    axis.plot(*path.T, color=COLOURS["ours"], linewidth=1.2, alpha=0.85)
    axis.plot(*path[1:-1].T, ".", color=COLOURS["ours"], markersize=3.5)
    right, up = path[-1] - path[max(0, len(path) - 3)]
    angle = np.degrees(np.arctan2(up, right)) - 90  # a triangle points upwards
    axis.plot(*path[-1], marker=(3, 0, angle), color=COLOURS["ours"], markersize=7)


def _equal_limits(figure: Picture, axis: Axes, points: np.ndarray) -> None:
    """Give both directions the same scale, with room for labels around the points."""
    figure.get_layout_engine().execute(figure)  # fixes the size of the axis
    frame = axis.get_window_extent()
    ratio = frame.width / frame.height
    low, high = points.min(axis=0), points.max(axis=0)
    (x, y), (width, height) = (low + high) / 2, np.maximum(high - low, 1e-9) * 1.4
    width = max(width, height * ratio)
    axis.set(xlim=(x - width / 2, x + width / 2))
    axis.set(ylim=(y - width / ratio / 2, y + width / ratio / 2))
    axis.set_aspect("equal", adjustable="box")
