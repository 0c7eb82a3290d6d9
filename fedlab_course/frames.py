"""Frames of explorers, rendered in advance for pages without a kernel.

A frame is the explorer's figure for one combination of values. A page shows one frame
and native controls; a few lines of JavaScript (docs/_static/frames.js) exchange it.
"""

from __future__ import annotations

import html
import io
import json
import math
from itertools import product
from pathlib import Path

import ipywidgets as W
import numpy as np
from PIL import Image

from .controls import Player
from .page_widgets import native_select, native_slider
from .plots.style import SCREEN_DPI, png
from .widgets import Explorer

MOST = 48
"""Frames of one explorer, or a few more; sliders take coarser steps to stay below."""
MOTION = 3
"""So many times more if a control is played: motion needs its steps."""
QUALITY, DPI = 60, 1.5 * SCREEN_DPI
"""Of the images: a chart takes about 20 kB."""
CONTROLS = "controls.json"

Choices = list[tuple[str, object]]
"""The label and the value of every position of a control."""


# ---- in the chapter's kernel --------------------------------------------------------
def draw_all(folder: str, most: int = MOST, least: int = 3) -> None:
    """Draw the frames of every explorer of the notebook, each into ``<model id>``.

    most, least: of the frames of an explorer, and of the positions of a control.
    """
    for widget in list(W.Widget.widgets.values()):
        if isinstance(widget, Explorer):
            draw(widget, Path(folder) / widget.model_id, most, least)


def draw(explorer: Explorer, folder: Path, most: int = MOST, least: int = 3) -> None:
    """Draw an explorer's figure for every combination of the positions on offer.

    folder: receives one WebP image per combination, named by positions such as
            ``0_3.webp``, and ``controls.json``, which the page's controls are made of.
    """
    folder.mkdir(parents=True, exist_ok=True)
    offered = {name: choices(control) for name, control in explorer.controls.items()}
    offered = thinned(offered, explorer, most, least)
    for positions in product(*(range(len(each)) for each in offered.values())):
        values = {
            name: each[k][1]
            for (name, each), k in zip(offered.items(), positions, strict=True)
        }
        figure = explorer.view(**values)
        with Image.open(io.BytesIO(png(figure, DPI))) as image:
            file = folder / f"{'_'.join(map(str, positions))}.webp"
            image.convert("RGB").save(file, quality=QUALITY)
    controls = [_about(explorer.controls[name], offered[name]) for name in offered]
    width = round(figure.get_size_inches()[0] * SCREEN_DPI)
    about = {"width": width, "controls": controls}
    (folder / CONTROLS).write_text(json.dumps(about), encoding="utf-8")


def _about(control: W.Widget, offered: Choices) -> dict:
    """What a page has to know of a control; 0 milliseconds a step: it is not played."""
    is_played = isinstance(control, Player)
    return {
        "label": control.description,
        "is_slider": hasattr(control, "max"),
        "milliseconds": control.moved_by[1].interval if is_played else 0,
        "choices": [label for label, _ in offered],
        "start": [value for _, value in offered].index(control.value),
    }


def choices(control: W.Widget) -> Choices:
    """All positions of a control, in their order; its value may lie between steps."""
    if hasattr(control, "max"):
        count = int((control.max - control.min) / control.step + 1e-6)
        values = [control.min + k * control.step for k in range(count + 1)]
        if isinstance(control, W.FloatSlider):
            values = [round(value, 10) for value in values]
        values = sorted({*values, control.value})
        return [(f"{value:g}", value) for value in values]
    if hasattr(control, "options"):
        pairs = [o if isinstance(o, tuple) else (str(o), o) for o in control.options]
        return [(str(label), value) for label, value in pairs]
    if not isinstance(control.value, bool):  # a text: as it is
        return [(str(control.value), control.value)]
    return [("off", False), ("on", True)]


def thinned(
    offered: dict[str, Choices], explorer: Explorer, most: int, least: int = 3
) -> dict[str, Choices]:
    """The same with fewer positions of sliders, until ``most`` combinations are left.

    A player allows MOTION times ``most``, and becomes coarser after all other sliders.
    Lists are shortened only if they alone have more. ``least`` positions of a control
    always stay, so there may be more combinations than ``most``: the ends and the
    explorer's own value, or, of two, that value and the end that is farther away.
    """
    controls, found = explorer.controls, dict(offered)
    players = [name for name in offered if isinstance(controls[name], Player)]
    sliders = [name for name in offered if hasattr(controls[name], "max")]
    lists = [name for name in offered if name not in sliders]
    sliders = [name for name in sliders if name not in players]
    most *= MOTION if players else 1
    every = list(offered)
    for names, counted in ((lists, lists), (sliders, every), (players, every)):
        while math.prod(len(found[name]) for name in counted) > most:
            longest = max(names, key=lambda name: len(found[name]), default=None)
            if longest is None or len(found[longest]) <= least:
                break
            num, own = len(found[longest]) - 1, controls[longest].value
            found[longest] = _spread(offered[longest], num, own)
    return found


def _spread(choices: Choices, num: int, own: object) -> Choices:
    """``num`` ≥ 2 of the choices: the ends, ``own``, and others evenly between them."""
    kept = np.linspace(0, len(choices) - 1, num).round().astype(int)
    mine = [value for _, value in choices].index(own)
    if mine not in kept:
        inner = slice(1, -1) if num > 2 else slice(None)
        kept[inner][np.abs(kept[inner] - mine).argmin()] = mine
    return [choices[k] for k in kept]


# ---- in the page --------------------------------------------------------------------
def as_html(folder: Path, address: str) -> str:
    """HTML for an explorer, which shows the frames in ``folder``.

    address: of the folder, relative to the page.
    """
    about = json.loads((folder / CONTROLS).read_text(encoding="utf-8"))
    controls = "".join(map(_control, about["controls"]))
    start = "_".join(str(control["start"]) for control in about["controls"])
    shown = ", ".join(
        f"{c['label']} {c['choices'][c['start']]}" for c in about["controls"]
    )
    return (
        f'<div class="fl-frames" data-address="{html.escape(address)}">'
        f'<div class="fl-controls">{controls}</div>'
        f'<img width="{about["width"]}" src="{html.escape(address)}/{start}.webp" '
        f'alt="The figure for {html.escape(shown)}" aria-live="polite"></div>'
    )


def _control(about: dict) -> str:
    """One native control, behind a button if it is played."""
    kind = native_slider if about["is_slider"] else native_select
    control = kind(about["label"], about["choices"], about["start"])
    if not about["milliseconds"]:
        return control
    return (
        '<span class="fl-played"><button type="button" '
        f'aria-label="Play {html.escape(about["label"])}" '
        f'data-milliseconds="{about["milliseconds"]}">Play</button> {control}</span>'
    )
