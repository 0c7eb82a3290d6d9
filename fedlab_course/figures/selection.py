"""How often a selection strategy chooses each client, by size and by loss."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from ..plots.drawing import drawing
from ..plots.style import COLOURS, DOUBLE, Picture, new_picture


@drawing
def absent_clients(table: pd.DataFrame, rounds: int) -> Picture:
    """Draw each client's training samples, and whether it ever took part.

    table:  columns samples and share (of the rounds in which it took part), a row per
            client.
    rounds: how many rounds that were.
    """
    clients = table.sort_values("samples", ascending=False, kind="stable")
    samples = clients["samples"].to_numpy()
    is_absent = clients["share"].eq(0).to_numpy()
    place = np.arange(len(clients))
    there = {"color": COLOURS["ours"], "label": "took part"}
    never = {"fill": False, "hatch": "////", "edgecolor": COLOURS["other 1"]}
    never["label"] = "never"
    title = f"{is_absent.sum()} of {len(clients)} clients take no part in {rounds} "
    title += "rounds"
    figure = new_picture(DOUBLE, title)
    axis = figure.subplots()
    for is_mine, look in ((~is_absent, there), (is_absent, never)):
        if is_mine.any():  # the legend would give no bars a colour of its own
            axis.bar(place[is_mine], samples[is_mine], **look)
    axis.set(xlabel="Clients, largest first", ylabel="Training samples")
    axis.legend()
    return figure


@drawing
def shares_of_rounds(table: pd.DataFrame, left: str, right: str) -> Picture:
    """Draw how often two selections choose each client: sorted, and over its loss.

    table:       columns samples, loss, and the shares of rounds by_group (drawn on the
                 left, sorted) and by_loss (drawn on the right).
    left, right: titles of the panels.
    """
    seldom = [(table[name] < 0.01).sum() for name in ("by_group", "by_loss")]
    title = f"Clients in less than 1 % of the rounds: {seldom[0]} (left), {seldom[1]} "
    title += "(right)"
    sorted_shares = np.sort(table["by_group"])[::-1]
    blue = COLOURS["ours"]
    figure = new_picture(DOUBLE, title)
    axes = figure.subplots(1, 2, sharey=True)
    axes[0].bar(range(len(table)), 100 * sorted_shares, width=1.0, color=blue)
    dots = {"s": table["samples"] / 6, "color": blue, "alpha": 0.6}
    axes[1].scatter(table["loss"], 100 * table["by_loss"], **dots)
    for axis, name, shares in zip(
        axes, (left, right), ("by_group", "by_loss"), strict=True
    ):
        equal = 100 * table[shares].mean()  # if no client were preferred
        axis.axhline(equal, color="black", linestyle="--", linewidth=1)
        axis.set_title(name)
    axes[0].set(xlabel="Clients, sorted", ylabel="Rounds with this client (%)")
    axes[1].set(xlabel="Loss of the model on the client", ylim=(0, 100))
    return figure


STATES = {  # of a client in a round: colour
    "trains": COLOURS["other 1"],
    "queried": COLOURS["ours"],
    "not queried": COLOURS["faint"],
}


@drawing
def falling_losses(table: pd.DataFrame, round: int, title: str = "") -> Picture:
    """Draw every client's loss before a round, and how often it has trained by then.

    table:  columns round, client, loss, is_asked, is_selected and times, as
            `measures.rehearse_falling` returns them.
    Clients stand in the order of their first losses; a line marks these.
    """
    first = table[table["round"] == table["round"].min()].set_index("client")["loss"]
    first = first.sort_values(ascending=False, kind="stable")
    now = table[table["round"] == round].set_index("client").loc[first.index]
    state = np.where(now["is_asked"], "queried", "not queried")
    state = np.where(now["is_selected"], "trains", state)
    figure = new_picture((DOUBLE[0], 4.0), title)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    place = np.arange(len(now))
    for name, colour in STATES.items():
        if not (is_mine := state == name).any():
            continue  # the legend would give no bars a colour of its own
        above.bar(place[is_mine], now["loss"][is_mine], 0.85, color=colour, label=name)
        below.bar(place[is_mine], now["times"][is_mine], 0.85, color=colour)
    above.step(
        place, first, where="mid", color="black", linewidth=1, label="before round 1"
    )
    above.set(ylabel="Loss", ylim=(0, 1.05 * first.max()))
    most = max(4, table["times"].max())
    below.set(xlabel="Clients, sorted by loss before round 1", ylabel="Rounds trained")
    below.set(ylim=(0, 1.05 * most))
    below.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    figure.legend(loc="outside lower left", ncols=4)
    return figure
