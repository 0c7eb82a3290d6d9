"""Four styles for drawings: photo, art, cartoon and sketch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from .drawn import as_bytes
from .outlines import MATERIALS
from .photographs import piece

SIDE = 48
FINE = 2  # drawn at this many times the resolution, then averaged
SHEET = SIDE * FINE
STROKES = 450  # brush strokes of a painting

Span = tuple[float, float]


class Drawing(NamedTuple):
    """The objects of an owner, before a style is applied.

    names: N names of objects.
    what: material of each pixel, a position in ``MATERIALS``, uint8 (N, SHEET, SHEET).
    inside: 1 on the object, else 0, float32 (N, 1, SHEET, SHEET).
    rng: the random stream of the owner.
    is_test: whether the owner is for testing.
    """

    names: list[str]
    what: np.ndarray
    inside: np.ndarray
    rng: np.random.Generator
    is_test: bool


# ---- photo --------------------------------------------------------------------------
NATURAL = {
    "dog": ("8a5a2b d9b98a c23b3b", "d6a566 f0dfc0 2f5fa8", "3a3230 8a6a50 c23b3b",
            "e8e0d4 b0a090 3d8a4a"),
    "elephant": ("8d8d92 77777c 8d8d92", "7a7068 665c55 7a7068",
                 "a39b94 8d857e a39b94"),
    "giraffe": ("dcb463 8a4f1d 8a4f1d", "e6c88a a4652a a4652a",
                "c99a4a 6e3a15 6e3a15"),
    "guitar": ("c9772f 3c2415 24170f", "8c2f1d 2b1a12 2b1a12", "e0b060 4a2c18 4a2c18",
               "26262b 6a4a30 26262b"),
    "horse": ("7a4526 2a1a12 2a1a12", "b5763d e6d3ae e6d3ae", "40302a 1c1613 1c1613",
              "d9d2c8 8c857d 8c857d"),
    "house": ("d8c9ae 8a3f2c 5a3a24", "b5523a 4a4a52 e8e2d6", "e9e4da 50606e 2f5f4a",
              "9c8a78 6e4a3a 7a2f2a"),
    "person": ("2f5f9a e2b48f 39404e", "a83238 8f5f40 4a3a2a", "e6e2da c68f68 22242c",
               "3f7a4a f0cba8 6b5138"),
}  # fmt: skip
"""Choices of colours for the materials main, second and third, by object."""


def _natural(names: list[str], rng: np.random.Generator) -> np.ndarray:
    """Natural colours of all materials in each image, (N, M, 3)."""
    chosen = [NATURAL[name][rng.integers(len(NATURAL[name]))] for name in names]
    three = np.frombuffer(bytes.fromhex("".join(chosen)), "u1").reshape(-1, 3, 3) / 255
    colours = _dyes(*three.swapaxes(0, 1))
    change = rng.normal(0.0, 0.05, (len(names), 1, 1))
    change = change + rng.normal(0.0, 0.02, (len(names), 1, 3))
    return (colours + change).clip(0.02, 1).astype(np.float32)


def _photo(drawing: Drawing) -> np.ndarray:
    """Natural colours, shading, a shadow, a blurred background, grain."""
    names, what, inside, rng, is_test = drawing
    count = len(what)
    ground = _scene(rng, count, is_test)
    shadow = _soft(np.roll(inside, (FINE * 2, FINE * 2), axis=(2, 3)), 2.2 * FINE)
    ground *= 1 - 0.45 * shadow
    body = _filled(what, _natural(names, rng))
    grain = _soft(rng.standard_normal((count, 1, SHEET, SHEET), dtype=np.float32), FINE)
    body *= _round(drawing, 0.75) * (1 + 0.5 * grain)
    picture = ground + inside * (body - ground)
    warm = rng.uniform(0.85, 1.15) * rng.normal(1.0, 0.04, (3, 1, 1))
    picture = _soft(picture * warm.astype(np.float32), rng.uniform(0.35, 0.6) * FINE)
    return picture + 0.035 * rng.standard_normal(picture.shape, dtype=np.float32)


def _scene(rng: np.random.Generator, count: int, is_test: bool) -> np.ndarray:
    """Backgrounds (N, 3, SHEET, SHEET): crops of photographs, or sky and meadow."""
    span = (0.8, 1.0) if is_test else (0.0, 0.8)
    pieces = np.stack([piece(rng, SHEET * 4 // 5, *span) for _ in range(count)])
    far = _enlarged(pieces[..., ::6, ::6])
    high = np.linspace(0, 1, SHEET, dtype=np.float32)[:, None]
    horizon = rng.uniform(0.35, 0.75, (count, 1, 1, 1))
    below = 1 / (1 + np.exp((horizon - high) * 40))
    sky = np.array([0.55, 0.7, 0.88])[:, None, None] + 0.3 * high
    sky = sky + rng.normal(0, 0.07, (count, 3, 1, 1))
    soil = np.array([[0.35, 0.5, 0.2], [0.6, 0.5, 0.32], [0.5, 0.48, 0.45]])
    soil = soil[rng.integers(3, size=count)][..., None, None] * (1.2 - 0.5 * high)
    tufts = _soft(rng.standard_normal((count, 1, SHEET, SHEET), dtype=np.float32), 2.0)
    near = sky + below * (soil * (1 + 2 * tufts) - sky)
    is_far = rng.random((count, 1, 1, 1)) < 0.5
    return np.where(is_far, far, near).astype(np.float32)


# ---- art ----------------------------------------------------------------------------
def _art(drawing: Drawing) -> np.ndarray:
    """Few colours in brush strokes that follow the outlines, on canvas."""
    _, what, inside, rng, _ = drawing
    count, palette = len(what), _palette(rng)
    pick = np.stack([rng.permutation(3) for _ in range(count)])
    dark, light = palette[:3][pick], palette[3:][pick]
    is_dark = rng.random((count, 1, 1)) < 0.5
    on, off = np.where(is_dark, dark, light), np.where(is_dark, light, dark)
    colours = _dyes(on[:, 0], on[:, 1], off[:, 2], 0.5 * palette[0], palette[5])
    high = np.linspace(0, 1, SHEET)[:, None] + 0.7 * _clouds(rng, count)
    ground = _mixed(off[:, 0], off[:, 1], high)
    body = _filled(what, colours) * _round(drawing, 0.6)
    picture = ground + inside * (body - ground)
    angle = _along(inside[:, 0], rng)
    painted = zip(picture, inside[:, 0], angle, strict=True)
    canvas = np.stack([_strokes(*each, rng) for each in painted])
    return canvas * (1 + 0.04 * rng.standard_normal((1, 1, SHEET, SHEET)))


def _palette(rng: np.random.Generator) -> np.ndarray:
    """Three dark and three light colours of one painter, (6, 3)."""
    hues = rng.random() + np.array([[0.0, 0.1, 0.5], [0.55, 0.08, 0.3]])
    dark = _colours(rng, hues[0], (0.45, 0.85), (0.25, 0.5))
    return np.concatenate([dark, _colours(rng, hues[1], (0.25, 0.7), (0.75, 0.98))])


def _along(inside: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Angles of the strokes, (N, SHEET, SHEET): along the outlines where near."""
    down, across = np.gradient(_soft(inside, 3.0 * FINE), axis=(1, 2))
    swirl = 2 * np.pi * _clouds(rng, len(inside))[:, 0]
    is_near = np.hypot(down, across) > 0.004
    return np.where(is_near, np.arctan2(across, -down), swirl)


