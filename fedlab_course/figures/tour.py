"""Figures of the first chapters: writers, one round, luck, and who was ever drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ..plots.drawing import drawing
from ..plots.federation import contact_sheet
from ..plots.style import COLOURS, DOUBLE, SMALL, Picture, new_picture

if TYPE_CHECKING:
    from fedlab_support.data.domain_data import DomainData


def writers_sheet(
    data: DomainData, writers: Sequence[int], columns: int, title: str = ""
) -> Picture:
    """Draw one writer per row and one class per column: their first image of it.

    writers: owners in the data.
    columns: most classes to show; the first ones of which every writer has an image.
    Raises ValueError if the writers have no class in common.
    """
    owned = [np.flatnonzero(data.owner == writer) for writer in writers]
    common = set.intersection(*(set(data.labels[rows].tolist()) for rows in owned))
    if not common:
        raise ValueError("expected writers with a class in common, found none")
    classes = sorted(common)[:columns]
    at = [rows[data.labels[rows] == label][0] for rows in owned for label in classes]
    names = [data.class_names[label] for label in classes]
    return contact_sheet(data.images[at], len(classes), names, title=title)


@drawing
def one_round(images: np.ndarray, writers: list[int], title: str = "") -> Picture:
    """Draw a round: all clients but the last receive weights and send new ones.

    images:  uint8 (4, n, H, W), a few of each client.
    writers: the clients' numbers.
    """
    height = 2.75
    figure = Picture(figsize=(DOUBLE[0], height))
    axis = figure.add_axes((0, 0, 1, 1), xlim=(0, DOUBLE[0]), ylim=(0, height))
    axis.axis("off")
    axis.axhspan(1.92, 2.3, 0.025, 0.975, color=COLOURS["dark"])
    centred = {"ha": "center", "va": "center"}
    text = "server:   ① draws clients   ·   ⑤ averages what they send back"
    axis.text(DOUBLE[0] / 2, 2.11, text, color="white", **centred)
    places = 0.9 + 1.7 * np.arange(len(writers))
    for x, writer, row in zip(places, writers, images, strict=True):
        is_drawn = writer != writers[-1]
        name = f"client {writer}: ③ trains" if is_drawn else "not drawn this round"
        axis.text(x, 0.13, name, ha="center", fontsize=SMALL)
        extent, shade = (x - 0.73, x + 0.73, 0.34, 0.63), 1.0 if is_drawn else 0.35
        look = {"extent": extent, "aspect": "auto", "alpha": shade}
        axis.imshow(np.hstack(row), "gray", **look)
        if is_drawn:
            _arrow(axis, x - 0.3, (1.88, 0.7), "② weights")
            _arrow(axis, x + 0.3, (0.7, 1.88), "④ new weights")
    figure.suptitle(title, x=0.025, ha="left")
    return figure


def _arrow(axis, x: float, ends: tuple[float, float], text: str) -> None:
    """An arrow from the first height to the second, with its name beside it."""
    look = {"arrowstyle": "-|>", "lw": 2.5, "color": COLOURS["ours"]}
    axis.annotate("", (x, ends[1]), (x, ends[0]), arrowprops=look)
    axis.text(x - 0.07, 1.3, text, rotation=90, ha="right", va="center")


@drawing
def accuracy_and_luck(table: pd.DataFrame, title: str = "") -> Picture:
    """Draw clients as bars in the order of the table, and a line of what luck gives.

    table: columns mean and luck, shares, from the lowest to the highest.
    """
    note = "Line: what luck alone would show if all clients were served equally well."
    figure = new_picture(DOUBLE, title, note)
    axis = figure.subplots()
    axis.bar(range(len(table)), 100 * table["mean"], color=COLOURS["ours"])
    axis.plot(range(len(table)), 100 * table["luck"], color="black")
    axis.set(xlabel="Writers, sorted", ylabel="Accuracy (%)", ylim=(0, 100))
    return figure


@drawing
def clients_seen(
    table: pd.DataFrame, times: np.ndarray, rounds: int, title: str = ""
) -> Picture:
    """Draw clients as dots, and the share that was drawn at least once over rounds.

    table:  columns round, seen and expected, shares.
    times:  how often each client was drawn in the first ``rounds`` rounds, (K,).
    """
    figure = new_picture(DOUBLE, title)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.7))
    shades = np.where(times[:, None] > 0, [[0, 0.45, 0.7, 1]], 0.0)
    shades[:, 3] = np.minimum(1, times / 6 + 0.15) * (times > 0)
    down, across = np.divmod(np.arange(len(times)), 10)
    left.scatter(across, down, s=75, c=shades, edgecolors="#6B6B6B", linewidths=0.6)
    left.axis("off")
    right.plot(table["round"], 100 * table["expected"], "k--", lw=1)
    blue, now = COLOURS["ours"], table.iloc[rounds - 1]
    right.step(table["round"], 100 * table["seen"], color=blue, where="mid")
    right.plot(now["round"], 100 * now["seen"], "o", color=blue)
    right.set(xlabel="Round", ylabel="Clients seen (%)", ylim=(0, 104))
    text, end = "solid: this draw\ndashed: expected", table["round"].max()
    right.text(end, 5, text, ha="right", fontsize=SMALL)
    return figure
