"""Readers of the official files of data sets, for ``prepare``.

Each takes the folder of the files and returns the arrays of a prepared file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedlab_support.data.prepared import border_brightness
from fedlab_support.data.reading import Arrays, open_image, regular
from fedlab_support.data.trees import UNREADABLE

SPLIT_SEED = 20240
WRITERS = Path(__file__).with_name("femnist_writers.npz")
"""The writers, images and split of this course's own parts of FEMNIST."""


def from_torchvision(kind: str, folder: Path, **options) -> Arrays:
    """Both parts of ``torchvision.datasets.<kind>``, whose files are in ``folder``.

    kind:     a data set with ``data`` and ``targets``.
    options:  its further arguments.
    """
    from torchvision import datasets

    official, arrays = getattr(datasets, kind), {}
    for name, is_training in (("train", True), ("test", False)):
        part = official(str(folder), train=is_training, download=True, **options)
        arrays[f"{name}_images"] = np.asarray(part.data, dtype=np.uint8)
        arrays[f"{name}_labels"] = np.asarray(part.targets, dtype=np.int64)
    return arrays


def from_svhn(folder: Path) -> Arrays:
    """SVHN (cropped digits) from torchvision, which maps label 10 to digit 0."""
    from torchvision.datasets import SVHN

    arrays: Arrays = {}
    for split in ("train", "test"):
        part = SVHN(str(folder), split=split, download=True)
        arrays[f"{split}_images"] = part.data.transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = np.asarray(part.labels, dtype=np.int64)
    return arrays


def from_mnistm(folder: Path) -> Arrays:
    """MNIST-M from ``mnist_m_{train,test}/`` and ``mnist_m_{train,test}_labels.txt``.

    A line of a list is ``00000000.png 7``. Images are 32x32 RGB. Raises
    FileNotFoundError when a list or a listed image is missing. Images that are not
    listed have no label and are left out; the note gives their number.
    """
    arrays: Arrays = {}
    num_unlisted = 0
    for split in ("train", "test"):
        images = folder / f"mnist_m_{split}"
        lines = (folder / f"mnist_m_{split}_labels.txt").read_text().split("\n")
        rows = [line.split() for line in lines if line.strip()]
        arrays[f"{split}_images"] = np.stack(
            [_picture(images / row[0]) for row in rows]
        )
        arrays[f"{split}_labels"] = np.array([int(row[1]) for row in rows])
        num_unlisted += sum(1 for _ in images.glob("*.png")) - len(rows)
    if num_unlisted:
        arrays["note"] = np.array(f"{num_unlisted:,} images without a label left out")
    return arrays


def from_synthdigits(folder: Path) -> Arrays:
    """SynthDigits from ``synth_{train,test}_32x32.mat``; X is (32, 32, 3, N).

    Copies with labels 1…10, where 10 means digit 0, are accepted. Raises ValueError for
    any other range.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    stored = {}
    for split in ("train", "test"):
        with _named(path := folder / f"synth_{split}_32x32.mat", MatReadError):
            stored[split] = loadmat(path)
    labels = {s: m["y"].reshape(-1).astype(np.int64) for s, m in stored.items()}
    low = min(int(y.min()) for y in labels.values())
    high = max(int(y.max()) for y in labels.values())
    if low < 0 or high > 10 or high - low > 9:
        raise ValueError(
            "SynthDigits: labels must lie in 0…9, or in 1…10 with 10 for the digit 0, "
            f"found {low}…{high}; check that the files are synth_*_32x32.mat"
        )
    arrays: Arrays = {}
    for split, content in stored.items():
        arrays[f"{split}_images"] = content["X"].transpose(3, 0, 1, 2)
        arrays[f"{split}_labels"] = labels[split] % 10
    return arrays


def from_leaf(folder: Path) -> Arrays:
    """LEAF's files ``{train,test}/*.json``, with LEAF's split by sample or by user.

    A file holds ``users``, ``num_samples`` and ``user_data[user]["x" | "y"]``, with 784
    floats in [0, 1] per image, where 1 is white. Raises FileNotFoundError without such
    files, and ValueError when a user does not have as many images as ``num_samples``.
    """
    images, labels, writers, tests = [], [], [], []
    for split in ("train", "test"):
        for path in sorted((folder / split).glob("*.json")):
            with _named(path):
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


def from_leaf_writers(which: str, folder: Path) -> Arrays:
    """The images of some writers that this course trains on, out of LEAF's files.

    which: "87writers", or "81writers", all for testing.

    Their order and split are this course's, whatever LEAF's. Raises ValueError when an
    image is missing.
    """
    whole = from_leaf(folder)
    with np.load(WRITERS) as listed:
        names, wanted = listed[f"{which}_names"], listed[f"{which}_images"]
        is_test = listed[f"{which}_is_test"]
    is_theirs = np.isin(whole["writer_names"], names)[whole["writer"]]
    place = {_mark(whole["images"][i]): i for i in np.flatnonzero(is_theirs)}
    if absent := sum(mark not in place for mark in wanted.tolist()):
        raise ValueError(
            f"expected {len(wanted):,} images of {len(names)} writers in {folder}, "
            f"found all but {absent:,}; make all writers with LEAF's preprocess.sh "
            "-s niid --sf 1.0 -k 0 -t sample. (If other versions of Pillow resized "
            "them, pixels differ: use femnist_leaf instead)"
        )
    rows = np.array([place[mark] for mark in wanted.tolist()])
    writer = np.searchsorted(names, whole["writer_names"][whole["writer"][rows]])
    chosen = {name: whole[name][rows] for name in ("images", "labels")}
    return chosen | {"writer": writer, "is_test": is_test, "writer_names": names}


def _mark(image: np.ndarray) -> int:
    return int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:4], "little")


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
    tables = []
    for path in paths:
        with _named(path):
            tables.append(pd.read_parquet(path, columns=columns))
    rows = pd.concat(tables)
    images = np.stack([_decode(image["bytes"], "L") for image in rows["image"]])
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


@contextmanager
def _named(path: Path, *others: type[Exception]) -> Iterator[None]:
    """Raise ValueError with the file's name and a remedy where it cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (*UNREADABLE, *others) as error:
        raise ValueError(
            f"{path}: expected a complete file, found {path.stat().st_size:,} bytes "
            f"that cannot be read ({error}); copy it again from its publisher"
        ) from error


def _picture(path: Path) -> np.ndarray:
    with _named(path):
        return _decode(regular(path).read_bytes(), "RGB")


def _decode(content: bytes, mode: str) -> np.ndarray:
    return np.asarray(open_image(content).convert(mode))


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
