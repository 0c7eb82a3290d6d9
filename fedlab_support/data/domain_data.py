"""A data set: images or other inputs with their labels, domains and owners."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from ..core.checks import Range
from ..core.metrics import TASKS
from .images import Images


@dataclass(frozen=True, eq=False)
class DomainData:
    """Images or other inputs, each with a label, a domain and an owner.

    A client of a federation is an array of positions into this table; images are never
    copied per client.

    images:     uint8 (N, C, H, W); handwritten characters are light on dark. Those of
                published sets are ``Images``, which lie in a file: index them, such as
                ``images[rows]`` or ``images[:]``, to read arrays. Or inputs of any
                other kind and shape, float32 or int64 (N, …): features, series,
                volumes, token indices.
    labels:     int (N,), position in ``class_names``; for the task "segmentation" one
                mask per image, uint8 (N, H, W), 0 background and 1 foreground; for the
                task "regression" float32 (N, M), with the M targets' ``class_names``.
    domain:     int (N,), position in ``domain_names``: the style of the image.
    owner:      int (N,), position in ``owner_names``: writer, site or camera.
    is_test:    bool (N,), True for samples that no client may train on.
    mean, std:  per channel, or one for all, for values in [0, 1]; a batch is normalised
                to ``(images / 255 - mean) / std``, 0.5 by default. Floats of any scale
                are normalised to ``(images - mean) / std``; not at all by default.
    task:       determines the loss and the metric; see ``core.metrics.task``.
    source:     one sentence on the origin of the images.

    Raises ``ValueError`` when types or shapes disagree, a label, domain or owner has no
    name, a number is NaN or infinite, or images cannot be normalised.
    """

    name: str
    images: np.ndarray | Images
    labels: np.ndarray
    domain: np.ndarray
    owner: np.ndarray
    is_test: np.ndarray
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    owner_names: tuple[str, ...]
    task: str = "classification"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("images", "labels", "domain", "owner", "is_test"):
            kinds = (np.ndarray, Images) if field == "images" else np.ndarray
            if not isinstance(found := getattr(self, field), kinds):
                raise ValueError(
                    f"{self.name}: {field} must be a NumPy array, found "
                    f"{type(found).__name__}"
                )
        self._check_inputs()
        self._check_texts()
        if self.task == "regression":
            self._check_targets()
        else:
            if self.has_masks:
                self._check_masks()
            self._check_column("labels", len(self.class_names))
        self._check_column("domain", len(self.domain_names))
        self._check_column("owner", len(self.owner_names))
        self._check_column("is_test", 2)
        self._check_normalisation()

    def _check_inputs(self) -> None:
        images, kinds = self.images, (np.uint8, np.float32, np.int64)
        is_shaped = images.ndim == 4 if self.has_images else images.ndim >= 2
        if images.dtype not in kinds or not is_shaped or not all(self.image_shape):
            raise ValueError(
                f"{self.name}: images must be uint8 of shape (N, C, H, W), and other "
                f"inputs float32 or int64 (N, …), with at least one value each, found "
                f"{images.dtype} of shape {images.shape}; grey images need a channel "
                "axis of length 1"
            )
        if images.ndim == 4:  # floats may be anything, but squares look like images
            _, depth, height, width = images.shape
            is_image = self.has_images or depth == height
            if is_image and width in (1, 3, 4) and min(depth, height) > 4:
                raise ValueError(
                    f"{self.name}: images must be of shape (N, C, H, W), found "
                    f"{images.shape}, with channels last; use "
                    "images.transpose(0, 3, 1, 2)"
                )
        if images.dtype == np.float32:
            self._refuse_nan("images" if images.ndim == 4 else "inputs", images)

    def _refuse_nan(self, what: str, values: np.ndarray) -> None:
        is_bad = ~np.isfinite(values)
        if is_bad.any():
            first = tuple(np.argwhere(is_bad)[0].tolist())
            raise ValueError(
                f"{self.name}: {what} must be finite, found {values[first]} at "
                f"{first} and {is_bad.sum():,} such values; fill or drop them"
            )

    def _check_normalisation(self) -> None:
        channels, usual = self.images.shape[1], (0.5, 0.5)
        if not self.has_images:
            usual = (0.0, 1.0)
            if self.mean is None and self.std is None:
                return
        for field, limits, value in (
            ("mean", Range(), usual[0]),
            ("std", Range(above=0), usual[1]),
        ):
            values = getattr(self, field)
            values = (value,) if values is None else values
            if not isinstance(values, tuple):
                values = tuple(np.ravel(values))
            values = tuple(v.item() if isinstance(v, np.generic) else v for v in values)
            if len(values) == 1:
                values *= channels
            object.__setattr__(self, field, values)
            if len(values) != channels or not all(
                limits.contains(v, "float") for v in values
            ):
                raise ValueError(
                    f"{self.name}: {field} needs {limits.words('float')} for each "
                    f"channel ({channels}), found {values}"
                )

    def _check_texts(self) -> None:
        for field in ("class_names", "domain_names", "owner_names"):
            names = getattr(self, field)
            is_row = isinstance(names, tuple | list)
            if not is_row or not all(isinstance(name, str) and name for name in names):
                raise ValueError(
                    f"{self.name}: {field} must be a tuple of texts, none of them "
                    f"empty, found {names!r}"
                )
            if len(set(names)) < len(names):
                raise ValueError(
                    f"{self.name}: {field} must differ from one another, found {names}"
                )
        if self.task not in TASKS:
            raise ValueError(
                f"{self.name}: task must be one of {', '.join(map(repr, TASKS))}, "
                f"found {self.task!r}"
            )

    def _check_masks(self) -> None:
        shape = (len(self.images), *self.images.shape[2:])
        if self.labels.shape != shape or self.labels.dtype != np.uint8:
            raise ValueError(
                f"{self.name}: masks must be uint8 of the images' shape {shape}, "
                f"found {self.labels.dtype} of shape {self.labels.shape}; crop and "
                "resize images and masks alike, masks by the nearest pixel"
            )
        if len(self.class_names) != 2:
            raise ValueError(
                f"{self.name}: masks have a background and a foreground, expected two "
                f"class names, found {self.class_names}; merge the classes"
            )

    def _check_targets(self) -> None:
        shape = (len(self.images), self.num_classes)
        if self.labels.shape != shape or self.labels.dtype != np.float32:
            raise ValueError(
                f"{self.name}: the task 'regression' needs float32 labels {shape}, a "
                f"column for each of {self.class_names}, found {self.labels.dtype} of "
                f"shape {self.labels.shape}; use labels.astype('float32')[:, None]"
            )
        self._refuse_nan("labels", self.labels)
        if len(self) and not np.ptp(self.labels, 0).all():
            raise ValueError(f"{self.name}: targets must vary, found a constant one")

    def _check_column(self, field: str, num_names: int) -> None:
        values, num = getattr(self, field), len(self.images)
        is_masks = field == "labels" and self.has_masks  # their shape was checked
        if values.shape != (num,) and not is_masks:
            raise ValueError(
                f"{self.name}: {field} must have one entry per sample ({num}), found "
                f"shape {values.shape}"
            )
        kind = np.bool_ if field == "is_test" else np.integer
        if not np.issubdtype(values.dtype, kind):
            what = "True or False" if field == "is_test" else "whole numbers"
            raise ValueError(
                f"{self.name}: {field} must hold {what}, found {values.dtype}"
            )
        if values.size and (values.min() < 0 or values.max() >= num_names):
            wrong = values.max() if values.max() >= num_names else values.min()
            counts = "if the file counts from 1, subtract one when loading"
            raise ValueError(
                f"{self.name}: {field} must lie in 0…{num_names - 1}, found {wrong}; "
                + ("use (masks > 0).astype('uint8')" if is_masks else counts)
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.image_shape))
        what = "images" if self.has_images else "inputs"
        labels = "targets" if self.task == "regression" else "classes"
        domains, owners = len(self.domain_names), len(self.owner_names)
        return (
            f"DomainData({self.name!r}: {len(self):,} {what} {shape}, "
            f"{self.num_classes} {labels}, {domains} domain{'s' * (domains != 1)}, "
            f"{owners} owner{'s' * (owners != 1)}, "
            f"{int(self.is_test.sum()):,} for testing)"
        )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of an image, (C, H, W), or of another input."""
        return tuple(self.images.shape[1:])

    @property
    def num_classes(self) -> int:
        """Number of classes, or of targets of a regression, M."""
        return len(self.class_names)

    @property
    def has_images(self) -> bool:
        """Whether inputs are images, uint8 (N, C, H, W)."""
        return self.images.dtype == np.uint8

    @property
    def has_masks(self) -> bool:
        """Whether ``labels`` are masks."""
        return self.task == "segmentation"

    @property
    def unseen_domains(self) -> tuple[str, ...]:
        """Domains whose samples are all test samples, so that no client has them."""
        num_train = np.bincount(self.domain, ~self.is_test, len(self.domain_names))
        names = zip(self.domain_names, num_train, strict=True)
        return tuple(name for name, num in names if num == 0)

    def classes_for(self, purpose: str, masks: bool = False) -> np.ndarray:
        """The class of each sample, int (N,).

        purpose:  what needs the classes, for the error message.
        masks:    whether masks, a class for each pixel, are accepted, too.
        Raises ValueError when the labels are masks or targets of a regression.
        """
        if self.task != "classification" and not (masks and self.has_masks):
            found = "masks" if self.has_masks else "targets of a regression"
            raise ValueError(
                f"{purpose} needs one class per image, found {found} in {self.name!r}; "
                "use what does not need them, such as FedAvg(), iid or by_owner"
            )
        return self.labels

    def images_for(self, purpose: str) -> np.ndarray | Images:
        """The images, uint8 (N, C, H, W); ValueError for other inputs."""
        if not self.has_images:
            raise ValueError(
                f"{purpose} needs images, uint8 (N, C, H, W), found "
                f"{self.images.dtype} of shape {self.images.shape} in {self.name!r}; "
                "use what does not, such as FedAvg(), or give images before ToTensor"
            )
        return self.images

    def refuse_tokens(self, purpose: str) -> None:
        """Raise ValueError for whole numbers, such as tokens, that cannot be mixed."""
        if self.images.dtype == np.int64:
            raise ValueError(
                f"{purpose} changes the values of inputs, found whole numbers in "
                f"{self.name!r}; use a method that does not, such as FedAvg()"
            )

    def select(self, index: np.ndarray) -> DomainData:
        """Only the samples at ``index``; all names are kept. Images in a file stay."""
        images, columns = self.images, ("labels", "domain", "owner", "is_test")
        is_stored = isinstance(images, Images)
        return replace(
            self,
            images=images.select(index) if is_stored else images[index],
            **{column: getattr(self, column)[index] for column in columns},
        )

    def fingerprint(self) -> str:
        """A short hash of all arrays, the normalisation and the task.

        For a published set, the name, the version, the size and the positions of its
        images are hashed instead of the pixels, which depend on the decoder.
        """
        digest, images = hashlib.sha256(), self.images
        if isinstance(images, Images):
            name = self.name if images.version else ""
            digest.update(f"{name} {images.shape}".encode() + images.identity())
        else:
            digest.update(str((images.shape, images.dtype)).encode())
            for start in range(0, len(images), 1000):
                digest.update(np.ascontiguousarray(images[start : start + 1000]))
        for values in (self.labels, self.domain, self.owner, self.is_test):
            digest.update(str((values.shape, values.dtype)).encode())
            digest.update(np.ascontiguousarray(values))
        digest.update(str((self.mean, self.std, self.task)).encode())
        return digest.hexdigest()[:16]
