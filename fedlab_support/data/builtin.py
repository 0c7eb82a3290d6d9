"""Data sets that are always there: real digits, drawn characters and more.

Offline and deterministic; made on first use, kept for the life of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from . import handwriting
from .camera_sites import camera_sites
from .digit_domains import digit_domains
from .domain_data import DomainData
from .phantoms import prostate_phantoms
from .picture_styles import picture_styles
from .scans import scans

SEED = 20240
NUM_WRITERS = 100


@lru_cache(maxsize=1)
def digits() -> DomainData:
    """The 1,797 real handwritten digits that scikit-learn ships, at 28x28 pixels.

    Enlarged to 20x20 in the middle of the picture, as MNIST has them. A fifth of each
    class is for testing, drawn with a fixed seed. One domain; the writers are not
    known, so there is one owner.

    Source: :func:`fedlab_support.data.scans.scans`.
    """
    from sklearn.model_selection import train_test_split

    images, labels = scans()
    _, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, random_state=SEED, stratify=labels
    )
    is_test = np.zeros(len(labels), dtype=bool)
    is_test[test] = True
    return DomainData(
        name="digits",
        images=images,
        labels=labels,
        domain=np.zeros_like(labels),
        owner=np.zeros_like(labels),
        is_test=is_test,
        class_names=tuple("0123456789"),
        domain_names=("digits",),
        owner_names=("unknown",),
        source="1,797 real handwritten digits from scikit-learn, enlarged to 28x28",
    )


@lru_cache(maxsize=1)
def characters() -> DomainData:
    """A stand-in for FEMNIST: 62 classes drawn by 100 writers, 28x28 pixels.

    No picture is real. Centre lines of the fonts that matplotlib ships are written by
    100 :class:`~fedlab_support.data.handwriting.Hand` s, one owner each. Sizes are
    unequal (40 to 300 pictures), about half the pictures are digits, and a tenth of
    each writer's is for testing. The label order is LEAF's: 0-9, A-Z, a-z.
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
        class_names=handwriting.CHARACTERS,
        domain_names=("characters",),
        owner_names=tuple(f"writer_{w:03d}" for w in range(NUM_WRITERS)),
        source="drawn by this package from matplotlib's fonts, a stand-in for FEMNIST",
    )


def _writer(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pictures, labels and test marks of one new writer."""
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


BUILT_IN: dict[str, tuple[Callable[[], DomainData], str]] = {
    "digits": (digits, "real handwritten digits, one domain (scikit-learn)"),
    "characters": (
        characters,
        "drawn characters of 100 writers, stands in for FEMNIST",
    ),
    "digit_domains": (digit_domains, "digits in five looks, stands in for Digit-Five"),
    "picture_styles": (
        picture_styles,
        "seven things as photo, art, cartoon and sketch, stands in for PACS",
    ),
    "prostate_phantoms": (
        prostate_phantoms,
        "drawn organs with masks at six sites, stands in for ProstateMRI",
    ),
    "camera_sites": (
        camera_sites,
        "drawn animals at fifty cameras, stands in for iWildCam",
    ),
}
"""Name, maker and one line about every built-in set."""
