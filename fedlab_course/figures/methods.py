"""The map of the course: which method changes which hook of the round."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from ..plots.drawing import drawing
from ..plots.style import COLOURS, SLIDE, SMALL, Picture, new_picture

WIDTH = SLIDE[0]  # the drawing is in inches
NAME_INCHES = 1.45  # room for a method's name
LINE_INCHES = 0.135  # one line of small text
CHARACTER_INCHES = 0.066
NAME_ROOM = int(NAME_INCHES / CHARACTER_INCHES)


@drawing
def method_map(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw methods × hooks; a filled field marks a hook that the method overrides.

    table: as `hook_table` returns it; a cell is empty where the hook is that of FedAvg.
    """
    words = table.set_index("method").fillna("")
    phases, hooks = zip(*(name.split(": ") for name in words.columns), strict=True)
    cell = (WIDTH - NAME_INCHES - 0.15) / len(hooks)
    room = max(4, int((cell - 0.1) / CHARACTER_INCHES))
    words = words.map(lambda entry: textwrap.fill(entry, room))
    names = [textwrap.fill(str(name), NAME_ROOM) for name in words.index]
    heights = _heights(names, words)
    headings = [_heading(hook) for hook in hooks]
    longest = max(len(line) for text in headings for line in text.splitlines())
    above = 1.15 * CHARACTER_INCHES * longest + 0.38
    total = sum(heights) + above
    figure = new_picture((WIDTH, total + 0.55), title)
    axis = figure.subplots()
    axis.set(xlim=(0, WIDTH - 0.15), ylim=(total, 0))
    axis.axis("off")
    upright = {"ha": "center", "va": "bottom", "fontsize": SMALL, "rotation": 90}
    for place, text in enumerate(headings):
        centre = NAME_INCHES + (place + 0.5) * cell
        axis.text(centre, above - 0.06, text, weight="bold", **upright)
    _name_phases(axis, phases, cell)
    y = above
    for name, height, row in zip(names, heights, words.values, strict=True):
        _row(axis, name, row, (y, height, cell))
        y += height
    return figure


def _heights(names: list[str], words: pd.DataFrame) -> list[float]:
    """Inches that each row needs for its longest text."""
    lines = [
        max(text.count("\n") + 1 for text in (name, *row))
        for name, row in zip(names, words.values, strict=True)
    ]
    return [LINE_INCHES * max(1.4, count) + 0.13 for count in lines]


def _heading(hook: str) -> str:
    """The name of a hook, broken after an underscore if it is long."""
    return textwrap.fill(hook.replace("_", "_ "), 13).replace("_ ", "_")


def _name_phases(axis: Axes, phases: Sequence[str], cell: float) -> None:
    """Name the phases of a round above the hooks that belong to them."""
    look = {"ha": "center", "va": "top", "fontsize": SMALL}
    for phase in dict.fromkeys(phases):
        first = phases.index(phase)
        last = first + phases.count(phase)
        left, right = NAME_INCHES + first * cell, NAME_INCHES + last * cell
        axis.text((left + right) / 2, 0.02, phase, **look)
        line = {"color": COLOURS["quiet"], "linewidth": 0.8}
        axis.plot([left + 0.06, right - 0.06], [0.21, 0.21], **line)


def _row(
    axis: Axes, method: str, row: list[str], place: tuple[float, float, float]
) -> None:
    y, height, cell = place
    right = NAME_INCHES + len(row) * cell
    axis.plot([0, right], [y, y], color=COLOURS["pale"], linewidth=0.8, zorder=0)
    axis.text(0.02, y + height / 2, method, va="center", fontsize=SMALL)
    for column, text in enumerate(row):
        left = NAME_INCHES + column * cell
        if not text:
            axis.plot(left + cell / 2, y + height / 2, ".", color="#C3C9CE", ms=3)
            continue
        corner = "round,pad=0,rounding_size=0.05"
        size = (cell - 0.06, height - 0.06)
        field = FancyBboxPatch((left + 0.03, y + 0.03), *size, corner, linewidth=0)
        field.set_facecolor(COLOURS["ours"])
        axis.add_patch(field)
        look = {"ha": "center", "va": "center", "fontsize": SMALL, "color": "white"}
        axis.text(left + cell / 2, y + height / 2, text, linespacing=1.05, **look)
