"""Images with exchanged low frequencies, and densities of features."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from ..plots.drawing import drawing
from ..plots.style import COLOURS, DOUBLE, SMALL, Picture, new_picture

FAINTEST = 0.02  # smallest range of a difference, so that rounding stays invisible
PICTURES = ("own", "foreign", "restyled")
COLOUR_ENDS = ("_red", "_green", "_blue")


def restyle_picture(
    own: np.ndarray,
    foreign: np.ndarray,
    restyled: np.ndarray,
    half_width: int,
    title: str = "",
) -> Picture:
    """Show how another client's low frequencies change an image.

    own, foreign: (H, W) or (H, W, 3), float in [0, 1].
    restyled: own with foreign amplitudes, float, in the same unit but free to leave
              [0, 1]: it is shown clipped, the difference is not.
    half_width: b; the window holds the (2b+1)² frequencies |u|, |v| ≤ b.
    Returns own, foreign, log(1 + amplitude of own) with the window, restyled, and
    restyled - own, the last as mean over channels; the data hold one row per pixel,
    colours as 0…255, to a hundredth.
    """
    given = dict(zip(PICTURES, (own, foreign, restyled), strict=True))
    pictures = {name: _pixels(array) for name, array in given.items()}
    return draw_restyled(_table(pictures), half_width, title)


@drawing
def draw_restyled(table: pd.DataFrame, half_width: int, title: str = "") -> Picture:
    """Draw `restyle_picture` from a row per pixel.

    table: columns row, column, own, foreign, restyled in 0…255; of coloured images
           own_red, own_green, own_blue and so on.
    """
    own, foreign, restyled = (_picture(table, name) for name in PICTURES)
    spectrum = np.fft.fftshift(np.fft.fft2(own, axes=(0, 1)), axes=(0, 1))
    amplitude = np.log1p(np.abs(spectrum)).mean(axis=2)
    change = (restyled - own).mean(axis=2)
    limit = max(FAINTEST, np.abs(change).max())
    mean = f"mean {round(change.mean(), 3) + 0.0:+.3f}".replace("-", "\N{MINUS SIGN}")
    side = 2 * half_width + 1
    grey = {"cmap": "gray", "norm": Normalize(0, 1)}
    signed = {"cmap": "RdBu_r", "norm": Normalize(-limit, limit)}
    figure = new_picture((DOUBLE[0], 1.95 if title else 1.7), title)
    axes = figure.subplots(1, 5)
    _show(axes[0], own, "own image", grey)
    _show(axes[1], foreign, "another client's", grey)
    within = f"log amplitude of own,\nwindow {side} × {side}"
    _show(axes[2], amplitude, within, {"cmap": "viridis"})
    _window(axes[2], half_width)
    _show(axes[3], restyled.clip(0, 1), "restyled", grey)
    _show(axes[4], change, f"restyled \N{MINUS SIGN} own,\n{mean}", signed)
    beside = axes[4].inset_axes((1.05, 0, 0.07, 1))
    bar = figure.colorbar(axes[4].get_images()[0], cax=beside, ticks=MaxNLocator(5))
    bar.outline.set_visible(False)
    return figure


def _pixels(array: np.ndarray) -> np.ndarray:
    """As float (H, W, 1 or 3) in the unit of [0, 1]."""
    if array.ndim == 2:
        array = array[..., None]
    return array.astype(float)


def _table(pictures: dict[str, np.ndarray]) -> pd.DataFrame:
    """One row per pixel, one column per image and colour."""
    row, column = np.indices(pictures["own"].shape[:2])
    columns = {"row": row.ravel(), "column": column.ravel()}
    for name, picture in pictures.items():
        ends = COLOUR_ENDS if picture.shape[2] == 3 else ("",)
        for place, end in enumerate(ends):
            columns[name + end] = np.round(255 * picture[..., place], 2).ravel()
    return pd.DataFrame(columns)


def _picture(table: pd.DataFrame, name: str) -> np.ndarray:
    """An image of the table, (H, W, 1 or 3), in [0, 1]."""
    shape = (table["row"].max() + 1, table["column"].max() + 1, -1)
    names = [name] if name in table else [name + end for end in COLOUR_ENDS]
    return table[names].to_numpy().reshape(shape) / 255


def _show(axis: Axes, pixels: np.ndarray, caption: str, look: dict) -> None:
    axis.imshow(pixels.squeeze(), interpolation="nearest", **look)
    axis.axis("off")
    axis.set_anchor("N")  # captions are below
    for line, text in enumerate(caption.split("\n")):  # so that first lines agree
        down = (0, -12 - 11.5 * line)
        below = axis.annotate(text, (0.5, 0), down, "axes fraction", "offset points")
        below.set(fontsize=SMALL, ha="center", va="baseline")


def _window(axis: Axes, half_width: int) -> None:
    """Draw a box around the zero frequency, at (H // 2, W // 2)."""
    height, width = axis.get_images()[0].get_array().shape
    corner = (width // 2 - half_width - 0.5, height // 2 - half_width - 0.5)
    side = 2 * half_width + 1
    look = {"fill": False, "edgecolor": COLOURS["other 1"], "linewidth": 1.6}
    axis.add_patch(Rectangle(corner, side, side, **look))


@drawing
def gaussian_picture(
    mu: float, sigma: float, m: float, tau: float, title: str = ""
) -> Picture:
    """Draw one coordinate of a feature: of one image, and of its class.

    mu, sigma: mean and standard deviation of the posterior p(z | x), in blue.
    m, tau:    those of the class reference r(z | y), in grey.
    The title gives the divergence KL(p ‖ r) in nats, which FedSR penalises.
    """
    # KL = log(tau / sigma) + (sigma² + (mu - m)²) / (2 tau²) - 1/2
    nats = math.log(tau / sigma) + (sigma**2 + (mu - m) ** 2) / (2 * tau**2) - 0.5
    reach = max(4.0, math.ceil(max(abs(mu) + 3 * sigma, abs(m) + 3 * tau)))
    z = np.linspace(-reach, reach, 401)
    posterior, reference = _normal(z, mu, sigma), _normal(z, m, tau)
    curves = {"z": z, "posterior": posterior, "reference": reference}
    figure = new_picture((4.6, 2.9), title)
    figure.data = pd.DataFrame(curves)
    axis = figure.subplots()
    grey, blue = {"color": COLOURS["quiet"]}, {"color": COLOURS["ours"]}
    axis.fill_between(z, reference, alpha=0.25, linewidth=0, **grey)
    axis.fill_between(z, posterior, alpha=0.25, linewidth=0, **blue)
    axis.plot(z, posterior, label="posterior p(z | x)", **blue)
    dashed = {"linestyle": "--", "label": "class reference r(z | y)"}
    axis.plot(z, reference, **grey, **dashed)
    axis.set(xlabel="One coordinate of z", ylabel="Density", xlim=(-reach, reach))
    axis.set_ylim(0, max(0.5, 1.08 * posterior.max(), 1.08 * reference.max()))
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    axis.legend(ncols=2, columnspacing=1.5, **above)
    axis.set_title(f"KL(p ‖ r) = {abs(nats):.2f} nats", pad=22)
    return figure


def _normal(z: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    """Density at z of the normal distribution with that mean and s.d."""
    scaled = (z - mean) / deviation
    return np.exp(-0.5 * scaled**2) / (deviation * math.sqrt(2 * math.pi))
