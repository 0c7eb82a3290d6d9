"""Clients' data: their classes and example images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm
from matplotlib.ticker import MaxNLocator

from fedlab_support.core.checks import Range, checked

from .drawing import drawing
from .style import COLOURS, DOUBLE, NORMAL, SMALL, Picture, new_picture

LABEL_INCHES = 0.145  # height of a line of small text
CAPTION = {"fontsize": SMALL, "ha": "center", "va": "bottom"}
ROW_LABEL = {"fontsize": NORMAL, "ha": "right", "va": "center"}
BUBBLES_UP_TO = 20  # classes; beyond that, a heat map without gaps reads better


@checked(kind=Range(one_of=("class", "domain")))
def clients_by_classes(
    counts: np.ndarray, class_names: Sequence[str], title: str = "", kind: str = "class"
) -> Picture:
    """Show a partition: one column per client, one row per class.

    counts:  (K, M) integers, examples of each class on each client. Few clients and
             classes are drawn as bubbles whose area is the count, many as a heat map.
    kind:    what the rows are: "class" or "domain".
    The bars above show how many examples each client holds.
    Raises ValueError when the names do not fit the counts.
    """
    is_count = counts.ndim == 2 and np.issubdtype(counts.dtype, np.integer)
    if not is_count or counts.size == 0 or counts.min() < 0:
        raise ValueError(
            "counts must be whole numbers ≥ 0, (clients, classes), found "
            f"{counts.dtype} of shape {counts.shape}"
        )
    if len(class_names) != counts.shape[1]:
        raise ValueError(
            f"class_names must be {counts.shape[1]}, one per column of counts, found "
            f"{len(class_names)}"
        )
    data = pd.DataFrame(counts, columns=[str(name) for name in class_names])
    return draw_classes(data.rename_axis("client").reset_index(), title, kind)


@drawing
def draw_classes(table: pd.DataFrame, title: str = "", kind: str = "class") -> Picture:
    """Draw counts; rows are clients: name in the first column, then one per class."""
    counts, class_names = table.iloc[:, 1:].to_numpy(), list(table.columns[1:])
    num_clients, num_classes = counts.shape
    kinds = {"class": "classes", "domain": "domains"}[kind]
    note = f"{num_clients} clients, {num_classes} {kinds}, {counts.sum():,} examples."
    if not counts.all():
        note += " White: none."
    field = _height_of(num_classes)
    figure = new_picture((DOUBLE[0], field + 1.5), title, note)
    top, main = figure.subplots(2, 1, sharex=True, height_ratios=(0.55, field))
    colours = ScalarMappable(PowerNorm(0.5, 0, max(1, counts.max())), "viridis_r")
    is_small = num_classes <= BUBBLES_UP_TO and num_clients <= 2 * BUBBLES_UP_TO
    (_bubbles if is_small else _heatmap)(main, counts, colours)
    _name_classes(main, class_names, field)
    main.set_ylabel(kind.capitalize())
    _client_sizes(top, counts.sum(axis=1))
    whole = MaxNLocator(8, steps=[1, 2, 5, 10], integer=True)
    look = {"label": "Examples", "ticks": whole, "pad": 0.015, "aspect": 35}
    bar = figure.colorbar(colours, ax=[top, main], **look)
    bar.outline.set_visible(False)
    return figure


def _height_of(num_classes: int) -> float:
    """Inches for the rows of this many classes."""
    return min(4.6, max(1.9, 0.21 * num_classes))


def _bubbles(axis: Axes, counts: np.ndarray, colours: ScalarMappable) -> None:
    """Draw bubbles with area proportional to the count; the largest fits its cell."""
    num_clients, num_classes = counts.shape
    cell = min(5.4 / num_clients, _height_of(num_classes) / num_classes)
    client, label = np.nonzero(counts)
    amounts = counts[client, label]
    areas = (cell * 72 * 0.98) ** 2 * amounts / max(1, counts.max())
    areas = np.maximum(areas, 2.5)  # keep a single example visible
    shades = colours.to_rgba(amounts)
    axis.scatter(client, label, s=areas, c=shades, linewidths=0, clip_on=False)
    axis.set_ylim(-0.7, num_classes - 0.3)
    axis.grid(axis="both")


def _heatmap(axis: Axes, counts: np.ndarray, colours: ScalarMappable) -> None:
    shown = np.ma.masked_equal(counts.T, 0)
    options = {"cmap": colours.cmap, "norm": colours.norm, "interpolation": "nearest"}
    axis.imshow(shown, aspect="auto", origin="lower", **options)
    axis.spines[["top", "right"]].set_visible(True)


def _name_classes(axis: Axes, names: Sequence[str], inches: float) -> None:
    """Label every class if there is room, else every n-th."""
    every = math.ceil(len(names) * LABEL_INCHES / inches)
    places = range(0, len(names), every)
    axis.set_yticks(places, [str(names[i]) for i in places])
    axis.invert_yaxis()
    axis.tick_params(length=0 if every == 1 else 2)
    axis.set_xlabel("Client")


def _client_sizes(axis: Axes, sizes: np.ndarray) -> None:
    """Draw the number of examples of each client as bars."""
    num_clients = len(sizes)
    axis.bar(range(num_clients), sizes, width=0.75, color=COLOURS["quiet"])
    axis.set_xlim(-0.6, num_clients - 0.4)
    axis.set_yticks([0, int(sizes.max())])
    axis.tick_params(axis="x", length=0, labelbottom=False)
    axis.set_ylabel("Total", rotation=0, ha="right", va="center")
    room = 25 if num_clients <= 100 else 15  # labels of two digits, or of three
    steps = (first * 10**k for k in range(9) for first in (1, 2, 5))
    every = next(step for step in steps if num_clients / step < room)
    axis.set_xticks(range(0, num_clients, every))


@drawing
def contact_sheet(
    images: np.ndarray,
    columns: int,
    titles: Sequence[str] | None = None,
    row_labels: Sequence[str] | None = None,
    *,
    title: str = "",
    width: float = DOUBLE[0],
) -> Picture:
    """Lay images out in rows.

    images:      (N, C, H, W) uint8, one or three channels.
    titles:      one per column, above the sheet.
    row_labels:  one per row, left of it.
    width:       inches; the height follows.
    Raises ValueError for other shapes or types, or labels that do not fit.
    """
    images = _checked(images, columns, titles, row_labels)
    rows = math.ceil(len(images) / columns)
    titles, row_labels = list(titles or []), list(row_labels or [])
    left = 0.1 + max((0.08 * len(str(name)) for name in row_labels), default=0.0)
    cell = (width - left - 0.1) / columns
    step = cell * images.shape[2] / images.shape[3]
    head = (0.32 if title else 0.06) + (0.17 if titles else 0.0)
    height = head + rows * step + 0.06
    figure = new_picture((width, height), title)
    axis = _canvas(figure, width, height)
    for place, image in enumerate(images):
        x = left + place % columns * cell
        y = head + place // columns * step
        _show(axis, image, (x, y, cell))
        if place < len(titles):
            text = _shorten(str(titles[place]), cell)
            axis.text(x + cell / 2, y - 0.02, text, **CAPTION)
    for row, name in enumerate(row_labels):
        middle = head + (row + 0.5) * step
        axis.text(left - 0.07, middle, str(name), **ROW_LABEL)
    return figure


def _canvas(figure: Picture, width: float, height: float) -> Axes:
    """Return invisible axes over the whole figure, in inches from the top left."""
    figure.set_layout_engine("none")
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axis.axis("off")
    return axis


def _checked(
    images: np.ndarray,
    columns: int,
    titles: Sequence[str] | None,
    row_labels: Sequence[str] | None,
) -> np.ndarray:
    if not Range(at_least=1).contains(columns, "int"):
        raise ValueError(f"columns must be a whole number ≥ 1, found {columns!r}")
    images = np.asarray(images)
    if (
        not images.size
        or images.ndim != 4
        or images.shape[1] not in (1, 3)
        or images.dtype != np.uint8
    ):
        raise ValueError(
            "images must be uint8 of shape (N, 1 or 3, H, W), found "
            f"{images.dtype} of shape {images.shape}; show raw, not normalised, images"
        )
    rows = math.ceil(len(images) / columns)
    if titles is not None and len(titles) != columns:
        raise ValueError(f"titles must be {columns}, found {len(titles)}")
    if row_labels is not None and len(row_labels) != rows:
        raise ValueError(f"row_labels must be {rows}, found {len(row_labels)}")
    return images


def _show(axis: Axes, image: np.ndarray, place: tuple[float, float, float]) -> None:
    """Draw one image with a thin gap; place: left, top and width in inches."""
    x, y, cell = place
    gap = 0.015
    bottom = y + cell * image.shape[1] / image.shape[2]
    extent = (x + gap, x + cell - gap, bottom - gap, y + gap)
    axis.imshow(in_colour(image), extent=extent, interpolation="nearest", aspect="auto")


def in_colour(image: np.ndarray) -> np.ndarray:
    """An image (1 or 3, H, W) as matplotlib shows it, (H, W, 3)."""
    return np.moveaxis(np.broadcast_to(image, (3, *image.shape[1:])), 0, -1)


def _shorten(text: str, inches: float) -> str:
    room = max(1, int(inches / 0.07))
    return text if len(text) <= room else text[: room - 1] + "…"
