"""Data sets in prepared ``.npz`` files, which ``fedlab_course.making.prepare`` makes.

Handwritten characters are light on dark in this package. MNIST and USPS are published
that way; FEMNIST, in the official and in prepared files, is dark on white and inverted
here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from .arrays import from_arrays
from .domain_data import DomainData
from .images import Images, at_size
from .mapped import Block, Source, mapped
from .reading import read_arrays, resize

DIGITS = tuple("0123456789")
CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""The 62 classes in the label order of LEAF: digits, capitals, small letters."""

ANIMALS_AND_VEHICLES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

DIGITS5 = {
    "mnist": "MNIST (LeCun, Cortes and Burges, 1998)",
    "mnistm": "MNIST-M (Ganin et al., 2016)",
    "usps": "USPS (Hull, 1994)",
    "svhn": "SVHN (Netzer et al., 2011)",
    "synthdigits": "SynthDigits (Ganin and Lempitsky, 2015)",
}
"""The five domains of Digit-Five, in the order of the joint set, and their sources."""

ONE_DOMAIN = {
    **{name: (DIGITS, source) for name, source in DIGITS5.items()},
    "cifar10": (ANIMALS_AND_VEHICLES, "CIFAR-10 (Krizhevsky, 2009)"),
    "emnist": (CHARACTERS, "EMNIST by class (Cohen et al., 2017)"),
}
"""Classes and source of every set of one domain, whose writers are unknown."""

JOINT_SIZE, MOST_STORED = 32, 1_000_000_000
"""Size of the joint set in pixels, and most bytes that are stored at a larger one."""

SPLIT_KINDS = {
    "train_images": "u1",
    "train_labels": "iu",
    "test_images": "u1",
    "test_labels": "iu",
}
IMAGE_KEYS = ("train_images", "test_images")
FEMNIST_KINDS = {
    "images": "u1",
    "labels": "iu",
    "writer": "iu",
    "is_test": "b",
    "writer_names": "U",
}


def read_one_domain(paths: tuple[Path, ...], size: int | None, name: str) -> DomainData:
    """A set of ``ONE_DOMAIN`` from its prepared file; the domain is the only owner.

    Images keep their channels and are never stored larger than they were published.
    Raises ValueError for a damaged file or a label that is not a class.
    """
    part = _Part(paths[0], name)
    channels, side, _ = part.image_shape
    images = _joined([part], name, channels, min(size or side, side))
    classes, source = ONE_DOMAIN[name]
    return from_arrays(
        Images(images, size, version=part.version),
        part.labels,
        test=part.is_test,
        class_names=classes,
        name=name,
        source=f"{source}, {part.note}",
    )


