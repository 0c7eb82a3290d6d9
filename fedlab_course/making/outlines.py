"""Outlines of objects: ovals, limbs, curves, and the parts made of them.

The unit of length is arbitrary; objects are scaled when they are painted. x points
right, y down.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np

MATERIALS = ("nothing", "main", "shade", "second", "third", "dark", "light", "mark")
"""Materials of parts.

``shade`` is ``main`` away from the light; ``mark`` has the colour of ``second`` and no
outline.
"""


class Part(NamedTuple):
    """An area of one material, bounded by a closed ``outline`` (P, 2)."""

    material: str
    outline: np.ndarray


ALONG = np.linspace(0, 1, 12)  # steps along a limb
BOW = np.linspace(0, np.pi, 6)[1:-1, None]  # steps around the ends of a limb
RING = np.linspace(0, 2 * np.pi, 20, endpoint=False)[:, None]

Object = list[Part]
Point = tuple[float, float]


def oval(x: float, y: float, across: float, along: float, turn: float = 0.0):
    """An ellipse given by its centre, radii and rotation angle, (P, 2)."""
    cos, sin = np.cos(turn), np.sin(turn)
    first, second = (cos * across, sin * across), (-sin * along, cos * along)
    return np.cos(RING) * first + np.sin(RING) * second + (x, y)


def limb(points: list[Point], widths: list[float]) -> np.ndarray:
    """A band with round ends along a Bézier curve, (P, 2).

    points: control points.
    widths: full widths at equal steps along the curve.
    """
    shares, changes = _bezier(len(points) - 1)
    line, way = shares @ np.array(points), changes @ np.array(points)
    way /= np.sqrt((way**2).sum(axis=1, keepdims=True)) + 1e-9
    half = np.interp(ALONG, np.linspace(0, 1, len(widths)), widths)[:, None] / 2
    side = half * way[:, ::-1] * (1, -1)
    cos, sin = np.cos(BOW), np.sin(BOW)
    end = line[-1] + cos * side[-1] + sin * half[-1] * way[-1]
    start = line[0] - cos * side[0] - sin * half[0] * way[0]
    return np.concatenate([line + side, end, (line - side)[::-1], start])


@lru_cache
def _bezier(last: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the control points in the curve and its derivative, (T, last + 1)."""
    # B(t) = Σ_i C(n, i) t^i (1 - t)^(n - i) P_i
    terms = [
        comb(last, i) * ALONG**i * (1 - ALONG) ** (last - i) for i in range(last + 1)
    ]
    shares = np.stack(terms, axis=1)
    return shares, np.gradient(shares, axis=0)


def smooth(points: list[Point]) -> np.ndarray:
    """A closed Catmull-Rom curve through the points, (P, 2)."""
    p = np.array(points)[:, None]
    before, after, later = (np.roll(p, shift, axis=0) for shift in (1, -1, -2))
    t = np.linspace(0, 1, 6, endpoint=False)[:, None]
    curve = 2 * p + (after - before) * t
    curve = curve + (2 * before - 5 * p + 4 * after - later) * t**2
    curve = curve + (3 * p - before - 3 * after + later) * t**3
    return curve.reshape(-1, 2) / 2


def corners(*points: Point) -> np.ndarray:
    """A polygon."""
    return np.array(points, dtype=float)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """An upright rectangle."""
    return corners((left, top), (right, top), (right, bottom), (left, bottom))
