"""Where three methods act: on images, on features, or on tokens."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ..plots.drawing import drawing
from ..plots.federation import in_colour
from ..plots.style import COLOURS, SMALL, Picture, looks_for, new_picture


@drawing
def where_methods_act(
    statistics: pd.DataFrame,
    images: np.ndarray,
    styled: np.ndarray,
    prompts: np.ndarray,
    title: str = "",
) -> Picture:
    """Draw one batch as FISC, FedFA and FedGCR change it, side by side.

    statistics:  columns mean, deviation, moved_mean, moved_deviation (of one channel of
                 features, before and after noise) and client, one row per image.
    images, styled: (N, C, H, W) uint8, the images and their copies in another style.
    prompts:     (N, D), the shift of the prompts that each image causes.
    Raises ValueError for other columns.
    """
    figure = new_picture((6.9, 3.6), title)
    left, middle, right = figure.subplots(1, 3, width_ratios=(0.8, 1.15, 1.15))
    _pairs(left, images, styled)
    _arrows(middle, statistics)
    _shifts(right, prompts)
    below = {"loc": "outside lower center", "ncols": 5, "handletextpad": 0.1}
    figure.legend(*middle.get_legend_handles_labels(), **below, fontsize=SMALL)
    return figure


def _pairs(axis: Axes, images: np.ndarray, styled: np.ndarray) -> None:
    """Each image beside its copy, one row per image."""
    rows = [np.concatenate(pair, 2) for pair in zip(images, styled, strict=True)]
    axis.imshow(in_colour(np.concatenate(rows, 1)), interpolation="nearest")
    axis.axis("off")
    axis.set_title("FISC: the images\n(left: own, right: copy)")


def _arrows(axis: Axes, table: pd.DataFrame) -> None:
    """The statistics of every image before and after noise."""
    for name, look in looks_for(table["client"].unique(), are_points=True).items():
        mine = table[table["client"] == name]
        for row in mine.itertuples():
            ends = [row.mean, row.moved_mean], [row.deviation, row.moved_deviation]
            axis.plot(*ends, color=COLOURS["faint"], linewidth=0.8, zorder=1)
        dots = {"s": 16, "zorder": 2, "linewidths": 0} | look
        axis.scatter(mine["mean"], mine["deviation"], label=name, **dots)
    axis.set(xlabel="Mean of a channel", ylabel="Deviation")
    axis.set_title("FedFA: feature statistics\n(grey: to the noisy ones)")


def _shifts(axis: Axes, prompts: np.ndarray) -> None:
    """The shift of the prompts as a row of colours per image."""
    most = float(np.abs(prompts).max()) or 1.0
    look = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "aspect": "auto"}
    axis.imshow(prompts, interpolation="nearest", **look)
    axis.set(xlabel="Dimension of the tokens", ylabel="Image")
    axis.set_yticks(range(len(prompts)), [str(n + 1) for n in range(len(prompts))])
    axis.grid(visible=False)
    axis.set_title("FedGCR: tokens\n(shift of the prompts)")
