"""FedSR's network, and its bound on the information in a feature about its image."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from ..plots.drawing import drawing
from ..plots.style import COLOURS, DOUBLE, SINGLE, SMALL, Picture, new_picture

BOX = (1.0, 0.62)  # width and height, in the unit of the axes


@drawing
def fedsr_network(
    pixels: str, features: int, depth: int, classes: int, title: str = ""
) -> Picture:
    """Draw FedSR's network: what is shared, what stays on the client, and the losses.

    pixels:   shape of an image in words, such as "1 × 28 × 28".
    features: F, which the encoder hands on. depth: D of z. classes: M.
    """
    figure = new_picture((DOUBLE[0], 2.75), title)
    axis = figure.subplots()
    axis.set(xlim=(-0.6, 9.1), ylim=(-2.75, 0.75))
    axis.axis("off")
    shared, own = COLOURS["ours"], COLOURS["other 1"]
    quiet, loss = COLOURS["quiet"], COLOURS["other 2"]
    _box(axis, 0, 0, f"image x\n{pixels}", quiet)
    _box(axis, 1.7, 0, f"encoder\n{features} numbers", shared, filled=True)
    _box(axis, 3.4, 0, f"linear layer\n2 × {depth}", shared, filled=True)
    _box(axis, 5.1, 0, f"z = μ + σ ε\n{depth} numbers", quiet)
    _box(axis, 6.8, 0, f"classifier\n{classes} logits", shared, filled=True)
    _box(axis, 8.5, 0, "cross-\nentropy", loss)
    references = f"m, τ of class y\n{classes} × {depth} each, c"
    _box(axis, 4.3, -2.2, references, own, dashed=True, wide=1.75)
    _box(axis, 6.5, -2.2, "CMI", loss)
    _box(axis, 7.4, -1.1, "L2R: ‖z‖", loss)
    for left in (0, 1.7, 5.1, 6.8):
        _arrow(axis, (left + BOX[0] / 2, 0), (left + 1.7 - BOX[0] / 2, 0))
    _arrow(axis, (3.9, 0), (4.6, 0), "μ, σ")
    _arrow(axis, (5.4, -0.31), (6.88, -1.05))
    _arrow(axis, (4.2, -0.05), (6.1, -1.85))
    _arrow(axis, (5.2, -2.2), (5.98, -2.2))
    _note(axis, -1.55, "filled: trained, sent and averaged", shared)
    _note(axis, -1.95, "dashed: trained, never leaves the client", own)
    _note(axis, -2.35, "green: the three parts of the loss", loss)
    return figure


def _box(
    axis: Axes,
    x: float,
    y: float,
    text: str,
    colour: str,
    filled: bool = False,
    dashed: bool = False,
    wide: float = BOX[0],
) -> None:
    corner = (x - wide / 2, y - BOX[1] / 2)
    look = {"edgecolor": colour, "linewidth": 1.4, "linestyle": "--" if dashed else "-"}
    look["facecolor"] = colour if filled else "white"
    shape = "round,pad=0.05,rounding_size=0.1"
    axis.add_patch(FancyBboxPatch(corner, wide, BOX[1], shape, **look))
    words = {"ha": "center", "va": "center", "fontsize": SMALL, "linespacing": 1.15}
    axis.text(x, y, text, color="white" if filled else "black", **words)


def _arrow(axis: Axes, start: tuple, end: tuple, text: str = "") -> None:
    look = {"arrowstyle": "->", "color": COLOURS["quiet"], "shrinkA": 3, "shrinkB": 3}
    axis.annotate("", end, start, arrowprops=look)
    if text:
        middle = (start[0] + end[0]) / 2
        axis.text(middle, 0.12, text, ha="center", va="bottom", fontsize=SMALL)


def _note(axis: Axes, y: float, text: str, colour: str) -> None:
    axis.text(-0.5, y, text, color=colour, fontsize=SMALL, va="center")


@drawing
def bound_picture(table: pd.DataFrame, information: float, title: str = "") -> Picture:
    """Draw FedSR's bound over the width of the reference, above the information.

    table:       columns tau and bound, in nats.
    information: I(x; z | y), the smallest value that a bound can have.
    """
    best = table[["tau", "bound"]].iloc[table["bound"].argmin()]
    figure = new_picture((1.35 * SINGLE[0], 1.1 * SINGLE[1]), title)
    axis = figure.subplots()
    axis.plot(table["tau"], table["bound"], color=COLOURS["ours"])
    axis.axhline(information, color=COLOURS["baseline"], linestyle="--")
    axis.plot(best["tau"], best["bound"], "o", color=COLOURS["ours"])
    right = table["tau"].max()
    words = {"ha": "right", "fontsize": SMALL}
    axis.text(right, information - 0.02, "I(x; z | y)", va="top", **words)
    text = f"tightest at τ = {best['tau']:.1f}"
    axis.annotate(text, best, (-8, 16), textcoords="offset points", fontsize=SMALL)
    axis.set(xlabel="τ of the reference r(z | y)", ylabel="Nats")
    axis.set_ylim(0, 1.25 * np.median(table["bound"]) + 0.3)
    axis.grid(axis="y")
    return figure