def _strokes(picture, inside, angle, rng: np.random.Generator) -> np.ndarray:
    """Paint over an image (3, SHEET, SHEET) with short strokes of its colours."""
    start = rng.integers(SHEET, size=(STROKES, 2))
    start = start[np.argsort(inside[tuple(start.T)], kind="stable")]  # ground first
    y, x = start.T
    colour = picture[:, y, x].T + rng.normal(0, 0.045, (STROKES, 3))
    fine = 1 - 0.3 * inside[y, x]
    reach = FINE * fine * rng.uniform(1.3, 3.0, STROKES)
    turn = angle[y, x] + rng.normal(0, 0.15, STROKES)
    step = np.stack([np.cos(turn), np.sin(turn)], axis=1) * reach[:, None]
    ends = np.concatenate([start[:, ::-1] - step, start[:, ::-1] + step], axis=1)
    inks = as_bytes(colour).tolist()
    pixels = as_bytes(picture).transpose(1, 2, 0)
    canvas = Image.fromarray(np.ascontiguousarray(pixels))
    pen, widths = ImageDraw.Draw(canvas), np.rint(2 * FINE * fine).astype(int).tolist()
    for end, ink, width in zip(ends.tolist(), inks, widths, strict=True):
        pen.line(end, fill=tuple(ink), width=width)
    return np.asarray(canvas).transpose(2, 0, 1) / np.float32(255)


