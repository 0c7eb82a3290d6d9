"""Digit-Five: ten digits in five domains, each of which is also a data set by itself.

Prepared files are called ``digits5/<name>.npz``; ``fedlab_support.data.prepare`` makes
them from the official files, which the ``from_…`` functions here read. MNIST and USPS
are light on dark, as published.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .domain_data import DomainData
from .reading import Arrays, open_image, read_one_domain, regular

ORIGIN = {
    "mnist": "MNIST (LeCun, Cortes and Burges, 1998)",
    "mnistm": "MNIST-M (Ganin et al., 2016)",
    "usps": "USPS (Hull, 1994)",
    "svhn": "SVHN (Netzer et al., 2011)",
    "synthdigits": "SynthDigits (Ganin and Lempitsky, 2015)",
}
"""The five domains, in the order of the joint set, and their sources."""

DIGITS = tuple("0123456789")
JOINT_SIZE = 32


def read_single(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """One of the five sets from its prepared file; one domain, one owner.

    The writers are unknown, so the owner is the domain. Images keep their channels and,
    unless ``size`` is given, their size: (1, 28, 28) for MNIST, (1, 16, 16) for USPS,
    (3, 32, 32) for the others. Raises ValueError for a damaged file or a label outside
    0…9.
    """
    name = paths[0].stem
    return read_one_domain(paths[0], size, name, DIGITS, ORIGIN[name])


def read_joint(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """All domains that were found, with 3 channels of ``size`` (default 32) pixels.

    Domains keep the order MNIST, MNIST-M, USPS, SVHN, SynthDigits; one owner each. The
    ``source`` lists missing domains: a result on fewer than five is not a Digit-Five
    result.
    """
    order = list(ORIGIN)
    paths = tuple(sorted(paths, key=lambda path: order.index(path.stem)))
    parts = [read_single((path,), size or JOINT_SIZE) for path in paths]
    names = tuple(part.name for part in parts)
    sizes = [len(part) for part in parts]
    domain = np.repeat(np.arange(len(parts)), sizes)
    missing = [name for name in ORIGIN if name not in names]
    gap = f"; missing: {', '.join(missing)}" if missing else ""
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
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        source=f"{len(names)} of the 5 domains of Digit-Five{gap}",
    )


def from_svhn(folder: Path) -> Arrays:
    """SVHN (cropped digits) from torchvision, which maps label 10 to digit 0."""
    from ..core.torchvision_compat import import_torchvision

    kind = import_torchvision().datasets.SVHN
    arrays: Arrays = {}
    for split in ("train", "test"):
        part = kind(str(folder), split=split, download=True)
        arrays[f"{split}_images"] = part.data.transpose(0, 2, 3, 1)
        arrays[f"{split}_labels"] = np.asarray(part.labels, dtype=np.int64)
    return arrays


def _decoded(file: Path) -> np.ndarray:
    return np.asarray(open_image(regular(file).read_bytes()).convert("RGB"))


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
            [_decoded(images / row[0]) for row in rows]
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

    stored = {s: loadmat(folder / f"synth_{s}_32x32.mat") for s in ("train", "test")}
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
