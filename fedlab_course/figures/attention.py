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

MOST_IMAGES = 6


@drawing
def attention_picture(
    table: pd.DataFrame, images: np.ndarray, title: str = ""
) -> Picture:
    """Draw images, one per column, and below them the attention on their patches.

    table:  columns image (a name), network, prompts (share of the attention), patch
            (numbered row by row) and attention (share). A row of pictures per network.
    images: (N, C, H, W) uint8, one for each name in order of appearance, at most six.
    All patches share one scale, from 0. Raises ValueError for other columns or numbers.
    """
    names = list(parts_of(table, "image", MOST_IMAGES))
    networks = parts_of(table, "network", 3)
    scale = ScalarMappable(Normalize(0, 100 * table["attention"].max()), "viridis")
    cell = DOUBLE[0] / (len(names) + 1.3)
    figure = new_picture((DOUBLE[0], 0.7 + (cell + 0.1) * (1 + len(networks))), title)
    axes = figure.subplots(1 + len(networks), len(names), squeeze=False)
    for column, (name, image) in enumerate(zip(names, images, strict=True)):
        axes[0, column].imshow(in_colour(image))
        axes[0, column].set_title(name, loc="center")
        for axis, part in zip(axes[1:, column], networks.values(), strict=True):
            _attended(axis, part[part["image"] == name], image.mean(0), scale)
    for axis, label in zip(axes[:, 0], ["image", *networks], strict=True):
        axis.set_ylabel(label)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    label = "Attention on a patch (%)"
    bar = figure.colorbar(scale, ax=axes, label=label, pad=0.02)
    bar.outline.set_visible(False)
    return figure


def _attended(axis: Axes, part: pd.DataFrame, grey: np.ndarray, scale) -> None:
    """One image in grey under the colours of its patches; the share of the prompts."""
    height, width = grey.shape
    rows = round((len(part) * height / width) ** 0.5)  # of square patches
    values = 100 * part.sort_values("patch")["attention"].to_numpy().reshape(rows, -1)
    axis.imshow(grey, cmap="gray", vmin=0, vmax=255)
    where = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "alpha": 0.65}
    axis.imshow(values, cmap=scale.cmap, norm=scale.norm, **where)
    axis.set_xlabel(f"prompts {100 * part['prompts'].iloc[0]:.0f} %")