# ---- cartoon ------------------------------------------------------------------------
def _cartoon(drawing: Drawing) -> np.ndarray:
    """Flat strong colours, one level of shadow, thick black lines."""
    _, what, inside, rng, _ = drawing
    count = len(what)
    favourites = rng.random(5)[rng.integers(5, size=(count, 3))]
    hues = favourites + rng.normal(0, 0.02, (count, 3))
    strong = _colours(rng, hues, (0.55, 1.0), (0.75, 1.0))
    body = _filled(what, _dyes(*strong.swapaxes(0, 1)))
    body *= np.where(_round(drawing, 0.7) < 0.8, 0.8, 1.0)
    pale = _colours(rng, rng.random((count, 2)), (0.08, 0.4), (0.85, 1.0))
    start = rng.uniform(0, 6, (count, 1, 1, 1))
    hill = 0.15 * np.sin(np.linspace(0, 5, SHEET) + start)
    border = rng.uniform(0.5, 1.2, (count, 1, 1, 1))
    is_hill = hill + np.linspace(0, 1, SHEET)[:, None] > border
    ground = _mixed(pale[:, 0], pale[:, 1], is_hill)
    return (ground + inside * (body - ground)) * (1 - _lines(what, FINE + 1))


# ---- sketch -------------------------------------------------------------------------
def _sketch(drawing: Drawing) -> np.ndarray:
    """Thin uneven lines on white paper, dark parts hatched."""
    _, what, _, rng, _ = drawing
    count = len(what)
    pressure = (0.8 + 1.2 * _clouds(rng, count)).clip(0.25, 1)
    line = _lines(what, FINE) * pressure
    along = np.arange(SHEET)
    stripe = (along + along[:, None]) % (3 * FINE) < FINE // 2
    is_hatched = np.isin(what, (2, 5))[:, None] & (rng.random((count, 1, 1, 1)) < 0.6)
    ink = np.maximum(line, 0.6 * pressure * (stripe & is_hatched))
    paper = rng.uniform(0.95, 1.0)
    darkness = rng.uniform(0.7, 0.98)
    picture = paper - (paper - 1 + darkness) * _soft(ink, 0.35 * FINE)
    return np.repeat(picture, 3, axis=1)


LOOKS: dict[str, Callable[[Drawing], np.ndarray]] = {
    "photo": _photo,
    "art": _art,
    "cartoon": _cartoon,
    "sketch": _sketch,
}
"""Domains: each function renders a drawing, (N, 3, SHEET, SHEET) in [0, 1]."""


