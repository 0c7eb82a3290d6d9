"""The map of the course: which method changes which hook of the round."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from ..plots.drawing import drawing
from ..plots.style import COLOURS, SLIDE, SMALL, Picture, new_picture

NAME_INCHES = 1.45  # room for a method's name
LINE_INCHES = 0.135  # one line of small text
CHARACTER_INCHES = 0.066
NAME_ROOM = int(NAME_INCHES / CHARACTER_INCHES)


def method_map(
    table: pd.DataFrame, title: str = "", width: float = SLIDE[0]
) -> Picture:
    """Draw methods × hooks; a filled field marks a hook that the method overrides.

    table: index = methods, columns = hooks in the order of a round. A cell is False or
           "" (as in FedAvg), True, or a few words on what changes. With two levels of
           columns, the upper one names the phase of the round.
    width: inches; the height follows from the words.
    """
    phases = None
    if table.columns.nlevels > 1:
        phases = [str(phase) for phase in table.columns.get_level_values(0)]
    words = table.map(_words)
    return draw_map(_flat(words), phases, title, width)


@drawing
def draw_map(
    table: pd.DataFrame,
    phases: Sequence[str] | None = None,
    title: str = "",
    width: float = SLIDE[0],
) -> Picture:
    """Draw methods × hooks from texts; an empty one is a hook as in FedAvg.

    table:  a column method, then one per hook, its phase first in its name.
    phases: of each hook, in order; None if there are none.
    """
    words = table.set_index("method").fillna("")
    skip = [len(phase) + 1 for phase in phases or ()] or [0] * words.shape[1]
    hooks = [name[start:] for name, start in zip(words.columns, skip, strict=True)]
    cell = (width - NAME_INCHES - 0.15) / len(hooks)
    room = max(4, int((cell - 0.1) / CHARACTER_INCHES))
    words = words.map(lambda entry: _wrap(entry, room))
    names = [_wrap(str(name), NAME_ROOM) for name in words.index]
    heights = _heights(names, words)
    headings, above, angle = _headings(hooks, room)
    above += 0.26 * bool(phases)
    total = sum(heights) + above
    figure = new_picture((width, total + 0.55), title)
    axis = figure.subplots()
    axis.set(xlim=(0, width - 0.15), ylim=(total, 0))
    axis.axis("off")
    for place, text in enumerate(headings):
        centre = NAME_INCHES + (place + 0.5) * cell
        look = {
            "ha": "center",
            "va": "bottom",
            "fontsize": SMALL,
            "rotation": angle,
        }
        axis.text(centre, above - 0.06, text, weight="bold", **look)
    _name_phases(axis, phases or [], cell)
    y = above
    for name, height, row in zip(names, heights, words.values, strict=True):
        _row(axis, name, row, (y, height, cell))
        y += height
    return figure


def _words(entry: object) -> str:
    """The text of a cell; a tick for True."""
    if isinstance(entry, str):
        return entry
    return "✓" if bool(entry) and not pd.isna(entry) else ""


def _wrap(entry: str, room: int) -> str:
    """The words of a cell on several lines."""
    long = rf"(\w{{{room - 2}}})(?=\w{{3}})"  # break words that cannot fit
    text = " ".join(
        re.sub(long, r"\1-", word) if len(word) > room else word
        for word in entry.split()
    )
    return textwrap.fill(text, room)


def _heights(names: list[str], words: pd.DataFrame) -> list[float]:
    """Inches that each row needs for its longest text."""
    lines = [
        max(text.count("\n") + 1 for text in (name, *row))
        for name, row in zip(names, words.values, strict=True)
    ]
    return [LINE_INCHES * max(1.4, count) + 0.13 for count in lines]


def _headings(hooks: list[str], room: int) -> tuple[list[str], float, float]:
    """Headings, the height they need in inches, and their angle: upright if narrow."""
    if max(len(word) for hook in hooks for word in hook.split()) <= room:
        texts = [_wrap(hook, room) for hook in hooks]
        lines = max(text.count("\n") + 1 for text in texts)
        return texts, LINE_INCHES * lines + 0.12, 0.0
    apart = [textwrap.fill(hook.replace("_", "_ "), 13) for hook in hooks]
    texts = [text.replace("_ ", "_") for text in apart]  # break after an underscore
    longest = max(len(line) for text in texts for line in text.splitlines())
    return texts, 1.15 * CHARACTER_INCHES * longest + 0.12, 90.0


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    names = [" ".join(n) if isinstance(n, tuple) else n for n in table.columns]
    return table.set_axis(names, axis=1).rename_axis("method").reset_index()


def _name_phases(axis: Axes, phases: Sequence[str], cell: float) -> None:
    """Name the phases of a round above the hooks that belong to them."""
    look = {"ha": "center", "va": "top", "fontsize": SMALL}
    for phase in dict.fromkeys(phases):
        first = list(phases).index(phase)
        last = first + list(phases).count(phase)
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