def read_digits5(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """All domains that were found, with 3 channels of ``size`` (default 32) pixels.

    Domains keep the order MNIST, MNIST-M, USPS, SVHN, SynthDigits; one owner each. The
    ``source`` lists missing domains: a result on fewer than five is not a Digit-Five
    result. Above a gigabyte, images are stored at 32 pixels and enlarged in each batch.
    """
    found = {path.stem: path for path in paths}
    parts = [_Part(found[name], name) for name in DIGITS5 if name in found]
    names = tuple(part.name for part in parts)
    size, num = size or JOINT_SIZE, sum(len(part.labels) for part in parts)
    # few images are enlarged once, as in the finished runs; many in each batch
    stored = size if num * 3 * size**2 <= MOST_STORED else min(size, JOINT_SIZE)
    domain = np.repeat(np.arange(len(parts)), [len(part.labels) for part in parts])
    missing = ", ".join(name for name in DIGITS5 if name not in found)
    version = "; ".join(f"{part.name}: {part.version}" for part in parts)
    return DomainData(
        name="digits5",
        images=Images(_joined(parts, "digits5", 3, stored), size, version=version),
        labels=np.concatenate([part.labels for part in parts]),
        domain=domain,
        owner=domain.copy(),
        is_test=np.concatenate([part.is_test for part in parts]),
        class_names=DIGITS,
        domain_names=names,
        owner_names=names,
        source=f"{len(names)} of the 5 domains of Digit-Five"
        + f"; missing: {missing}" * bool(missing),
    )


def read_femnist(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """FEMNIST from a prepared file, inverted to light on dark; owners are the writers.

    Images uint8 (N, 1, 28, 28); labels in LEAF's order 0-9, A-Z, a-z; one domain.
    Raises ValueError when the file is damaged, a label is outside 0…61 or the
    background is dark.
    Source: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
    """
    arrays = read_arrays(paths[0], FEMNIST_KINDS)
    brightness = border_brightness(arrays["images"])
    if brightness < 127:
        raise ValueError(
            f"{paths[0].name}: expected dark characters on white, found a border of "
            f"grey level {brightness:.0f}; the file has already been inverted. Make "
            "it again with fedlab_course.making.prepare"
        )
    names = tuple(str(name) for name in arrays["writer_names"])
    labels, is_test = arrays["labels"].astype(np.int64), arrays["is_test"]
    note = f"; {arrays['note']}" if "note" in arrays else ""
    return DomainData(
        name=paths[0].stem,
        images=at_size(255 - arrays["images"][:, None], size),
        labels=labels,
        domain=np.zeros_like(labels),
        owner=arrays["writer"].astype(np.int64),
        is_test=is_test,
        class_names=CHARACTERS,
        domain_names=("femnist",),
        owner_names=names,
        source=f"FEMNIST (Caldas et al., 2018; NIST SD 19), {len(names):,} writers, "
        f"{np.sum(~is_test):,} + {np.sum(is_test):,} images for training and "
        f"testing{note}",
    )


class _Part:
    """The two parts of a prepared file, ``{train,test}_{images,labels}``.

    name:         of its domain.
    image_shape:  (C, H, W) of the images, which are not read yet.
    labels, is_test:  int64 and bool (N,), the training part first.
    note:         on the counts.
    version:      the counts.

    Raises ValueError as ``read_arrays`` does, and when there are not as many labels as
    images.
    """

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name
        stored = read_arrays(path, SPLIT_KINDS, leave=IMAGE_KEYS)
        self.members = [stored[key] for key in IMAGE_KEYS]
        labels = [stored["train_labels"], stored["test_labels"]]
        for part, images, own in zip(
            ("train", "test"), self.members, labels, strict=True
        ):
            if images.shape[0] != len(own):
                raise ValueError(
                    f"{path.name}: expected one label per image, found "
                    f"{images.shape[0]:,} images and {len(own):,} labels in the {part} "
                    "part. Make it again with fedlab_course.making.prepare"
                )
        self.image_shape = self._image_shape()
        self.labels = np.concatenate(labels).astype(np.int64)
        self.is_test = np.repeat([False, True], [len(own) for own in labels])
        train, test = map(len, labels)
        self.version = f"{train} + {test} images"
        self.note = f"{train:,} + {test:,} images for training and testing"
        if "note" in stored:
            self.note += f"; {stored['note']}"

    def _image_shape(self) -> tuple[int, int, int]:
        (shape, *others) = {member.shape[1:] for member in self.members}
        if len(shape) == 2 and not others:
            return 1, *shape
        if len(shape) == 3 and shape[2] in (1, 3) and not others:
            return shape[2], *shape[:2]
        raise ValueError(
            f"{self.path.name}: expected images of shape (N, H, W) or (N, H, W, 3), "
            f"found {[member.shape for member in self.members]}; move the channels to "
            "the end"
        )

    def images(self, step: int) -> Iterator[np.ndarray]:
        """All images, uint8 (B, C, H, W), ``step`` at a time."""
        for member in self.members:
            for rows in member.blocks(step):
                yield np.moveaxis(rows.reshape(*rows.shape[:3], -1), 3, 1)


def _joined(parts: Sequence[_Part], name: str, channels: int, size: int) -> np.ndarray:
    """The images of all parts in one memory map, uint8 (N, channels, size, size)."""

    def blocks() -> Iterator[np.ndarray]:
        for part in parts:
            for images in part.images(1000):
                images = resize(images, size)
                yield np.broadcast_to(images, (len(images), channels, size, size))

    images, at = chain.from_iterable(blocks()), 0

    def read(start: int, stop: int) -> Block:
        """Read the files in order, past what was decoded before an interrupt."""
        nonlocal at
        found = np.stack([*islice(images, start - at, stop - at)])
        at = stop
        return found, np.zeros(len(found), np.uint64)

    num = sum(len(part.labels) for part in parts)
    files = "\n".join(f"{m.state}" for part in parts for m in part.members)
    return mapped(Source(name, files, (num, channels, size, size), read))[0]


def border_brightness(images: np.ndarray) -> float:
    """Mean grey level, 0…255, of the border pixels of images (N, H, W)."""
    edges = (images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1])
    return float(np.mean([edge.mean() for edge in edges]))
