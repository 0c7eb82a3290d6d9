"""Triplets of a contrastive loss: their distances, and the images behind a few."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..plots.drawing import drawing
from ..plots.federation import in_colour
from ..plots.panels import parts_of
from ..plots.style import COLOURS, DOUBLE, SMALL, Picture, new_picture

USUAL = 1.5  # range of both axes; distances of unit vectors are at most 2
LETTERS = {"A": (5, 3), "B": (5, -9), "C": (-11, 3)}
"""Of the chosen triplets: a letter, and where it stands beside its dot, in points."""
HEADS = ("image", "its copy", "negative")


@drawing
def triplet_microscope(
    table: pd.DataFrame,
    images: np.ndarray,
    chosen: Sequence[int],
    margin: float,
    title: str = "",
) -> Picture:
    """Draw the distances of triplets as points, and the images of the chosen ones.

    table:   columns network, triplet, near, far (distances of unit vectors); one panel
             per network.
    images:  (n, 3, C, H, W) uint8: an image, its copy, and the copy of the negative,
             for each of the chosen triplets, at most three.
    margin:  triplets below far = near + margin are active.
    """
    shown = parts_of(table, "network")
    figure = new_picture(DOUBLE, title)
    figure.set_layout_engine("compressed")  # the panels are square
    widths = [1] * len(shown) + [1.4]
    *axes, sheet = figure.subplots(1, len(widths), width_ratios=widths)
    most = max(USUAL, 1.05 * table[["near", "far"]].to_numpy().max())
    for axis, (network, part) in zip(axes, shown.items(), strict=True):
        _distances(axis, part, chosen, np.array([0.0, most]), margin)
        is_active = part["far"] < part["near"] + margin
        axis.set_title(f"{network}\n{100 * is_active.mean():.0f} % active")
        axis.set(xlabel="Near: to its copy")
    axes[0].set_ylabel("Far: to the negative")
    _rows(sheet, images)
    return figure


def _distances(
    axis: Axes,
    table: pd.DataFrame,
    chosen: Sequence[int],
    ends: np.ndarray,
    margin: float,
) -> None:
    """A dot per triplet, a letter at the chosen ones, the active side in grey."""
    axis.fill_between(ends, ends + margin, color=COLOURS["pale"], linewidth=0)
    axis.plot(ends, ends + margin, color=COLOURS["quiet"], linewidth=1)
    dots = {"s": 10, "color": COLOURS["ours"], "alpha": 0.6, "linewidths": 0}
    axis.scatter(table["near"], table["far"], **dots)
    for place, (letter, beside) in zip(chosen, LETTERS.items(), strict=False):
        at = table.loc[table["triplet"] == place, ["near", "far"]].to_numpy()[0]
        ring = {"s": 36, "facecolors": "none", "edgecolors": COLOURS["other 1"]}
        axis.scatter(*at, **ring)
        name = {"xytext": beside, "textcoords": "offset points", "fontsize": SMALL}
        axis.annotate(letter, at, color=COLOURS["other 1"], weight="bold", **name)
    axis.set(xlim=ends, ylim=ends, aspect="equal", xticks=[0, 1], yticks=[0, 1])


def _rows(axis: Axes, images: np.ndarray) -> None:
    """A row per triplet, headed by what its three images are."""
    num, across, channels, height, width = images.shape
    sheet = images.transpose(2, 0, 3, 1, 4).reshape(channels, num * height, -1)
    axis.imshow(in_colour(sheet), aspect="equal")
    axis.xaxis.tick_top()
    axis.set_xticks(width * (np.arange(across) + 0.5), HEADS)
    axis.set_yticks(height * (np.arange(num) + 0.5), list(LETTERS)[:num])
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
