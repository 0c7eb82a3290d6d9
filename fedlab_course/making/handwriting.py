"""Synthetic handwriting: centre lines of printed characters, distorted per writer.

Each character of a font is thinned to its centre line. A ``Hand`` bends, slants
and scales that line and traces it with a pen, so that the images of one writer resemble
each other. Everything is determined by integer seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fedlab_support.data.prepared import CHARACTERS

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSerif",
    "DejaVuSerif-Italic",
    "STIXGeneral",
    "STIXGeneralItalic",
    "cmss10",
    "cmti10",
    "cmtt10",
)
FONT_WEIGHTS = np.array([5, 2, 2, 1, 2, 1, 4, 4, 2, 2]) / 25.0

SIDE = 28  # pixels
FINE = 2  # drawn at this many times the resolution, then averaged
WAVES = 8  # sine waves that bend a line


@dataclass(frozen=True, eq=False)
class Hand:
    """The habits of one writer; lengths are in cap heights unless stated otherwise.

    font: font of each character as a position in ``FONTS``, int (62,).
    cap_height, pen: height of a capital and width of the stroke, in pixels.
    aspect: width over height; 1 is as printed.
    slant: shift to the right per height.
    rotation: radians.
    frequency, phase: of the waves that bend the lines, (K, 2) and (K,).
    bend: amplitudes of the waves, (62, K, 2), mostly shared by all characters.
    looseness: variation between samples of a character, ≥ 0; 0 is none.
    roughness: unevenness of the ink, in [0, 1].
    ink: brightness, in (0, 1].
    """

    font: np.ndarray
    cap_height: float
    pen: float
    aspect: float
    slant: float
    rotation: float
    frequency: np.ndarray
    phase: np.ndarray
    bend: np.ndarray
    looseness: float
    roughness: float
    ink: float


def make_hand(rng: np.random.Generator) -> Hand:
    """Sample the habits of one writer."""
    favourites = rng.choice(len(FONTS), size=2, replace=False, p=FONT_WEIGHTS)
    uses_second = rng.random(len(CHARACTERS)) < rng.uniform(0.1, 0.5)
    frequency = np.clip(rng.normal(0.0, 0.5, (WAVES, 2)), -0.9, 0.9)
    amplitude = 0.037 / (0.6 + np.linalg.norm(frequency, axis=1))[:, None]
    own = rng.normal(0.0, 1.0, (1, WAVES, 2))
    per_character = rng.normal(0.0, 0.8, (len(CHARACTERS), WAVES, 2))
    return Hand(
        font=np.where(uses_second, favourites[1], favourites[0]),
        cap_height=float(np.clip(rng.normal(16.0, 2.2), 11.5, 21.0)),
        pen=float(np.clip(rng.lognormal(np.log(1.9), 0.22), 1.25, 3.2)),
        aspect=float(np.clip(rng.lognormal(np.log(0.95), 0.17), 0.65, 1.35)),
        slant=float(np.clip(rng.normal(0.1, 0.22), -0.35, 0.55)),
        rotation=float(rng.normal(0.0, 0.07)),
        frequency=frequency,
        phase=rng.uniform(0.0, 2 * np.pi, WAVES),
        bend=amplitude * (own + per_character),
        looseness=float(rng.uniform(0.4, 1.3)),
        roughness=float(rng.uniform(0.0, 0.9)),
        ink=float(rng.uniform(0.75, 1.0)),
    )


def write(hand: Hand, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Write each of ``labels``, int (N,), once: uint8 (N, 28, 28), light on dark."""
    lines = [centre_lines()[hand.font[c]][c] for c in labels]
    sample = np.repeat(np.arange(len(lines)), [len(line) for line in lines])
    points = np.concatenate(lines)

    wobble = 0.55 * hand.looseness * np.abs(hand.bend).mean()
    bend = hand.bend[labels] + rng.normal(0.0, wobble, (len(labels), WAVES, 2))
    # point + Σ_k bend_k · sin(2π frequency_k · point + phase_k)
    waves = np.sin(2 * np.pi * points @ hand.frequency.T + hand.phase)
    points = points + np.einsum("pk,pkd->pd", waves, bend[sample])

    points = np.einsum("pij,pj->pi", _shapes(hand, len(labels), rng)[sample], points)
    points = _centred(points, sample, len(labels))
    points += rng.normal(0.0, 0.6, (len(labels), 2))[sample]
    return _ink(hand, points, sample, len(labels), rng)


def _shapes(hand: Hand, count: int, rng: np.random.Generator) -> np.ndarray:
    """Linear maps (N, 2, 2) that slant, rotate and scale each sample."""
    jitter = hand.looseness * rng.normal(0.0, 1.0, (4, count))
    angle = hand.rotation + 0.04 * jitter[0]
    slant = hand.slant + 0.05 * jitter[1]
    height = hand.cap_height * np.exp(0.07 * jitter[2])
    width = height * hand.aspect * np.exp(0.05 * jitter[3])
    cos, sin = np.cos(angle), np.sin(angle)
    # rows are (x, y) and y points down: a positive slant moves the top to the right
    upright = np.array([[width, -slant * height], [0 * height, height]])
    turn = np.array([[cos, -sin], [sin, cos]])
    return np.einsum("ijn,jkn->nik", turn, upright)