# ---- shared by several styles -------------------------------------------------------
def _colours(rng, hues: np.ndarray, strength: Span, value: Span) -> np.ndarray:
    """RGB colours (…, 3) of the given hues with random saturation and value.

    hues: in turns, any shape.
    strength, value: ranges of saturation and value, in [0, 1].
    """
    from matplotlib.colors import hsv_to_rgb

    drawn = [rng.uniform(*span, hues.shape) for span in (strength, value)]
    return hsv_to_rgb(np.stack([hues % 1, *drawn], axis=-1))


def _dyes(main, second, third, dark=0.06, light=0.95) -> np.ndarray:
    """Colours of all materials, float32 (…, M, 3), from colours of some, (…, 3)."""
    colours = np.empty((*np.shape(main)[:-1], len(MATERIALS), 3), np.float32)
    dyes = (0, main, 0.7 * main, second, third, dark, light, second)
    for number, dye in enumerate(dyes):
        colours[..., number, :] = dye
    return colours


def _soft(values: np.ndarray, width: float) -> np.ndarray:
    """Gaussian blur over the last two axes; ``width`` is σ in pixels of the sheet."""
    along = np.arange(values.shape[-1], dtype=np.float32)
    far = np.abs(along - along[:, None]) / np.float32(width)
    weight = np.where(far < 4, np.exp(-(far.clip(0, 4) ** 2) / 2), 0)
    weight /= weight.sum(axis=1, keepdims=True)
    return weight @ values @ weight.T


def _enlarged(values: np.ndarray) -> np.ndarray:
    """Enlarge values (N, C, h, h) linearly to (N, C, SHEET, SHEET)."""
    side = values.shape[-1]
    place = np.linspace(0, side - 1, SHEET, dtype=np.float32)[:, None]
    weight = (1 - np.abs(place - np.arange(side, dtype=np.float32))).clip(0)
    return weight @ values @ weight.T


def _filled(what: np.ndarray, colours: np.ndarray) -> np.ndarray:
    """Paint materials (N, H, W) in their colours (N, M, 3): (N, 3, H, W)."""
    picture = np.take_along_axis(colours, what.reshape(len(what), -1, 1), axis=1)
    return picture.transpose(0, 2, 1).reshape(len(what), 3, *what.shape[1:])


def _mixed(a: np.ndarray, b: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Interpolate from colours ``a`` to ``b``, (N, 3) each: (N, 3, H, W).

    share: weight of ``b``, (N, 1, H, W), clipped to [0, 1].
    """
    a, b = a[..., None, None], b[..., None, None]
    return a + share.clip(0, 1) * (b - a)


def _round(drawing: Drawing, strength: float) -> np.ndarray:
    """Brightness (N, 1, H, W) of round bodies that are lit from above."""
    height = sum(_soft(drawing.inside, width * FINE) for width in (1.0, 2.5))
    down, across = np.gradient(height, axis=(2, 3))
    angle = drawing.rng.uniform(0.5, np.pi - 0.5, (len(height), 1, 1, 1))
    lit = (np.sin(angle) * down + np.cos(angle) * across) * FINE * 4
    return 1 + strength * (lit.clip(-1, 1) * 0.6 + (height / 2 - 0.85))


def _clouds(rng: np.random.Generator, count: int) -> np.ndarray:
    """Smooth random values, mostly within ±0.5: (N, 1, SHEET, SHEET)."""
    return _enlarged(rng.normal(0.0, 0.3, (count, 1, 6, 6)).astype(np.float32))


def _lines(what: np.ndarray, width: int) -> np.ndarray:
    """1 on borders between materials, else 0, (N, 1, H, W); ``width`` in pixels."""
    from scipy.ndimage import maximum_filter

    what = np.where(what == MATERIALS.index("mark"), MATERIALS.index("main"), what)
    border = np.zeros(what.shape, np.float32)
    border[:, 1:] = what[:, 1:] != what[:, :-1]
    border[:, :, 1:] = np.maximum(border[:, :, 1:], what[:, :, 1:] != what[:, :, :-1])
    return maximum_filter(border, (1, width, width))[:, None]
