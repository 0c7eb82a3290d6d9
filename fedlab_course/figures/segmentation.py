"""Slices with true and predicted outlines, and how well the two agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..plots.curves import draw_points, label_ends, seeds_note
from ..plots.drawing import drawing
from ..plots.federation import contact_sheet
from ..plots.panels import panelled, parts_of
from ..plots.style import (
    COLOURS,
    DOUBLE,
    SMALL,
    Picture,
    Size,
    expect_rows,
    in_units,
    inches,
    label_of,
    looks_for,
    new_picture,
)

TRUE = {"colors": COLOURS["other 1"], "linewidths": 1.1}
FOUND = {"colors": "#8FD3FF", "linewidths": 1.1, "linestyles": "--"}
"""The house's blue is too dark on a dark image; a predicted outline is also dashed."""

BINS = np.linspace(0, 255, 33)


@drawing
def outline_sheet(
    images: np.ndarray,
    true: np.ndarray,
    found: np.ndarray | None = None,
    *,
    columns: int,
    titles: Sequence[str] | None = None,
    row_labels: Sequence[str] | None = None,
    title: str = "",
) -> Picture:
    """Lay slices out in rows, the true outline solid, the predicted one dashed.

    images:      uint8 (N, C, H, W); the middle one of three channels is shown.
    true, found: masks, 1 is organ, (N, H, W); an empty mask has no outline.
    columns, titles, row_labels, title: as for ``contact_sheet``.
    The Dice of what was found stands in the lower left corner of each image.
    """
    masks = [true] if found is None else [true, found]
    middle = images.shape[1] // 2
    shown = images[:, middle : middle + 1]
    figure = contact_sheet(shown, columns, titles, row_labels, title=title)
    axis = figure.axes[0]
    for number, image in enumerate(list(axis.get_images())):
        for mask, look in zip(masks, (TRUE, FOUND), strict=False):
            _outline(axis, mask[number], image.get_extent(), look)
        if found is not None:
            dice = 100 * _dice(found[number] == 1, true[number] == 1)
            _note(axis, f"{dice:.0f} %", image.get_extent())
    return figure


def _outline(axis: Axes, mask: np.ndarray, extent, look: dict) -> None:
    """The edge of a mask that lies in (left, right, bottom, top)."""
    mask = np.pad(np.asarray(mask, float), 1)  # so that outlines close at the border
    if mask.any():
        left, right, bottom, top = extent
        height, width = mask.shape
        x = left + (np.arange(width) - 0.5) / (width - 2) * (right - left)
        y = top + (np.arange(height) - 0.5) / (height - 2) * (bottom - top)
        axis.contour(x, y, mask, levels=[0.5], **look)


def _note(axis: Axes, text: str, extent) -> None:
    left, _, bottom, _ = extent
    box = {"boxstyle": "square,pad=0.15", "facecolor": "black", "alpha": 0.65}
    look = {"fontsize": SMALL, "color": "white", "bbox": box | {"linewidth": 0}}
    axis.text(left + 0.04, bottom - 0.05, text, va="bottom", **look)


