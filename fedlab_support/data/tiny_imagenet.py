"""Tiny ImageNet: colour images of 200 classes, 64x64 pixels."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import numpy as np

from .arrays import from_arrays
from .domain_data import DomainData
from .images import Images
from .trees import Tree, decode

SIDE = 64
CLASSES, TRAIN, TEST = 200, 100_000, 10_000
"""Size of the published set."""


def read(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """Tiny ImageNet from its official folder or zip; one domain, one owner.

    ``train/<id>/images`` is for training, ``val`` for testing, since the labels of
    ``test`` were never published. Classes are sorted by identifier and named by their
    first word in ``words.txt``. Raises ValueError for a file that is not a complete
    image, for an image under ``val`` or a line of ``val_annotations.txt`` without the
    other, and for more classes or images than were published.
    """
    with Tree(paths[0]) as tree:
        rows, is_test = _rows(tree, paths[0].name)
        classes = sorted({label for label, _ in rows})
        _check_counts(paths[0].name, len(classes), is_test)
        images, _ = decode(tree, [name for _, name in rows], min(size or SIDE, SIDE))
        words = _words(tree)
    place = {label: i for i, label in enumerate(classes)}
    labels = np.array([place[label] for label, _ in rows])
    train, test = int(np.sum(~is_test)), int(np.sum(is_test))
    note = f"{train:,} + {test:,} images for training and testing"
    if (train, test) != (TRAIN, TEST):
        note += f", of {TRAIN:,} + {TEST:,}"
    return from_arrays(
        Images(images, size, version=f"{train} + {test} images"),
        labels,
        test=is_test,
        class_names=[words.get(label, label) for label in classes],
        name="tiny_imagenet",
        source=f"Tiny ImageNet (Stanford CS231N), {note}",
    )


def _rows(tree: Tree, what: str) -> tuple[list[tuple[str, str]], np.ndarray]:
    """(class identifier, path) of training images, then test images, and is_test."""
    train, val, lists = [], {}, []
    for name in tree:
        *_, part, label, folder, file = ("", "", "", *PurePosixPath(name).parts)
        if file == "val_annotations.txt":
            lists.append(name)
        elif folder == "images" and file.lower().endswith(".jpeg"):
            if part == "train":
                train.append((label, name))
            elif label == "val":
                val[file] = name
    if not train or len(lists) != 1:
        raise ValueError(
            f"{what}: expected train/<id>/images and val/val_annotations.txt, found "
            f"{len(train)} training images and {len(lists)} lists; the zip of "
            "tiny-imagenet-200 may stay packed"
        )
    known = {label for label, _ in train}
    listed = dict([*line.split(), ""][:2] for line in tree.lines(lists[0]))
    if set(listed) != set(val) or not known.issuperset(listed.values()):
        odd = sorted(set(listed) ^ set(val)) or sorted({*listed.values()} - known)
        raise ValueError(
            f"{what}: expected a line of val_annotations.txt for every image under "
            f"val, with a class of train, found no match for {odd[0]!r}; the copy is "
            "incomplete"
        )
    test = [(label, val[file]) for file, label in sorted(listed.items())]
    return train + test, np.repeat([False, True], [len(train), len(test)])


def _check_counts(what: str, num_classes: int, is_test: np.ndarray) -> None:
    found = (num_classes, int(np.sum(~is_test)), int(np.sum(is_test)))
    if any(n > most for n, most in zip(found, (CLASSES, TRAIN, TEST), strict=True)):
        raise ValueError(
            f"{what}: expected at most {CLASSES} classes, {TRAIN:,} and {TEST:,} "
            f"images, found {found}; this is not Tiny ImageNet"
        )


def _words(tree: Tree) -> dict[str, str]:
    """Class identifier → its first word; empty where words.txt is absent."""
    files = [name for name in tree if PurePosixPath(name).name == "words.txt"]
    pairs = [line.partition("\t") for name in files for line in tree.lines(name)]
    return {label: text.split(",")[0] for label, _, text in pairs}
