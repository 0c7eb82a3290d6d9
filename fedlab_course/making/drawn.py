"""What the sets that this package draws have in common: bytes, owners, looks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedlab_support.data.domain_data import DomainData


def as_bytes(picture: np.ndarray) -> np.ndarray:
    """Values in [0, 1] as uint8; what lies outside is cut."""
    return np.rint(255 * picture.clip(0, 1)).astype(np.uint8)


def owned(
    parts: Sequence[np.ndarray],
    labels: np.ndarray,
    looks: Sequence[str],
    test_owners: int,
    **about: object,
) -> DomainData:
    """A set in several looks, in colour, with equally many owners of each.

    - ``parts``: the pictures of one owner after the other, uint8 (N, 3, H, W) each; all
      owners of the first look, then those of the second, and so on.
    - ``labels``: what every owner draws, (N,).
    - ``test_owners``: how many of each look, the last ones, are for testing.
    - ``about``: name, class names and source.
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
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        **about,
    )
