"""What the class token of a prompted transformer attends to, drawn over images."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from ..plots.drawing import drawing
from ..plots.federation import in_colour
from ..plots.panels import parts_of
from ..plots.style import DOUBLE, Picture, new_picture

GAP = 1.12  # from one image to the next, in widths of an image


@drawing
def attention_picture(
    table: pd.DataFrame, images: np.ndarray, title: str = ""
) -> Picture:
    """Draw images, one per column, and below them the attention on their patches.

    table:  columns image (a name), network, prompts (share of the attention), patch
            (numbered row by row) and attention (share). A row of pictures per network.
    images: (N, C, H, W) uint8, one for each name in order of appearance.
    All patches share one scale, from 0. Raises ValueError for other columns or numbers.
    """
    names = list(parts_of(table, "image"))
    networks = parts_of(table, "network")
    scale = ScalarMappable(Normalize(0, 100 * table["attention"].max()), "viridis")
    cell = DOUBLE[0] / (len(names) + 1.3)
    figure = new_picture((DOUBLE[0], 0.7 + (cell + 0.1) * (1 + len(networks))), title)
    top, *below = figure.subplots(1 + len(networks), 1)
    _in_a_row(top, [in_colour(image) for image in images], names, "image")
    top.xaxis.tick_top()
    for axis, (network, part) in zip(below, networks.items(), strict=True):
        shares = [part[part["image"] == name] for name in names]
        written = [f"prompts {100 * s['prompts'].iloc[0]:.0f} %" for s in shares]
        greys = list(images.mean(1))
        places = _in_a_row(axis, greys, written, network, cmap="gray", vmin=0, vmax=255)
        look = {"cmap": scale.cmap, "norm": scale.norm, "alpha": 0.65}
        for share, place in zip(shares, places, strict=True):
            values = _patches(share, *greys[0].shape)
            axis.imshow(values, extent=place, interpolation="nearest", **look)
    label = "Attention on a patch (%)"
    bar = figure.colorbar(scale, ax=[top, *below], label=label, pad=0.02)
    bar.outline.set_visible(False)
    return figure


def _in_a_row(
    axis: Axes, images: list[np.ndarray], names: list[str], label: str, **look
) -> list[tuple[float, float, float, float]]:
    """Draw images of one size side by side, named below; the extent of each.

    One axis for all, since a view of many axes is slow to draw.
    """
    height, width = images[0].shape[:2]
    step = GAP * width
    places = [(i * step, i * step + width, height, 0.0) for i in range(len(images))]
    for image, place in zip(images, places, strict=True):
        axis.imshow(image, extent=place, interpolation="nearest", **look)
    axis.set(xlim=(0, places[-1][1]), ylim=(height, 0), yticks=[], ylabel=label)
    axis.set_xticks([left + width / 2 for left, *_ in places], names)
    axis.tick_params(length=0)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    return places


def _patches(share: pd.DataFrame, height: int, width: int) -> np.ndarray:
    """The attention on the square patches of one image, in per cent, as they lie."""
    rows = round((len(share) * height / width) ** 0.5)
    return 100 * share.sort_values("patch")["attention"].to_numpy().reshape(rows, -1)