def brightness_by_site(
    images: np.ndarray,
    masks: np.ndarray,
    domain: np.ndarray,
    names: Sequence[str],
    title: str = "",
) -> Picture:
    """Draw how bright organ and background are, one small panel per site.

    images: uint8 (N, C, H, W), the middle channel counts; masks: (N, H, W); domain: int
    (N,), positions in names. The data hold one row per site, part and bin; shares sum
    to 1 for each part of a site.
    """
    middle = images[:, images.shape[1] // 2]
    rows = []
    for number, name in enumerate(names):
        mine = domain == number
        for part, is_part in (("organ", masks == 1), ("background", masks != 1)):
            counts, _ = np.histogram(middle[mine][is_part[mine]], BINS)
            share = counts / max(1, counts.sum())
            rows += [(name, part, *row) for row in zip(BINS[:-1], share, strict=True)]
    table = pd.DataFrame(rows, columns=["site", "part", "brightness", "share"])
    return draw_brightness(table, title)


@drawing
def draw_brightness(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw the histograms that `brightness_by_site` has counted."""
    sites = parts_of(table, "site")
    look = {"head": 0.9, "row": 1.15, "sharex": True, "sharey": True}
    figure, axes = panelled(len(sites), None, title, **look)
    for axis, (name, part) in zip(axes, sites.items(), strict=True):
        _brightness(axis, part)
        axis.set_title(name)
    axes[0].legend(loc="upper right")
    axes[0].set_ylim(0, min(0.45, 1.2 * table["share"].max()))
    figure.supxlabel("Brightness (0 to 255)", fontsize=SMALL)
    figure.supylabel("Share of pixels", fontsize=SMALL)
    return figure


def _brightness(axis: Axes, table: pd.DataFrame) -> None:
    fill = table[table["part"] == "background"]["share"]
    line = table[table["part"] == "organ"]["share"]
    axis.stairs(fill, BINS, fill=True, color=COLOURS["faint"], label="background")
    look = {"color": COLOURS["ours"], "linewidth": 1.6, "label": "organ"}
    axis.stairs(line, BINS, **look)
    axis.xaxis.set_major_locator(MaxNLocator(4))


@drawing
def threshold_picture(
    image: np.ndarray,
    true: np.ndarray,
    probability: np.ndarray,
    threshold: float,
    title: str = "",
) -> Picture:
    """Show where a network sees the organ, and Dice over the threshold.

    image: uint8 (H, W); true: mask (H, W); probability: of the organ, (H, W).
    Returns the slice with both outlines, the probabilities, and the curve; its data
    hold one row per threshold.
    """
    levels = np.linspace(0, 1, 41)
    curve = [_dice(probability > level, true == 1) for level in levels]
    table = pd.DataFrame({"threshold": levels, "dice": curve})
    found = probability > threshold
    value = 100 * _dice(found, true == 1)
    figure = new_picture((DOUBLE[0], 2.4), title)
    figure.data = table
    slices, maps, lines = figure.subplots(1, 3, width_ratios=(1, 1, 1.35))
    height, width = image.shape
    extent = (0, width, height, 0)
    slices.imshow(image, cmap="gray", vmin=0, vmax=255, extent=extent)
    for mask, look in ((true, TRUE), (found, FOUND)):
        _outline(slices, mask, extent, look)
    centred = {"loc": "center", "fontsize": SMALL}
    slices.set_title("solid: true, dashed: found", **centred)
    shown = maps.imshow(probability, cmap="cividis", vmin=0, vmax=1)
    bar = figure.colorbar(shown, ax=maps, shrink=0.75, pad=0.03)
    bar.outline.set_visible(False)
    maps.set_title("probability of organ", **centred)
    for axis in (slices, maps):
        axis.axis("off")
    lines.plot(levels, 100 * table["dice"], color=COLOURS["ours"])
    lines.plot([threshold], [value], "o", color=COLOURS["ours"])
    lines.set_title(f"Dice {value:.1f} % at {threshold:g}", **centred)
    lines.set(xlabel="Threshold", ylabel=label_of("dice"), ylim=(0, 103))
    lines.grid(axis="y")
    return figure


def _dice(found: np.ndarray, true: np.ndarray) -> float:
    total = found.sum() + true.sum()
    return 2 * (found & true).sum() / total if total else 1.0


@drawing
def score_by_amount(
    table: pd.DataFrame,
    x: str = "slices",
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw mean ± s.d. over an amount of data, one line per name.

    table: from `history.final` or `summarise`: columns `x` (a number), name, mean, sd,
           num_seeds; mean and sd are shares of Dice.
    size:  "single", "double", "slide" or inches.
    Raises ValueError for repeated rows, or more than five names.
    """
    expect_rows(table, [x, "name"])
    data = in_units(table.sort_values(x, ignore_index=True), "dice")
    note = seeds_note(data, "Points: mean, bars: ± s.d.")
    figure = new_picture(inches(size), title, note)
    axis = figure.subplots()
    for name, look in looks_for(table["name"].unique()).items():
        line = data[data["name"] == name]
        draw_points(axis, line[x], line, look, name)
    axis.set_xticks(sorted(data[x].unique()))
    axis.set(xlabel=label_of(x), ylabel=label_of("dice"))
    axis.grid(axis="y")
    label_ends(figure, axis)
    return figure
