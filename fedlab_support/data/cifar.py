"""CIFAR-10: colour images of ten classes, 32x32 pixels."""

from __future__ import annotations

from pathlib import Path

from .domain_data import DomainData
from .reading import read_one_domain

CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def read(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """CIFAR-10 from its prepared file: uint8 (N, 3, 32, 32), one domain, one owner.

    Raises ValueError for a damaged file or a label outside 0…9.
    Source: Krizhevsky, "Learning multiple layers of features from tiny images", 2009.
    """
    origin = "CIFAR-10 (Krizhevsky, 2009)"
    return read_one_domain(paths[0], size, "cifar10", CLASSES, origin)
