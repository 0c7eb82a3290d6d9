"""Make prepared files from official ones; only this command downloads data.

    python -m fedlab_course.making.prepare mnist --root data

Official files are read from ``<root>/official/<name>``. Files that torchvision can
download are downloaded there; copy the others there by hand.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.error import URLError

import numpy as np

from fedlab_support.core.files import replacing
from fedlab_support.data.reading import Arrays

from . import official

UNREACHABLE = (FileNotFoundError, URLError, ConnectionError, TimeoutError, RuntimeError)
"""Raised for missing files and failed downloads; torchvision raises RuntimeError."""


@dataclass(frozen=True)
class Official:
    """How to make one prepared file.

    convert:  reads the folder of official files and returns the arrays.
    target:   path of the prepared file under the data folder.
    wanted:   the official files that belong in the folder, and their source.
    folder:   under official/; "": the name of the set.
    """

    convert: Callable[[Path], Arrays]
    target: str
    wanted: str
    folder: str = ""


LEAF = (
    "train/*.json and test/*.json, written by LEAF's data/femnist/preprocess.sh",
    "femnist_leaf",
)
"""Files and folder of FEMNIST."""

OFFICIAL: dict[str, Official] = {
    "mnist": Official(
        partial(official.from_torchvision, "MNIST"),
        "digits5/mnist.npz",
        "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte (yann.lecun.com)",
    ),
    "usps": Official(
        partial(official.from_torchvision, "USPS"),
        "digits5/usps.npz",
        "usps.bz2 and usps.t.bz2 (the LIBSVM data page)",
    ),
    "svhn": Official(
        official.from_svhn,
        "digits5/svhn.npz",
        "train_32x32.mat and test_32x32.mat (ufldl.stanford.edu/housenumbers)",
    ),
    "mnistm": Official(
        official.from_mnistm,
        "digits5/mnistm.npz",
        "mnist_m_{train,test}/ and mnist_m_{train,test}_labels.txt, unpacked from the "
        "authors' mnist_m archive (Ganin et al., 2016)",
    ),
    "synthdigits": Official(
        official.from_synthdigits,
        "digits5/synthdigits.npz",
        "synth_train_32x32.mat and synth_test_32x32.mat (sites.skoltech.ru/compvision)",
    ),
    "cifar10": Official(
        partial(official.from_torchvision, "CIFAR10"),
        "cifar10/cifar10.npz",
        "cifar-10-batches-py/ (www.cs.toronto.edu/~kriz/cifar.html)",
    ),
    "emnist": Official(
        official.from_emnist,
        "femnist/emnist.npz",
        "EMNIST/raw/emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte (the "
        "EMNIST page of NIST)",
    ),
    "femnist_leaf": Official(
        official.from_leaf,
        "femnist/femnist_leaf.npz",
        *LEAF,
    ),
    "femnist": Official(
        partial(official.from_leaf_writers, "87writers"),
        "femnist/femnist_87writers.npz",
        *LEAF,
    ),
    "femnist_unseen": Official(
        partial(official.from_leaf_writers, "81writers"),
        "femnist/femnist_81writers_testonly.npz",
        *LEAF,
    ),
    "femnist_hub": Official(
        official.from_hub,
        "femnist/femnist_hub.npz",
        "the *.parquet files of flwrlabs/femnist on the Hugging Face hub",
    ),
}


def prepare(name: str, root: str | os.PathLike[str] = "data") -> Path:
    """Make the prepared file of ``name`` under ``root`` and return its path.

    Official files are read from ``<root>/official/<name>`` (those of all FEMNIST sets
    of LEAF from ``femnist_leaf``), after a download where torchvision offers one.
    Raises ValueError for an unknown name or a file that cannot be read, FileExistsError
    if the prepared file exists, and FileNotFoundError, listing the official files, if
    they are missing.
    """
    if name not in OFFICIAL:
        raise ValueError(f"expected one of {', '.join(OFFICIAL)}; found {name!r}")
    recipe = OFFICIAL[name]
    target = Path(root, recipe.target)
    if target.exists():
        raise FileExistsError(
            f"{name}: expected to make {target}, found that it exists; delete it to "
            "make it again"
        )
    folder = Path(root, "official", recipe.folder or name)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        arrays = recipe.convert(folder)
    except UNREACHABLE as error:
        raise FileNotFoundError(
            f"{name}: expected the official files in {folder}, found no complete set "
            f"({error}); copy there {recipe.wanted}"
        ) from error
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return target


def main(arguments: list[str] | None = None) -> None:
    """The command line; prints the path of the file made."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlab_course.making.prepare",
        description="Make a prepared data file from the official files.",
    )
    parser.add_argument("name", choices=sorted(OFFICIAL))
    parser.add_argument("--root", default="data", help="data folder (default: data)")
    options = parser.parse_args(arguments)
    try:
        print(prepare(options.name, options.root))
    except (OSError, ValueError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
