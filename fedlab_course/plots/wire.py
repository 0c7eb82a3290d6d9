"""The traffic of one round, drawn to scale."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Polygon, Rectangle

from fedlab_support.core.checks import Range, checked
from fedlab_support.core.history import WIRE, columns_of

from .drawing import drawing
from .style import COLOURS, DOUBLE, NORMAL, SMALL, Picture, new_picture

PARTS = {  # name on the wire: colour, hatch
    "weights": (COLOURS["ours"], ""),
    "loss_query": (COLOURS["ours"], "////"),
    "shared": (COLOURS["other 2"], ""),
    "setup_reply": (COLOURS["other 2"], "////"),
    "upload": (COLOURS["other 1"], ""),
    "setup_upload": (COLOURS["other 1"], "////"),
    "num_examples": (COLOURS["other 3"], ""),
}
SHOWN = 10  # clients
WIDTH = DOUBLE[0]  # the drawing is in inches
SERVER_Y, CLIENT_Y, LEGEND_Y = 2.45, 0.85, 0.12
THINNEST = 0.018  # inches, so that a strip of eight bytes is visible


@checked(round=Range(at_least=0))
def wire_picture(
    wire: pd.DataFrame, round: int | None = None, title: str = ""
) -> Picture:
    """Draw one round: server above, clients below, ribbons as wide as their bytes.

    wire:   the table of one run, from ``History.wire``.
    round:  the round to draw; by default the last one.
    Returns the figure; its data are the rows drawn. Of more than ten clients only the
    first ten are shown, with a note.
    Raises ValueError for several runs or a round without traffic.
    """
    return draw_wire(_one_round(wire, round), title)


@drawing
def draw_wire(chosen: pd.DataFrame, title: str = "") -> Picture:
    """Draw the rows of one round of one run."""
    clients = sorted(chosen["client"].unique())
    parts = _in_order(chosen["part"])
    note = "Width of a ribbon: bytes. Parts too thin to see are drawn as a thin line."
    if len(clients) > SHOWN:
        note += f" The first {SHOWN} of {len(clients)} clients are shown."
    height = 3.5 if title else 3.2
    figure = new_picture((WIDTH, height), title, note)
    axis = figure.subplots()
    axis.set(xlim=(0, WIDTH - 0.2), ylim=(0, 2.95), aspect="equal")
    axis.axis("off")
    _server(axis, chosen)
    shown = clients[:SHOWN]
    cell = (WIDTH - 0.2) / max(3, len(shown))
    margin = (WIDTH - 0.2 - cell * len(shown)) / 2
    both = chosen.groupby(["client", "direction"])["bytes"].sum()
    inches_per_byte = min(0.3 * cell, 0.5) / both.max()
    for place, client in enumerate(shown):
        rows = chosen[chosen["client"] == client]
        centre = margin + (place + 0.5) * cell
        _client(axis, rows, centre, min(cell - 0.08, 1.3))
        for direction, side in (("down", -1), ("up", 1)):
            half = rows[rows["direction"] == direction]
            middle = centre + side * min(cell, 1.3) * 0.23
            _ribbon(axis, half, middle, inches_per_byte)
    _legend(axis, chosen, parts)
    return figure


def _one_round(wire: pd.DataFrame, round: int | None) -> pd.DataFrame:
    columns_of(wire, WIRE)
    if wire["run"].nunique() > 1:
        raise ValueError(f"expected one run, found {sorted(wire['run'].unique())}")
    if round is None and len(wire):
        round = int(wire["round"].max())
    chosen = wire[wire["round"] == round].reset_index(drop=True)
    if chosen.empty or chosen["bytes"].sum() == 0:
        raise ValueError(
            f"expected traffic in round {round}, found none; "
            f"rounds in the table: {sorted(set(wire['round'].tolist()))}"
        )
    return chosen


def _server(axis: Axes, rows: pd.DataFrame) -> None:
    _box(axis, 0.05, SERVER_Y, WIDTH - 0.3, 0.42, COLOURS["dark"])
    total = rows.groupby("direction")["bytes"].sum()
    sent, received = (size_text(total.get(way, 0)) for way in ("down", "up"))
    middle = SERVER_Y + 0.21
    bold = {"color": "white", "va": "center", "fontsize": NORMAL}
    axis.text(0.2, middle, "Server", weight="bold", **bold)
    axis.text(
        (WIDTH - 0.2) / 2, middle, f"round {rows['round'].iloc[0]}", ha="center", **bold
    )
    traffic = f"sends {sent}, receives {received}"
    axis.text(WIDTH - 0.4, middle, traffic, ha="right", **bold)


def _client(axis: Axes, rows: pd.DataFrame, centre: float, width: float) -> None:
    _box(axis, centre - width / 2, CLIENT_Y - 0.36, width, 0.36, COLOURS["pale"])
    client = rows["client"].iloc[0]
    name = f"client {client}" if width > 0.7 else f"{client}"
    middle = {"ha": "center", "va": "center", "fontsize": SMALL}
    axis.text(centre, CLIENT_Y - 0.18, name, weight="bold", **middle)


def _ribbon(axis: Axes, rows: pd.DataFrame, middle: float, scale: float) -> None:
    """Draw strips side by side, one per part, with one arrow head and the total."""
    if rows.empty:
        return
    is_down = rows["direction"].iloc[0] == "down"
    order = _in_order(rows["part"])
    sizes = rows.groupby("part")["bytes"].sum()
    widths = [max(THINNEST, sizes[part] * scale) for part in order]
    head = 0.16
    start = CLIENT_Y + 0.06 + (head if is_down else 0.0)
    length = SERVER_Y - CLIENT_Y - 0.12 - head
    left = first = middle - sum(widths) / 2
    for part, width in zip(order, widths, strict=True):
        look = _look(part)
        axis.add_patch(Rectangle((left, start), width, length, linewidth=0, **look))
        left += width
    base = start if is_down else start + length
    tip = base - head if is_down else base + head
    half = sum(widths) / 2 + min(0.06, 0.2 * sum(widths))
    points = [(middle - half, base), (middle + half, base), (middle, tip)]
    axis.add_patch(Polygon(points, linewidth=0, facecolor=_look(order[0])["facecolor"]))
    text = size_text(sizes.sum())
    y = (SERVER_Y + CLIENT_Y) / 2
    look = {"rotation": 90, "ha": "center", "va": "center", "fontsize": SMALL}
    if widths[0] >= 0.16 and order[0] == "weights":
        axis.text(first + widths[0] / 2, y, text, color="white", **look)
    else:
        plate = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        axis.text(middle, y, text, bbox=plate, **look)


def _in_order(parts: pd.Series) -> list[str]:
    """The parts that occur, in the order of PARTS, unknown ones last."""
    found = dict.fromkeys(parts)
    return sorted(found, key=lambda p: list(PARTS).index(p) if p in PARTS else 99)


def _look(part: str) -> dict[str, object]:
    colour, hatch = PARTS.get(part, (COLOURS["quiet"], "...."))
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white"}


def _legend(axis: Axes, rows: pd.DataFrame, parts: list[str]) -> None:
    """Label each part below the clients, with its total over all clients."""
    totals = rows.groupby("part")["bytes"].sum()
    step = (WIDTH - 0.2) / max(3, len(parts))
    for place, part in enumerate(parts):
        look = _look(part)
        left = 0.05 + place * step
        axis.add_patch(Rectangle((left, LEGEND_Y), 0.13, 0.13, linewidth=0, **look))
        text = f"{part}\n{size_text(totals[part])} in all"
        axis.text(left + 0.19, LEGEND_Y + 0.065, text, va="center", fontsize=SMALL)


def _box(
    axis: Axes, x: float, y: float, width: float, height: float, colour: str
) -> None:
    corner = "round,pad=0,rounding_size=0.07"
    box = FancyBboxPatch((x, y), width, height, corner, facecolor=colour, linewidth=0)
    axis.add_patch(box)


def size_text(num_bytes: float) -> str:
    """Bytes as text: 8 B, 103.4 kB, 26.41 MB (powers of 1,000)."""
    if num_bytes < 1_000:
        return f"{num_bytes:.0f} B"
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1_000:,.1f} kB"
    return f"{num_bytes / 1_000_000:,.2f} MB"
