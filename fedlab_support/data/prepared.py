"""Data sets in prepared ``.npz`` files, which ``fedlab_course.making.prepare`` makes.

Handwritten characters are light on dark in this package. MNIST and USPS are published
that way; FEMNIST, in the official and in prepared files, is dark on white and inverted
here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .arrays import from_arrays
from .domain_data import DomainData
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

JOINT_SIZE = 32

SPLIT_KINDS = {
    "train_images": "u1",
    "train_labels": "iu",
    "test_images": "u1",
    "test_labels": "iu",
}
FEMNIST_KINDS = {
    "images": "u1",
    "labels": "iu",
    "writer": "iu",
    "is_test": "b",
    "writer_names": "U",
}


def read_one_domain(paths: tuple[Path, ...], size: int | None, name: str) -> DomainData:
    """A set of ``ONE_DOMAIN`` from its prepared file; the domain is the only owner.

    Images keep their channels and, unless ``size`` is given, their size. Raises
    ValueError for a damaged file or a label that is not a class.
    """
    images, labels, is_test, note = read_split(paths[0])
    classes, source = ONE_DOMAIN[name]
    images, source = resize(images, size), f"{source}, {note}"
    named = {"class_names": classes, "name": name, "source": source}
    return from_arrays(images, labels, test=is_test, **named)


def read_digits5(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """All domains that were found, with 3 channels of ``size`` (default 32) pixels.

    Domains keep the order MNIST, MNIST-M, USPS, SVHN, SynthDigits; one owner each. The
    ``source`` lists missing domains: a result on fewer than five is not a Digit-Five
    result.
    """
    found = {path.stem: path for path in paths}
    names = tuple(name for name in DIGITS5 if name in found)
    parts = [read_one_domain((found[n],), size or JOINT_SIZE, n) for n in names]
    domain = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    missing = ", ".join(name for name in DIGITS5 if name not in found)
    images = [
        np.broadcast_to(p.images, (len(p), 3, *p.images.shape[2:])) for p in parts
    ]
    return DomainData(
        name="digits5",
        images=np.concatenate(images),
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
        images=resize(255 - arrays["images"][:, None], size),
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


def read_split(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, str]:
    """Read a prepared file of two parts, ``{train,test}_{images,labels}``.

    Returns images uint8 (N, C, H, W), training part first; labels int64 (N,); is_test,
    bool (N,); and a note on the counts. Raises ValueError as ``read_arrays`` does, and
    when there are not as many labels as images.
    """
    arrays = read_arrays(path, SPLIT_KINDS)
    sizes = []
    for part in ("train", "test"):
        sizes.append(len(arrays[f"{part}_labels"]))
        if len(arrays[f"{part}_images"]) != sizes[-1]:
            raise ValueError(
                f"{path.name}: expected one label per image, found "
                f"{len(arrays[f'{part}_images']):,} images and {sizes[-1]:,} labels "
                f"in the {part} part. Make it again with fedlab_course.making.prepare"
            )
    images = np.concatenate([arrays["train_images"], arrays["test_images"]])
    labels = np.concatenate([arrays["train_labels"], arrays["test_labels"]])
    is_test = np.repeat([False, True], sizes)
    note = f"{sizes[0]:,} + {sizes[1]:,} images for training and testing"
    if "note" in arrays:
        note += f"; {arrays['note']}"
    return channels_first(images, path.name), labels.astype(np.int64), is_test, note


def channels_first(images: np.ndarray, what: str) -> np.ndarray:
    """Turn (N, H, W) or (N, H, W, C) images into (N, C, H, W).

    what:  name of the file, for the error message.
    Raises ValueError for any other shape.
    """
    if images.ndim == 3:
        return images[:, None]
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    raise ValueError(
        f"{what}: expected images of shape (N, H, W) or (N, H, W, 3), found "
        f"{images.shape}; move the channels to the end"
    )


def border_brightness(images: np.ndarray) -> float:
    """Mean grey level, 0…255, of the border pixels of images (N, H, W)."""
    edges = (images[:, 0], images[:, -1], images[:, :, 0], images[:, :, -1])
    return float(np.mean([edge.mean() for edge in edges]))
