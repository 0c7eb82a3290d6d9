"""Helpers that the painters of several data sets share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlab_support.data.domain_data import DomainData


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Convert [0, 1] to uint8; values outside are clipped."""
    return np.rint(255 * picture.clip(0, 1)).astype(np.uint8)


def owned(
    parts: Sequence[np.ndarray],
    labels: np.ndarray,
    looks: Sequence[str],
    test_owners: int,
    **about: object,
) -> DomainData:
    """Assemble a data set whose domains have the same number of owners.

    parts: images of each owner, uint8 (N, 3, H, W); the owners of the first domain
    come first, then those of the second, and so on.
    labels: classes of an owner's images, (N,), the same for every owner.
    looks: names of the domains.
    test_owners: number of owners per domain, the last ones, that are for testing.
    about: ``name``, ``class_names`` and ``source`` of the data set.
    """
    owners = len(parts) // len(looks)
    owner = np.repeat(np.arange(len(parts)), len(labels))
    return DomainData(
        images=np.concatenate(parts),
        labels=np.tile(labels, len(parts)),
        domain=owner // owners,
        owner=owner,
        is_test=owner % owners >= owners - test_owners,
        domain_names=tuple(looks),
        owner_names=tuple(f"{name}_{k}" for name in looks for k in range(owners)),
        **about,
    )
