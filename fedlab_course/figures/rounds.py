"""Client drift over several rounds, in a plane of two weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..plots.drawing import drawing
from ..plots.panels import panel_axes
from ..plots.style import (
    COLOURS,
    DOUBLE,
    SMALL,
    Picture,
    Size,
    inches,
    new_picture,
)
from ..quadratics import OPTIMUM, REST, SERVER, QuadraticClients

NARROWEST = 1.6  # inches of a panel
PHASES = 3  # of a round: the broadcast, half of the local steps, all of them
LOOKS = {
    SERVER: {"color": COLOURS["baseline"], "marker": "o", "markersize": 5},
    "a client's steps": {"color": COLOURS["ours"], "marker": ".", "markersize": 3},
    "a client's optimum": {
        "color": COLOURS["ours"],
        "marker": "^",
        "markersize": 6,
        "fillstyle": "none",
    },
    OPTIMUM: {"color": COLOURS["other 2"], "marker": "*", "markersize": 14},
    REST: {"color": COLOURS["other 1"], "marker": "X", "markersize": 7},
}
LEVELS = 10.0 ** np.arange(-2.5, 1, 0.5)  # of the mean loss
FLOOR = 1e-4  # the lowest loss that is drawn


def rounds_picture(
    clients: QuadraticClients,
    table: pd.DataFrame,
    moments: Sequence[int],
    title: str = "",
) -> Picture:
    """Draw FedAvg at moments of its rounds, and the mean loss up to the last.

    table:    of `clients.fedavg`.
    moments:  PHASES to a round: 0 is the first broadcast, 1 half of the local steps, 2
              all of them, 3 their average, which is the next broadcast, and so on.
    """
    optima = pd.DataFrame(clients.optima, columns=["first", "second"])
    curvature = clients.curvature.tolist()
    return draw_rounds(table, optima, curvature, list(moments), title)


@drawing
def draw_rounds(
    table: pd.DataFrame,
    optima: pd.DataFrame,
    curvature: Sequence[Sequence[float]],
    moments: Sequence[int],
    title: str = "",
    size: Size = None,
) -> Picture:
    """Draw `rounds_picture` from tables.

    table:      columns what, round, step, first, second, loss.
    optima:     columns first, second, a row per client. curvature: of the mean loss.
    size:       "single", "double", "slide" or inches.
    """
    count, width = len(moments) + 1, inches(size)[0]
    columns = min(count, int(width / NARROWEST))
    rows = -(-count // columns)
    height = 0.9 + rows * (0.55 + 0.74 * width / columns)
    figure = new_picture(inches(size, (DOUBLE[0], height)), title)
    axes = panel_axes(figure, count, columns)
    for axis, moment in zip(axes, moments, strict=False):
        _plane(axis, table, optima, np.array(curvature), moment)
        axis.set_title(_name(table, moment), fontsize=SMALL)
    for axis in axes[:-1:columns]:
        axis.set_ylabel("Second weight")
    _losses(axes[-1], table, moments[-1] // PHASES)
    for name, look in LOOKS.items():
        axes[0].plot([], [], linestyle="none", label=name, **look)
    below = {"loc": "outside lower left", "ncols": int(width / 2.2)}
    figure.legend(handletextpad=0.3, **below)
    return figure


def _name(table: pd.DataFrame, moment: int) -> str:
    """What happens at a moment."""
    (done, phase), last = divmod(moment, PHASES), table["round"].max()
    if phase:
        steps = table["step"].max()
        return f"Round {done + 1}:\n{_steps(steps, phase)} of {steps} steps"
    if done == last:
        return f"Round {done}:\nthe average"
    return f"Round {done + 1}:\nthe broadcast"


def _steps(steps: int, phase: int) -> int:
    return -(-steps * phase // (PHASES - 1))


def _plane(
    axis: Axes,
    table: pd.DataFrame,
    optima: pd.DataFrame,
    curvature: np.ndarray,
    moment: int,
) -> None:
    """The mean loss as contours, and all paths up to a moment."""
    done, phase = divmod(moment, PHASES)
    places = dict(list(table.groupby("what", sort=False)))
    best = places[OPTIMUM][["first", "second"]].to_numpy()[0]
    every = pd.concat([table, optima])[["first", "second"]].to_numpy()
    _contours(axis, every, best, curvature)
    most = _steps(table["step"].max(), phase)
    for path in (p for name, p in places.items() if name not in LOOKS):
        for t, walk in path[path["round"] <= done].groupby("round"):
            walk = walk if t < done else walk[walk["step"] <= most]
            faint = {"alpha": 0.9 if t == done else 0.25, "linewidth": 1}
            look = LOOKS["a client's steps"] | faint
            axis.plot(walk["first"], walk["second"], **look)
    own = LOOKS["a client's optimum"]
    axis.plot(optima["first"], optima["second"], linestyle="none", **own)
    server = places[SERVER][places[SERVER]["round"] <= done]
    axis.plot(server["first"], server["second"], linewidth=1, **LOOKS[SERVER])
    for name in (OPTIMUM, REST):
        look = {"markeredgecolor": "white", "linestyle": "none", "zorder": 5}
        axis.plot(places[name]["first"], places[name]["second"], **LOOKS[name], **look)


def _contours(
    axis: Axes, every: np.ndarray, best: np.ndarray, curvature: np.ndarray
) -> None:
    """Lines of equal mean loss, and room for all places that any moment shows."""
    around = np.linspace(0, 2 * np.pi, 121)
    circle = np.stack([np.cos(around), np.sin(around)])
    # ½ (w - best)ᵀ H (w - best) = level, with H = L Lᵀ
    oval = np.linalg.solve(np.linalg.cholesky(curvature).T, circle).T
    for level in LEVELS:
        line = best + np.sqrt(2 * level) * oval
        axis.plot(*line.T, color=COLOURS["quiet"], linewidth=0.5, alpha=0.6)
    low, high = every.min(axis=0), every.max(axis=0)
    (x, y), half = (low + high) / 2, 0.56 * (high - low).max()
    axis.set(xlim=(x - half, x + half), ylim=(y - half, y + half))
    axis.set(xlabel="First weight", aspect="equal", anchor="N")


def _losses(axis: Axes, table: pd.DataFrame, done: int) -> None:
    """The server's mean loss after every round so far, and where it ends."""
    server = table[table["what"] == SERVER]
    now = server[server["round"] <= done]
    rest = table.loc[table["what"] == REST, "loss"].item()
    axis.plot(now["round"], now["loss"], **LOOKS[SERVER])
    if rest > FLOOR:
        axis.axhline(rest, color=LOOKS[REST]["color"], linestyle="--", linewidth=1)
    axis.set(xlabel="Round", xlim=(-0.3, server["round"].max() + 0.3), yscale="log")
    axis.set(ylim=(FLOOR / 1.5, 2 * server["loss"].max()))
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.set_title("Mean loss\nabove its minimum", fontsize=SMALL)
    axis.grid(axis="y")
