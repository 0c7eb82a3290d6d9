"""Client drift: paths of the clients' weights during local training, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from ..plots.drawing import drawing
from ..plots.style import COLOURS, SMALL, Picture, Size, inches, new_picture

MARKS = {  # marker, colour
    "broadcast": ("o", COLOURS["baseline"]),
    "average": ("D", COLOURS["other 1"]),
    "trained together": ("*", COLOURS["other 2"]),
}
DIRECTIONS = [  # offsets in points and alignments tried for a label, best first
    (7, 0, "left", "center"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    (-7, 0, "right", "center"),
    (6, 6, "left", "bottom"),
    (6, -6, "left", "top"),
    (-6, 6, "right", "bottom"),
    (-6, -6, "right", "top"),
    (0, 18, "center", "bottom"),
    (0, -18, "center", "top"),
    (18, 10, "left", "bottom"),
    (-18, -10, "right", "top"),
]


def drift_picture(
    paths: Sequence[np.ndarray],
    start: np.ndarray,
    average: np.ndarray,
    together: np.ndarray,
    *,
    axes: tuple[str, str] = ("First direction", "Second direction"),
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw the paths of local weights, projected to a plane.

    paths:   one (T, 2) array per client, from the broadcast weights to the message.
    start:   (2,) the broadcast weights. average: (2,) the aggregated weights.
    together: (2,) the weights after the same steps on the pooled data.
    axes:    names of the two directions of the plane.
    size:    "single", "double", "slide" or inches.
    """
    lines = {f"client {k}": path for k, path in enumerate(paths)}
    lines |= zip(MARKS, ([start], [average], [together]), strict=True)
    rows = [
        (name, step, *map(float, point))
        for name, line in lines.items()
        for step, point in enumerate(line)
    ]
    table = pd.DataFrame(rows, columns=["what", "step", "first", "second"])
    return draw_drift(table, axes, title, size)


@drawing
def draw_drift(
    table: pd.DataFrame,
    axes: tuple[str, str],
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw the paths of `drift_picture`.

    table: columns what (a client's name or one of MARKS), step, first, second.
    """
    lines = {
        name: line[["first", "second"]].to_numpy()
        for name, line in table.groupby("what", sort=False)
    }
    paths = {name: line for name, line in lines.items() if name not in MARKS}
    marks = [(name, lines[name][0], *MARKS[name]) for name in MARKS]
    figure = new_picture(inches(size, (4.6, 3.6)), title)
    axis = figure.subplots()
    axis.set(xlabel=axes[0], ylabel=axes[1])
    axis.grid(axis="both")
    for path in paths.values():
        _draw_path(axis, path)
    for _, place, marker, colour in marks:
        area = 130 if marker == "*" else 42
        look = {"marker": marker, "c": colour, "edgecolors": "white", "zorder": 5}
        axis.scatter(*place, s=area, linewidths=0.8, **look)
    _equal_limits(figure, axis, table[["first", "second"]].to_numpy())
    labels = [(name, place, colour) for name, place, _, colour in marks]
    labels += [(name, path[-1], COLOURS["ours"]) for name, path in paths.items()]
    everywhere = np.concatenate([_dense(path) for path in paths.values()])
    _place_labels(figure, axis, labels, everywhere)
    return figure


def _draw_path(axis: Axes, path: np.ndarray) -> None:
    axis.plot(*path.T, color=COLOURS["ours"], linewidth=1.2, alpha=0.85)
    axis.plot(*path[1:-1].T, ".", color=COLOURS["ours"], markersize=3.5)
    right, up = path[-1] - path[max(0, len(path) - 3)]
    angle = np.degrees(np.arctan2(up, right)) - 90  # a triangle points upwards
    axis.plot(*path[-1], marker=(3, 0, angle), color=COLOURS["ours"], markersize=7)


def _equal_limits(figure: Picture, axis: Axes, points: np.ndarray) -> None:
    """Give both directions the same scale, with room for labels around the points."""
    figure.draw_without_rendering()
    frame = axis.get_window_extent()
    ratio = frame.width / frame.height
    low, high = points.min(axis=0), points.max(axis=0)
    (x, y), (width, height) = (low + high) / 2, np.maximum(high - low, 1e-9) * 1.4
    width = max(width, height * ratio)
    axis.set(xlim=(x - width / 2, x + width / 2))
    axis.set(ylim=(y - width / ratio / 2, y + width / ratio / 2))
    axis.set_aspect("equal", adjustable="box")


def _dense(path: np.ndarray) -> np.ndarray:
    """Points along a path, close enough that a label cannot slip between them."""
    share = np.linspace(0, 1, 8)[:, None]
    steps = [a + share * (b - a) for a, b in pairwise(path)]
    return np.concatenate(steps)


def _place_labels(
    figure: Picture, axis: Axes, labels: Sequence[tuple], obstacles: np.ndarray
) -> None:
    """Try each direction around a point and keep the one that hides least."""
    figure.draw_without_rendering()
    frame = axis.get_window_extent()
    points = axis.transData.transform(obstacles)
    marks = axis.transData.transform([place for _, place, _ in labels])
    taken: list[Bbox] = []
    for name, place, colour in labels:
        text = axis.annotate(
            name, place, (0, 0), textcoords="offset points", color=colour, zorder=6
        )
        text.set_fontsize(SMALL)

        def cost(choice: tuple, text=text) -> float:
            """How much the text would hide there."""
            x, y, side, height = choice
            text.set(position=(x, y), ha=side, va=height)
            box = text.get_window_extent().padded(2)
            hidden = box.count_contains(points) + 5 * box.count_contains(marks)
            is_outside = not (
                frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1)
            )
            return hidden + 50 * box.count_overlaps(taken) + 100 * is_outside

        x, y, side, height = min(DIRECTIONS, key=cost)
        text.set(position=(x, y), ha=side, va=height)
        taken.append(text.get_window_extent().padded(1))
