"""The digits of scikit-learn as a data set of the course."""

from __future__ import annotations

import numpy as np
from sklearn.model_selection import train_test_split

from fedlab_support.data import DomainData

from .scans import scans

SEED = 20240


def digits() -> DomainData:
    """The 1,797 real handwritten digits that scikit-learn ships, at 28x28 pixels.

    Enlarged to 20x20 in the middle of the image, as in MNIST. A fifth of each class is
    for testing, drawn with a fixed seed. One domain; the writers are unknown, so there
    is one owner.

    Source: see ``scans.scans``.
    """
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
