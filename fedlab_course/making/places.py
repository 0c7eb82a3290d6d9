"""Random landscapes with hills, trees, bushes, rocks and water."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from .drawn import as_bytes

SIDE, FINE = 32, 4  # landscapes are drawn FINE times as large
LARGE = SIDE * FINE


@dataclass(frozen=True)
class Habitat:
    """A kind of landscape and the animals that live there; colours are in [0, 1].

    horizon: smallest and largest distance from the top, as shares of the height.
    trunks, bushes, rocks: largest number of each.
    water: share of places with water.
    """

    sky: tuple[float, float, float]
    ground: tuple[float, float, float]
    leaf: tuple[float, float, float]
    horizon: tuple[float, float]
    trunks: int
    bushes: int
    rocks: int
    water: float
    animals: tuple[str, ...]


HABITATS = {
    "savanna": Habitat(
        (0.72, 0.82, 0.9), (0.7, 0.6, 0.36), (0.4, 0.44, 0.2), (0.2, 0.42),
        2, 4, 1, 0.1,
        ("antelope", "zebra", "giraffe", "guineafowl", "elephant", "hare", "leopard"),
    ),
    "forest": Habitat(
        (0.3, 0.42, 0.24), (0.44, 0.36, 0.25), (0.27, 0.44, 0.18), (0.3, 0.5),
        7, 6, 1, 0.1,
        ("boar", "monkey", "antelope", "porcupine", "leopard", "guineafowl",
         "tortoise"),
    ),
    "rocks": Habitat(
        (0.8, 0.84, 0.88), (0.74, 0.56, 0.42), (0.45, 0.42, 0.25), (0.15, 0.4),
        0, 3, 7, 0.0,
        ("monkey", "hare", "porcupine", "tortoise", "leopard", "antelope"),
    ),
    "water hole": Habitat(
        (0.7, 0.8, 0.88), (0.5, 0.44, 0.34), (0.3, 0.4, 0.18), (0.18, 0.36),
        2, 3, 2, 1.0,
        ("elephant", "zebra", "boar", "antelope", "guineafowl", "giraffe", "monkey"),
    ),
    "meadow": Habitat(
        (0.66, 0.78, 0.84), (0.42, 0.52, 0.24), (0.26, 0.42, 0.14), (0.2, 0.4),
        3, 5, 1, 0.2,
        ("boar", "hare", "antelope", "porcupine", "tortoise", "guineafowl"),
    ),
}  # fmt: skip

Pen = ImageDraw.ImageDraw


def smooth_noise(rng, width: tuple[float, float], side: int) -> np.ndarray:
    """A smooth random field (side, side) with mean about 0 and deviation 1."""
    from scipy.ndimage import gaussian_filter

    values = gaussian_filter(rng.standard_normal((side, side)), width, mode="wrap")
    return values / values.std()


def small(sheet: Image.Image) -> np.ndarray:
    """Reduce a sheet of ``LARGE`` pixels to (channels, SIDE, SIDE) in [0, 1]."""
    return np.asarray(sheet.reduce(FINE)).transpose(2, 0, 1) / 255


def scene(habitat: Habitat, horizon: float, rng: np.random.Generator) -> np.ndarray:
    """A place on an overcast day, (3, SIDE, SIDE) in [0, 1].

    horizon: distance from the top, in pixels.
    """
    line, tint = round(horizon * FINE), rng.normal(0, 0.045) + rng.normal(0, 0.025, 3)
    row = np.arange(LARGE)[:, None, None]
    depth = np.clip((row - line) / (LARGE - line), 0, 1)
    grass = 0.06 * smooth_noise(rng, (5, 1.2), LARGE)
    grass += 0.07 * smooth_noise(rng, (4, 14), LARGE)
    ground = (np.array(habitat.ground) + tint) * (1.12 - 0.3 * depth)
    ground = ground * (1 + grass[:, :, None])
    hills = line - 10 + 5 * smooth_noise(rng, (1, 18), LARGE)[0]
    leaves = 0.22 * smooth_noise(rng, (2.5, 2.5), LARGE)[:, :, None]
    wood = (np.array(habitat.leaf) + tint) * (0.95 + leaves)
    sky = np.array(habitat.sky) * (1 - 0.12 * row / LARGE)
    if habitat.trunks > 4:  # seen through a canopy
        sky = sky * (1 + 1.6 * leaves)
    picture = np.where(row < hills[:, None], sky, np.where(row < line, wood, ground))
    sheet = Image.fromarray(as_bytes(picture))
    _furnish(ImageDraw.Draw(sheet), habitat, line, rng)
    return small(sheet)


def foreground(habitat: Habitat, rng) -> tuple[np.ndarray, np.ndarray]:
    """Grass and a branch in front of the camera: colours (3, H, W), opacity (H, W)."""
    sheet = Image.new("RGBA", (LARGE, LARGE))
    pen, leaf = ImageDraw.Draw(sheet), np.array(habitat.leaf)
    for _ in range(rng.integers(0, 26)):
        x, high = rng.uniform(0, LARGE), rng.uniform(0.05, 0.2) * LARGE
        tip = (x + rng.normal(0, 0.05) * LARGE, LARGE - high)
        colour = _paint(0.8 * leaf + 0.1 * np.array(habitat.ground), rng, 0.25)
        pen.line([(x, LARGE), tip], fill=colour, width=int(rng.integers(2, 5)))
    if rng.random() < 0.3:
        side, reach = rng.integers(2), rng.uniform(0.25, 0.5)
        for _ in range(10):
            x, y = abs(side - reach * rng.random()), rng.uniform(0, 0.22)
            radius = LARGE * rng.uniform(0.03, 0.07)
            fill = _paint(0.7 * leaf, rng, 0.2)
            pen.circle((LARGE * x, LARGE * y), radius, fill=fill)
    layer = small(sheet)
    return layer[:3], layer[3]


def _paint(colour, rng, spread: float = 0.1) -> tuple[int, ...]:
    """A colour in [0, 1] with random brightness, as RGBA bytes for Pillow."""
    tone = np.array(colour) * np.exp(rng.normal(0, spread))
    return (*(int(v) for v in 255 * tone.clip(0, 1)), 255)


def _furnish(pen: Pen, habitat: Habitat, line: int, rng) -> None:
    """Draw water, then rocks, bushes and trunks from back to front."""
    if rng.random() < habitat.water:
        _water(pen, line, rng)
    most = {_rock: habitat.rocks, _bush: habitat.bushes, _trunk: habitat.trunks}
    things = [
        thing for thing, n in most.items() for _ in range(rng.integers(n // 2, n + 1))
    ]
    near = np.sort(rng.beta(0.8, 1.6, len(things)))
    for i, close in zip(rng.permutation(len(things)), near, strict=True):
        foot = (rng.uniform(0, LARGE), line + close * 0.6 * (LARGE - line))
        things[i](pen, foot, (0.35 + close) * LARGE, habitat, rng)


def _water(pen: Pen, line: int, rng) -> None:
    x, y = rng.uniform(0.2, 0.8) * LARGE, line + rng.uniform(0.12, 0.3) * LARGE
    wide, high = rng.uniform(0.3, 0.6) * LARGE, rng.uniform(0.06, 0.12) * LARGE
    for grow, tone in ((1.15, (0.32, 0.27, 0.2)), (1.0, (0.5, 0.58, 0.62))):
        box = (x - grow * wide, y - grow * high, x + grow * wide, y + grow * high)
        pen.ellipse(box, fill=_paint(tone, rng))


def _trunk(pen: Pen, foot, size: float, habitat: Habitat, rng) -> None:
    (x, y), wide = foot, size * rng.uniform(0.05, 0.11)
    top = x + rng.normal(0, 0.1) * size
    left = [(x - wide, y), (top - 0.7 * wide, 0)]
    bark = _paint(0.45 * np.array(habitat.ground), rng)
    pen.polygon([*left, (top + 0.7 * wide, 0), (x + wide, y)], fill=bark)
    pen.line(left, fill=_paint((0.1, 0.08, 0.06), rng), width=2)


def _rock(pen: Pen, foot, size: float, habitat: Habitat, rng) -> None:
    """A rock with a light and a dark side."""
    (x, y), wide = foot, size * rng.uniform(0.12, 0.25)
    high, grey = wide * rng.uniform(0.5, 0.9), np.array((0.5, 0.46, 0.42))
    peak = (x + rng.uniform(-0.4, 0.4) * wide, y - high)
    left, right = (x - wide, y), (x + wide, y)
    lit = [left, (x - 0.5 * wide, y - 0.8 * high), peak, right]
    dark = [peak, (x + 0.7 * wide, y - 0.5 * high), right, (x, y)]
    pen.polygon(lit, fill=_paint(grey, rng))
    pen.polygon(dark, fill=_paint(0.65 * grey, rng))


def _bush(pen: Pen, foot, size: float, habitat: Habitat, rng) -> None:
    (x, y), wide = foot, size * rng.uniform(0.12, 0.25)
    for _ in range(9):
        across, up = rng.uniform(-1, 1) * wide, rng.uniform(0, 0.8) * wide
        tone = np.array(habitat.leaf) * rng.uniform(0.6, 1.25)
        radius = wide * rng.uniform(0.25, 0.5)
        pen.circle((x + across, y - up), radius, fill=_paint(tone, rng))
