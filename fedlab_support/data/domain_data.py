"""One data set: pictures, what they show, where they come from and whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class DomainData:
    """Pictures with a class, a domain and an owner each.

    A client of a federation is an array of positions into this table; no picture is
    ever copied per client.

    - ``images``: uint8 (N, C, H, W), light ink on dark ground for written characters.
    - ``labels``: int (N,), position in ``class_names``.
    - ``domain``: int (N,), position in ``domain_names``: where the look comes from.
    - ``owner``: int (N,), position in ``owner_names``: writer, site or camera.
    - ``is_test``: bool (N,), True for samples that no client may train on.
    - ``mean``, ``std``: per channel, in [0, 1] units; a batch is normalised to
      ``(images / 255 - mean) / std``.
    - ``task``: names the loss and the metric (:func:`fedlab_support.metrics.task`).
    - ``source``: one sentence on where the pictures come from.

    Raises ``ValueError`` when shapes disagree or a label, domain or owner has no name.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    domain: np.ndarray
    owner: np.ndarray
    is_test: np.ndarray
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    owner_names: tuple[str, ...]
    task: str = "classification"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    source: str = ""

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), found "
                f"{self.images.dtype} of shape {self.images.shape}; grey pictures need "
                "a channel axis of length 1"
            )
        num_examples, channels = self.images.shape[:2]
        for field, names in (
            ("labels", self.class_names),
            ("domain", self.domain_names),
            ("owner", self.owner_names),
            ("is_test", (False, True)),
        ):
            self._check_column(field, num_examples, len(names))
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(
                f"{self.name}: mean and std need one value per channel ({channels}), "
                f"found {len(self.mean)} and {len(self.std)}"
            )

    def _check_column(self, field: str, num_examples: int, num_names: int) -> None:
        values = getattr(self, field)
        if values.shape != (num_examples,):
            raise ValueError(
                f"{self.name}: {field} must have one entry per image ({num_examples}), "
                f"found shape {values.shape}"
            )
        if num_examples and (values.min() < 0 or values.max() >= num_names):
            wrong = values.max() if values.max() >= num_names else values.min()
            raise ValueError(
                f"{self.name}: {field} must lie in 0…{num_names - 1}, found {wrong}; "
                "lists that count from 1 need one subtracted when loading"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        c, h, w = self.image_shape
        domains, owners = len(self.domain_names), len(self.owner_names)
        return (
            f"DomainData({self.name!r}: {len(self):,} images {c}x{h}x{w}, "
            f"{self.num_classes} classes, {domains} domain{'s' * (domains != 1)}, "
            f"{owners} owner{'s' * (owners != 1)}, "
            f"{int(self.is_test.sum()):,} for testing)"
        )

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of one picture, (C, H, W)."""
        return tuple(self.images.shape[1:])

    @property
    def num_classes(self) -> int:
        """Number of classes, M."""
        return len(self.class_names)

    def select(self, index: np.ndarray) -> DomainData:
        """The same data set with only the samples at ``index`` (a copy), names kept."""
        columns = ("images", "labels", "domain", "owner", "is_test")
        return replace(self, **{c: getattr(self, c)[index] for c in columns})

    def fingerprint(self) -> str:
        """A short hash of all arrays and the normalisation: the same for equal data."""
        digest = hashlib.sha256()
        for values in (self.images, self.labels, self.domain, self.owner, self.is_test):
            digest.update(str((values.shape, values.dtype)).encode())
            digest.update(np.ascontiguousarray(values))
        digest.update(str((self.mean, self.std, self.task)).encode())
        return digest.hexdigest()[:16]
