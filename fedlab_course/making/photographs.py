"""Crops of the two photographs that scikit-learn ships."""

from __future__ import annotations

from functools import lru_cache

import numpy as np


def piece(rng: np.random.Generator, side: int, start: float, stop: float) -> np.ndarray:
    """A random square crop, float32 (3, side, side) in [0, 1].

    start, stop: part of the width to crop from, as shares in [0, 1].
    """
    photograph = photographs()[rng.integers(2)]
    height, width, _ = photograph.shape
    top = rng.integers(height - side + 1)
    left = rng.integers(int(start * width), int(stop * width) - side + 1)
    cut = photograph[top : top + side, left : left + side]
    return cut.transpose(2, 0, 1) / np.float32(255)


@lru_cache(maxsize=1)
def photographs() -> list[np.ndarray]:
    """A temple and a flower, uint8 (H, W, 3) each."""
    from sklearn.datasets import load_sample_images

    return load_sample_images().images
