"""A tiny data set for tests: unequal owners, and one that lacks a class."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedlab_support.core.rng import Stream
from fedlab_support.data import DomainData


def tiny_data(
    num: int = 60,
    classes: int = 4,
    domains: int = 2,
    owners: int = 5,
    size: int = 8,
    seed: int = 0,
    *,
    channels: int = 1,
    test_share: float = 0.2,
) -> DomainData:
    """Noisy bars whose row tells the class and whose brightness tells the domain.

    Owner k holds about k + 1 times as many samples as owner 0, which has none of class
    0; owner k belongs to domain k % domains. Every class can be trained on.
    """
    rng = np.random.default_rng(seed)
    cuts = np.cumsum(np.arange(1, owners + 1)) * num // (owners * (owners + 1) // 2)
    owner = np.searchsorted(cuts, np.arange(num), side="right")
    labels = np.arange(num) % classes
    labels[(owner == 0) & (labels == 0)] = 1 % classes
    mixed = rng.permutation(num)
    owner, labels = owner[mixed], labels[mixed]
    is_test = np.zeros(num, dtype=bool)
    is_test[rng.permutation(num)[: int(num * test_share)]] = True
    images = rng.integers(0, 60, (num, channels, size, size))
    height = max(1, size // classes)
    for i, label in enumerate(labels):
        row = label * height % size
        images[i, :, row : row + height] += 120
    images += 20 * (owner % domains)[:, None, None, None]
    return DomainData(
        name="tiny",
        images=images.astype(np.uint8),
        labels=labels,
        domain=owner % domains,
        owner=owner,
        is_test=is_test,
        class_names=tuple(f"class {i}" for i in range(classes)),
        domain_names=tuple(f"domain {i}" for i in range(domains)),
        owner_names=tuple(f"owner {i}" for i in range(owners)),
        mean=tuple(0.3 + 0.1 * c for c in range(channels)),
        std=tuple(0.2 + 0.05 * c for c in range(channels)),
        source="drawn by a test",
    )


def tiny_masks(num: int = 60, size: int = 8, **settings) -> DomainData:
    """Pictures of :func:`tiny_data` whose mask is a bright block in each of them.

    Blocks differ in place and size; in every seventh picture there is none.
    """
    data = tiny_data(num, size=size, **settings)
    rng, images = np.random.default_rng(num), data.images // 2
    masks = np.zeros((num, size, size), np.uint8)
    for i in range(num):
        top, left = rng.integers(0, size - 3, 2)
        height, width = rng.integers(2, size // 2 + 1, 2)
        masks[i, top : top + height, left : left + width] = i % 7 > 0
    images += 70 * masks[:, None]
    names = {"name": "tiny masks", "class_names": ("ground", "block")}
    return replace(data, images=images, labels=masks, task="segmentation", **names)


def a_stream(seed: int = 0) -> Stream:
    """A stream whose generator has the given seed, whatever the run."""
    stream = Stream(0, "method")
    stream.generator = torch.Generator().manual_seed(seed)
    return stream