def _centred(points: np.ndarray, sample: np.ndarray, count: int) -> np.ndarray:
    """Centre the bounding box of each sample in the image; units are pixels."""
    starts = np.searchsorted(sample, np.arange(count))
    low = np.minimum.reduceat(points, starts)
    high = np.maximum.reduceat(points, starts)
    return points + (SIDE / 2 - (low + high) / 2)[sample]


def _ink(
    hand: Hand,
    points: np.ndarray,
    sample: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Trace points (P, 2), in pixels, with the pen of the hand: uint8 (N, 28, 28)."""
    side = SIDE * FINE
    cell = np.floor(points * FINE).astype(int)
    on_paper = ((cell >= 0) & (cell < side)).all(axis=1)
    (x, y), sample = cell[on_paper].T, sample[on_paper]
    pressure = 1 + hand.roughness * rng.normal(0.0, 0.35, (count, side // 8, side // 8))
    paper = np.zeros((count, side, side), np.float32)
    paper[sample, y, x] = np.clip(pressure, 0.3, 1.5)[sample, y // 8, x // 8]
    # a line of width 1 blurred by s has the profile exp(-d²/2s²) / (s √2π)
    spread = 0.34 * hand.pen * FINE
    from scipy.ndimage import gaussian_filter

    paper = gaussian_filter(paper, (0, spread, spread), truncate=3.0)
    paper *= spread * np.sqrt(2 * np.pi)
    wet = np.clip((paper - 0.22) / 0.28, 0.0, 1.0)
    picture = wet.reshape(count, SIDE, FINE, SIDE, FINE).mean(axis=(2, 4))
    return np.rint(255 * hand.ink * picture).astype(np.uint8)


@lru_cache(maxsize=1)
def centre_lines() -> list[list[np.ndarray]]:
    """Points on the centre line of each character: ``[font][class]``, (P, 2) each.

    Columns are x and y (down) in cap heights; the bounding box is centred at 0.
    """
    side, cap_height = 96, 48
    pairs = [(font, character) for font in FONTS for character in CHARACTERS]
    drawn = np.stack([_print(*pair, side, cap_height) for pair in pairs])
    from scipy.ndimage import gaussian_filter

    soft = gaussian_filter(drawn.astype(np.float32) / 255, (0, 1.2, 1.2))
    thin = thinned(soft > 0.35)
    lines = []
    for picture in thin:
        points = np.argwhere(picture)[:, ::-1].astype(float)
        middle = (points.min(axis=0) + points.max(axis=0)) / 2
        lines.append((points - middle) / cap_height)
    size = len(CHARACTERS)
    return [lines[start : start + size] for start in range(0, len(lines), size)]


def _print(font: str, character: str, side: int, cap_height: int) -> np.ndarray:
    """A printed character, light on dark, uint8 (side, side)."""
    kind = face(font, cap_height)
    picture = Image.new("L", (side, side))
    ImageDraw.Draw(picture).text(
        (side / 2, side / 2), character, fill=255, font=kind, anchor="mm"
    )
    return np.asarray(picture)


@lru_cache(maxsize=len(FONTS))
def face(font: str, cap_height: int) -> ImageFont.FreeTypeFont:
    """A font shipped with matplotlib, scaled so that an H is ``cap_height`` tall."""
    from matplotlib import get_data_path

    path = str(Path(get_data_path(), "fonts", "ttf", f"{font}.ttf"))
    _, top, _, bottom = ImageFont.truetype(path, 100).getbbox("H")
    return ImageFont.truetype(path, round(100 * cap_height / (bottom - top)))


def thinned(shapes: np.ndarray) -> np.ndarray:
    """Thin shapes, bool (N, H, W), to lines one pixel wide; borders must be empty.

    Source: Zhang and Suen, "A fast parallel algorithm for thinning digital
    patterns", 1984, section 2.
    """
    shapes = shapes.copy()
    inked = shapes.reshape(-1)
    width = shapes.shape[2]
    # clockwise from the north
    ring = np.array([-width, 1 - width, 1, 1 + width, width, width - 1, -1, -1 - width])
    while True:
        before = int(inked.sum())
        for first in (True, False):
            place = np.flatnonzero(inked)
            around = inked[place + ring[:, None]]
            inked[place[_removable(around, first)]] = False
        if int(inked.sum()) == before:
            return shapes


def _removable(around: np.ndarray, first: bool) -> np.ndarray:
    """Whether a half-step removes each pixel, given its neighbours, bool (8, P)."""
    count = around.sum(axis=0)
    rises = (~around & np.roll(around, -1, axis=0)).sum(axis=0)
    north, east, south, west = around[::2]
    if first:
        edge = ~(north & east & south) & ~(east & south & west)
    else:
        edge = ~(north & east & west) & ~(north & south & west)
    return (count >= 2) & (count <= 6) & (rises == 1) & edge
