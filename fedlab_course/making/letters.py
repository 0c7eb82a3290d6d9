"""Drawn letters in many styles, to pretrain a network on.

They share nothing with the built-in data sets: no digit, no photograph, no writer,
paper or pen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedlab_support.data import DomainData
from fedlab_support.data.prepared import CHARACTERS

from . import handwriting
from .drawn import as_bytes
from .handwriting import SIDE

SEED = 20246
LETTERS = CHARACTERS[10:]
TEST_SHARE = 0.1  # of the writers


def letters(hands: int, is_plain: bool = False) -> DomainData:
    """Draw 52 letters, twice by each writer: (N, 3, 28, 28), N = 104 · hands.

    hands: number of writers.
    is_plain: white on black or black on white. Otherwise each image has its own
    background (plain, shaded or mottled) and an ink that contrasts with it or inverts
    it, and may be blurred, coarse, noisy or unevenly lit.
    """
    labels = np.tile(np.arange(len(LETTERS)), 2)
    look = _in_black_and_white if is_plain else _in_many_looks
    rngs = [np.random.default_rng((SEED, is_plain, hand)) for hand in range(hands)]
    images = np.concatenate([_page(labels, look, rng) for rng in rngs])
    hand = np.repeat(np.arange(hands), len(labels))
    return DomainData(
        name="letters",
        images=images,
        labels=np.tile(labels, hands),
        domain=np.zeros_like(hand),
        owner=hand,
        is_test=hand >= round((1 - TEST_SHARE) * hands),
        class_names=LETTERS,
        domain_names=("letters",),
        owner_names=tuple(f"hand_{k}" for k in range(hands)),
        source="drawn by this package from matplotlib's fonts",
    )


def _page(labels: np.ndarray, look: Callable, rng: np.random.Generator) -> np.ndarray:
    """Letters of one writer, each in its own style: uint8 (N, 3, 28, 28)."""
    hand = handwriting.make_hand(rng)
    ink = handwriting.write(hand, labels + 10, rng)[:, None] / 255
    picture = np.broadcast_to(look(ink, rng), (len(ink), 3, SIDE, SIDE))
    return as_bytes(picture)


def _in_black_and_white(ink: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.abs(rng.integers(2, size=(len(ink), 1, 1, 1)) - ink)


def _in_many_looks(ink: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    ground = _ground(len(ink), rng)
    is_inverting = rng.random((len(ink), 1, 1, 1)) < 0.25
    painted = ground + ink * (_ink_colour(ground, rng) - ground)
    return _seen(np.where(is_inverting, np.abs(ground - ink), painted), rng)


def _ground(count: int, rng: np.random.Generator) -> np.ndarray:
    """Plain, shaded or mottled backgrounds, (N, 3, 28, 28) in [0, 1]."""
    brightness = rng.random((count, 1, 1, 1))
    colour = brightness + 0.2 * rng.normal(size=(count, 3, 1, 1))
    fine = rng.choice([2, 3, 5, 9, 14], count)
    roughness = (
        0.3 * rng.random((count, 1, 1, 1)) * (rng.random((count, 1, 1, 1)) < 0.6)
    )
    texture = np.stack([_mottled(side, rng) for side in fine])
    return (colour + roughness * texture).clip(0, 1)


def _mottled(side: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth noise (3, 28, 28), interpolated from ``side`` values per row."""
    from scipy.ndimage import zoom

    small = rng.normal(size=(1, side, side)) + 0.5 * rng.normal(size=(3, side, side))
    return zoom(small, (1, SIDE / side, SIDE / side), order=1)


def _ink_colour(ground: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Colours that contrast with the mean of the background, (N, 3, 1, 1)."""
    mean = ground.mean(axis=(1, 2, 3), keepdims=True)
    away = rng.uniform(0.25, 0.8, mean.shape) * np.where(mean > 0.5, -1, 1)
    return (mean + away + 0.15 * rng.normal(size=(len(mean), 3, 1, 1))).clip(0, 1)


def _seen(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Make some images coarse and some blurred, and all noisy and unevenly lit."""
    from scipy.ndimage import gaussian_filter

    count = len(picture)
    places = np.arange(SIDE)
    for number in np.flatnonzero(rng.random(count) < 0.25):
        side = rng.integers(9, 15)
        near = (places * side // SIDE * SIDE + SIDE // 2) // side
        soft = gaussian_filter(picture[number], (0, 0.8, 0.8))
        picture[number] = soft[:, near[:, None], near]
    for number in np.flatnonzero(rng.random(count) < 0.3):
        width = rng.uniform(0.3, 0.9)
        picture[number] = gaussian_filter(picture[number], (0, width, width))
    along, angle = np.linspace(-1, 1, SIDE), rng.uniform(0, 2 * np.pi, (count, 1, 1))
    lit = np.cos(angle) * along + np.sin(angle) * along[:, None]
    light = 1 + rng.uniform(0, 0.3, (count, 1, 1)) * lit
    noise = rng.uniform(0, 0.06, (count, 1, 1, 1)) * rng.normal(size=picture.shape)
    return picture * light[:, None] + noise
