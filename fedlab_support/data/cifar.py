"""CIFAR-10: ten kinds of things, 32x32 pixels in colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .domain_data import DomainData
from .reading import Arrays, both_parts, read_split, resize

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
    images, labels, is_test, note = read_split(paths[0])
    return DomainData(
        name="cifar10",
        images=resize(images, size),
        labels=labels,
        domain=np.zeros_like(labels),
        owner=np.zeros_like(labels),
        is_test=is_test,
        class_names=CLASSES,
        domain_names=("cifar10",),
        owner_names=("cifar10",),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        source=f"CIFAR-10 (Krizhevsky, 2009), {note}",
    )


def from_torchvision(folder: Path) -> Arrays:
    """The official batches in ``folder/cifar-10-batches-py``, read by torchvision."""
    from ..vision import import_torchvision

    kind = import_torchvision().datasets.CIFAR10
    return both_parts(lambda train: kind(str(folder), train=train, download=True))
