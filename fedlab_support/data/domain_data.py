"""One data set: images, what they show, where they come from and whose they are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class DomainData:
    """Images with a class, a domain and an owner each.

    A client of a federation is an array of positions into this table; no image is
    ever copied per client.

    images:     uint8 (N, C, H, W), light ink on dark ground for written characters.
    labels:     int (N,), position in ``class_names``; for the task "segmentation" a
                mask of every image, uint8 (N, H, W), 0 ground and 1 foreground.
    domain:     int (N,), position in ``domain_names``: where the look comes from.
    owner:      int (N,), position in ``owner_names``: writer, site or camera.
    is_test:    bool (N,), True for samples that no client may train on.
    mean, std:  per channel, in [0, 1] units; a batch is normalised to ``(images / 255 -
                mean) / std``.
    task:       names the loss and the metric; see ``core.metrics.task``.
    source:     one sentence on where the images come from.

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
                f"{self.images.dtype} of shape {self.images.shape}; grey images need "
                "a channel axis of length 1"
            )
        (num_examples, channels), size = self.images.shape[:2], self.images.shape[2:]
        if self.has_masks:
            self._check_masks()
        for field, names, each in (
            ("labels", self.class_names, size if self.has_masks else ()),
            ("domain", self.domain_names, ()),
            ("owner", self.owner_names, ()),
            ("is_test", (False, True), ()),
        ):
            self._check_column(field, (num_examples, *each), len(names))
        if len(self.mean) != channels or len(self.std) != channels:
            raise ValueError(
                f"{self.name}: mean and std need one value per channel ({channels}), "
                f"found {len(self.mean)} and {len(self.std)}"
            )

    def _check_masks(self) -> None:
        shape = (len(self.images), *self.images.shape[2:])
        if self.labels.shape != shape or self.labels.dtype != np.uint8:
            raise ValueError(
                f"{self.name}: masks must be uint8 of the images' shape {shape}, "
                f"found {self.labels.dtype} of shape {self.labels.shape}; images and "
                "masks must be cut and resized alike, masks by the nearest pixel"
            )
        if len(self.class_names) != 2:
            raise ValueError(
                f"{self.name}: masks tell a foreground from the ground, expected two "
                f"class names, found {self.class_names}; merge the classes"
            )

    def _check_column(self, field: str, shape: tuple, num_names: int) -> None:
        values = getattr(self, field)
        if values.shape != shape:
            raise ValueError(
                f"{self.name}: {field} must have one entry per image ({shape[0]}), "
                f"found shape {values.shape}"
            )
        if values.size and (values.min() < 0 or values.max() >= num_names):
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
        """Shape of one image, (C, H, W)."""
        return tuple(self.images.shape[1:])

    @property
    def num_classes(self) -> int:
        """Number of classes, M."""
        return len(self.class_names)

    @property
    def has_masks(self) -> bool:
        """Whether ``labels`` are masks."""
        return self.task == "segmentation"

    @property
    def unseen_domains(self) -> tuple[str, ...]:
        """Domains of which all samples are for testing: nobody can train on them."""
        trained = np.bincount(self.domain, ~self.is_test, len(self.domain_names))
        names = zip(self.domain_names, trained, strict=True)
        return tuple(name for name, num in names if num == 0)

    def classes_for(self, purpose: str) -> np.ndarray:
        """Each image's class, int (N,); for masks ValueError, naming ``purpose``."""
        if self.has_masks:
            raise ValueError(
                f"{purpose} needs one class per image, found a mask of every image "
                f"in {self.name}; iid, by_owner and by_domain deal images with masks"
            )
        return self.labels

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
