"""FEMNIST, handwritten characters by known writers, and EMNIST, by unknown ones.

Prepared FEMNIST files are dark on white, as published; the reader inverts them, so that
all handwritten characters in this package are light on dark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .domain_data import DomainData
from .reading import (
    Arrays,
    border_brightness,
    from_torchvision,
    open_image,
    read_arrays,
    read_one_domain,
    resize,
)

CHARACTERS = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""The 62 classes in the label order of LEAF: digits, capitals, small letters."""

KINDS = {"images": "u1", "labels": "iu", "writer": "iu", "is_test": "b"}
SPLIT_SEED = 20240


def read(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """FEMNIST from a prepared file, inverted to light on dark.

    Images uint8 (N, 1, 28, 28); labels in LEAF's order 0-9, A-Z, a-z; one domain; the
    owner is the writer. Raises ValueError when the file is damaged, a label is outside
    0…61 or the background is dark.
    Source: Caldas et al., "LEAF: a benchmark for federated settings", 2018.
    """
    arrays = read_arrays(paths[0], {**KINDS, "writer_names": "U"})
    brightness = border_brightness(arrays["images"])
    if brightness < 127:
        raise ValueError(
            f"{paths[0].name}: expected dark characters on white, found a border of "
            f"grey level {brightness:.0f}; the file has already been inverted. Make "
            "it again with fedlab_support.data.prepare"
        )
    names = tuple(str(name) for name in arrays["writer_names"])
    labels = arrays["labels"].astype(np.int64)
    is_test = arrays["is_test"]
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


def read_emnist(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """EMNIST "by class" from its prepared file, upright and light on dark.

    The writers are unknown, so there is one owner. Images uint8 (N, 1, 28, 28).
    Source: Cohen et al., "EMNIST: extending MNIST to handwritten letters", 2017.
    """
    origin = "EMNIST by class (Cohen et al., 2017)"
    return read_one_domain(paths[0], size, "emnist", CHARACTERS, origin)


def from_leaf(folder: Path) -> Arrays:
    """LEAF's files ``{train,test}/*.json``, with LEAF's split by sample or by user.

    A file holds ``users``, ``num_samples`` and ``user_data[user]["x" | "y"]``, with 784
    floats in [0, 1] per image, where 1 is white. Raises FileNotFoundError without such
    files, and ValueError when a user does not have as many images as ``num_samples``.
    """
    images, labels, writers, tests = [], [], [], []
    for split in ("train", "test"):
        for path in sorted((folder / split).glob("*.json")):
            content = json.loads(path.read_text())
            users = zip(content["users"], content["num_samples"], strict=True)
            for user, count in users:
                rows = content["user_data"][user]
                if not len(rows["x"]) == len(rows["y"]) == count:
                    raise ValueError(
                        f"{path.name}: expected {count} images of {user}, found "
                        f"{len(rows['x'])} with {len(rows['y'])} labels; the file is "
                        "incomplete: make it again with LEAF's preprocess.sh"
                    )
                grey = np.rint(255 * np.array(rows["x"])).astype(np.uint8)
                images.append(grey.reshape(-1, 28, 28))
                labels.extend(rows["y"])
                writers.extend([user] * count)
                tests.extend([split == "test"] * count)
    if not images:
        raise FileNotFoundError(
            f"expected {folder}/train/*.json and test/*.json, found none; run LEAF's "
            "data/femnist/preprocess.sh and copy its data/train and data/test there"
        )
    return _table(np.concatenate(images), labels, writers, np.array(tests))


def from_hub(folder: Path) -> Arrays:
    """The parquet files of ``flwrlabs/femnist``, split 90/10 per writer, fixed seed.

    Columns: ``image`` ({"bytes", "path"}), ``writer_id``, ``character`` (0…61).
    Duplicates are removed before the split. Raises FileNotFoundError without files.
    """
    import pandas as pd

    paths = sorted(folder.rglob("*.parquet"))
    if not paths:
        raise FileNotFoundError(
            f"expected *.parquet under {folder}, found none; download the data set "
            "flwrlabs/femnist from the Hugging Face hub and put its files there"
        )
    columns = ["image", "writer_id", "character"]
    rows = pd.concat([pd.read_parquet(path, columns=columns) for path in paths])
    images = np.stack([_decode(image["bytes"]) for image in rows["image"]])
    if border_brightness(images) < 127:
        images = 255 - images
    arrays = _table(images, rows["character"], rows["writer_id"])
    arrays["is_test"] = _tenth_per_writer(arrays["writer"])
    return arrays


def from_emnist(folder: Path) -> Arrays:
    """EMNIST "by class" from torchvision, transposed back to upright."""
    arrays = from_torchvision("EMNIST", folder, split="byclass")
    for name in ("train_images", "test_images"):
        upright = arrays[name].transpose(0, 2, 1)
        is_dark_on_light = border_brightness(upright) > 127
        arrays[name] = 255 - upright if is_dark_on_light else upright
    return arrays


def _decode(content: bytes) -> np.ndarray:
    return np.asarray(open_image(content).convert("L"))


def _table(
    images: np.ndarray,
    labels: Sequence[int],
    writers: Sequence[str],
    is_test: np.ndarray | None = None,
) -> Arrays:
    """A prepared table without the duplicates of each writer.

    Of two equal images the test image is kept, so that no client trains on it. The note
    gives the number of removed images.
    """
    names, writer = np.unique(np.asarray(writers, dtype=str), return_inverse=True)
    is_test = np.zeros(len(images), dtype=bool) if is_test is None else is_test
    seen: set[tuple[int, bytes]] = set()
    keep = []
    for i in np.argsort(~is_test, kind="stable"):
        key = (int(writer[i]), hashlib.sha256(images[i].tobytes()).digest())
        if key not in seen:
            seen.add(key)
            keep.append(i)
    index = np.sort(np.array(keep))
    return {
        "images": images[index],
        "labels": np.asarray(labels, dtype=np.int64)[index],
        "writer": writer[index],
        "is_test": is_test[index],
        "writer_names": names,
        "note": np.array(f"{len(images) - len(index):,} repeated images removed"),
    }


def _tenth_per_writer(writer: np.ndarray) -> np.ndarray:
    """Mark a tenth of each writer's images, at least one if there are two or more."""
    is_test = np.zeros(len(writer), dtype=bool)
    order = np.argsort(writer, kind="stable")
    for own in np.split(order, np.cumsum(np.bincount(writer))[:-1]):
        rng = np.random.default_rng((SPLIT_SEED, int(writer[own[0]])))
        count = max(round(len(own) / 10), min(len(own) - 1, 1))
        is_test[rng.permutation(own)[:count]] = True
    return is_test
