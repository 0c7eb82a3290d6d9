"""A stand-in for FEMNIST: 62 classes of characters drawn by 100 synthetic writers."""

from __future__ import annotations

import numpy as np

from fedlab_support.data import DomainData
from fedlab_support.data.prepared import CHARACTERS

from . import handwriting

SEED = 20240
NUM_WRITERS = 100


def characters() -> DomainData:
    """Draw the set: about 12,800 images of 28x28 pixels; each writer is an owner.

    No image is real. Each writer is a ``Hand`` that writes the centre lines of fonts
    that matplotlib ships. Writers have 40 to 300 images, about half of them digits; a
    tenth of each writer's images is for testing. Labels are in LEAF's order: 0-9, A-Z,
    a-z.
    """
    streams = np.random.SeedSequence(SEED).spawn(NUM_WRITERS)
    parts = [_writer(np.random.default_rng(stream)) for stream in streams]
    images, labels, is_test = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    owner = np.repeat(np.arange(NUM_WRITERS), [len(part[1]) for part in parts])
    return DomainData(
        name="characters",
        images=images[:, None],
        labels=labels,
        domain=np.zeros_like(labels),
        owner=owner,
        is_test=is_test,
        class_names=CHARACTERS,
        domain_names=("characters",),
        owner_names=tuple(f"writer_{w:03d}" for w in range(NUM_WRITERS)),
        source="drawn by this package from matplotlib's fonts, a stand-in for FEMNIST",
    )


def _writer(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images, labels and test marks of one new writer."""
    hand = handwriting.make_hand(rng)
    size = int(np.clip(rng.lognormal(np.log(118), 0.4), 40, 300))
    digit_share = rng.beta(20, 16)
    letters = rng.gamma(4.0, size=52)
    weights = np.concatenate(
        [np.full(10, digit_share / 10), (1 - digit_share) * letters / letters.sum()]
    )
    labels = rng.choice(62, size=size, p=weights)
    is_test = np.zeros(size, dtype=bool)
    is_test[rng.permutation(size)[: round(size / 10)]] = True
    return handwriting.write(hand, labels, rng), labels, is_test
