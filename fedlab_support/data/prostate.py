"""ProstateMRI: T2-weighted volumes of six sites, with segmented prostates."""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from . import reading
from .domain_data import DomainData
from .reading import DAMAGE, check_bytes, resize
from .trees import Tree

CLASSES = ("background", "prostate")
SEED = 20240
FEWEST = 32
"""Minimum number of training slices per site in the mini set."""


@dataclass(frozen=True)
class Site:
    """Published counts of a site, and an alias of its folder."""

    volumes: int
    slices: int
    also: str = ""


SITES = {
    "BIDMC": Site(12, 261),
    "HK": Site(12, 157),
    "I2CVB": Site(19, 468),
    "BMC": Site(30, 384, "ISBI_1.5"),
    "RUNMC": Site(30, 411, "ISBI"),
    "UCL": Site(13, 175),
}

Case = tuple[str, str, str]
"""Site, and the paths of a volume and of its mask."""


def read(
    paths: tuple[Path, ...], size: int | None, by: str = "patients", one_in: int = 1
) -> DomainData:
    """The six sites: ``<site>/<case>.nii.gz`` and ``…/<case>_segmentation.nii.gz``.

    size:        None keeps the size of the volumes, published with 384x384 pixels.
    by, one_in:  as for ``parts``.

    Volumes are clipped at their 0.99 quantile and rescaled to 0…255. Every slice with a
    non-empty mask and two neighbours is an image, whose first and third channels are
    these neighbours. Both zones of the prostate are one class. One owner per site;
    slices that are in neither part are left out.

    Raises ValueError, naming the file, for a volume that is damaged, empty, not square
    or not of its mask's shape; for a site that is unknown or missing, a case without
    volume or mask, and more cases than were published.
    Source: Liu et al., IEEE TMI 2020 (MS-Net); the recipe is FedFA's released one.
    """
    with Tree(paths[0]) as tree:
        cases = _cases(tree)
        slices = [_slices(tree, case, size) for case in cases]
    if len(shapes := {images.shape[2:] for images, _ in slices}) > 1:
        raise ValueError(
            f"{paths[0].name}: expected volumes of one shape, found {sorted(shapes)}; "
            "resize them with load(…, size=96)"
        )
    sizes = [len(images) for images, _ in slices]
    patient = np.repeat(np.arange(len(cases)), sizes)
    domain = np.repeat([list(SITES).index(site) for site, _, _ in cases], sizes)
    is_train, is_test = parts(domain, patient, by, one_in)
    data = DomainData(
        name="prostate",
        images=np.concatenate([images for images, _ in slices]),
        labels=np.concatenate([masks for _, masks in slices]),
        domain=domain,
        owner=domain.copy(),
        is_test=is_test,
        class_names=CLASSES,
        domain_names=tuple(SITES),
        owner_names=tuple(SITES),
        task="segmentation",
        source=_source(len(cases), sum(sizes), by, int(is_train.sum())),
    )
    return data.select(np.flatnonzero(is_train | is_test))


def parts(
    domain: np.ndarray, patient: np.ndarray, by: str = "patients", one_in: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Select the training and the test slices, bool (N,) each.

    domain, patient:  int (N,).
    by:               "patients" sets whole patients aside, up to a fifth of a domain's
                      slices but at least one patient if it has several; "slices" sets a
                      fifth of the slices aside as the papers do, with the same patients
                      on both sides.
    one_in:           6 trains on a sixth of three fifths of a domain, but at least 32
                      slices, as mini-ProstateMRI does; 1 trains on all other slices.
    """
    is_train, is_test = np.zeros((2, len(domain)), dtype=bool)
    for number in np.unique(domain):
        rng = np.random.default_rng([SEED, number])
        rows = rng.permutation(np.flatnonzero(domain == number))
        fifth = len(rows) // 5
        if by == "slices":
            is_test[rows[:fifth]] = True
        else:
            order = rng.permutation(np.unique(patient[rows]))
            sizes = np.bincount(patient)[order]
            chosen = order[:-1][np.cumsum(sizes)[:-1] <= max(fifth, sizes[0])]
            is_test[rows] = np.isin(patient[rows], chosen)
        left = rows[~is_test[rows]]
        most = len(left) if one_in == 1 else max(len(rows) * 3 // 5 // one_in, FEWEST)
        is_train[left[:most]] = True
    return is_train, is_test


def _cases(tree: Tree) -> list[Case]:
    """All volumes with their masks, sorted by site and name."""
    folders = {name.lower(): name for name in SITES}
    folders |= {site.also.lower(): name for name, site in SITES.items() if site.also}
    found: dict[tuple[str, str], dict[bool, str]] = {}
    for name in tree:
        stem = re.fullmatch(r"(.+?)(_segmentation)?\.nii(\.gz)?", name, re.IGNORECASE)
        if stem is None:
            continue
        folder = PurePosixPath(name).parent.name
        if folder.lower() not in folders:
            raise ValueError(
                f"{tree.path.name}: expected a folder of a site, {', '.join(SITES)}, "
                f"found {folder!r} ({name})"
            )
        pair = found.setdefault((folders[folder.lower()], stem[1]), {})
        pair[stem[2] is not None] = name
    for (_, case), pair in found.items():
        if len(pair) < 2:
            raise ValueError(
                f"{tree.path.name}: expected a volume and its mask, {case}.nii.gz and "
                f"{case}_segmentation.nii.gz, found only {next(iter(pair.values()))}"
            )
    for name, site in SITES.items():
        count = sum(where == name for where, _ in found)
        if not 1 <= count <= site.volumes:
            raise ValueError(
                f"{tree.path.name}: expected 1 to {site.volumes} cases of {name}, "
                f"found {count}; the copy is incomplete, or not the published one"
            )
    order = sorted(found, key=lambda key: (list(SITES).index(key[0]), key[1]))
    return [(key[0], found[key][False], found[key][True]) for key in order]


def _slices(tree: Tree, case: Case, size: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The images, uint8 (N, 3, H, W), and masks, uint8 (N, H, W), of one case."""
    _, name, mask_name = case
    volume, mask = _volume(tree, name), _volume(tree, mask_name)
    if volume.shape != mask.shape:
        raise ValueError(
            f"{name}: expected a mask of the volume's shape {volume.shape}, found "
            f"{mask.shape} in {mask_name}; do they belong to the same patient?"
        )
    low, high = volume.min(), np.quantile(volume, 0.99)
    if not high > low:
        raise ValueError(
            f"{name}: expected an image, found the value {low:g} nearly everywhere; "
            "the volume is empty"
        )
    if not np.isin(mask, (0, 1, 2)).all():
        raise ValueError(
            f"{mask_name}: expected a mask with values 0, 1 and 2, found values up to "
            f"{mask.max():g}; is this a volume?"
        )
    grey = np.rint((volume.clip(low, high) - low) * (255 / (high - low)))
    shown = 1 + np.flatnonzero(mask[1:-1].any(axis=(1, 2)))
    stack = grey.astype(np.uint8)[shown[:, None] + np.array([-1, 0, 1])]
    masks = (mask[shown] > 0).astype(np.uint8)
    return resize(stack, size), resize(masks, size, Image.Resampling.NEAREST)


def _volume(tree: Tree, name: str) -> np.ndarray:
    """A volume as float32 (slice, H, W)."""
    try:
        import nibabel
    except ImportError as error:
        raise ImportError(
            f"expected nibabel to read {name}, found none ({error}); "
            "pip install nibabel"
        ) from error
    damage = (
        *DAMAGE,
        nibabel.filebasedimages.ImageFileError,
        nibabel.spatialimages.HeaderDataError,
        nibabel.wrapstruct.WrapStructError,
    )
    content = b""
    try:
        content = tree.read(name)
        if name.lower().endswith(".gz"):
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(reading.MOST_FILE_BYTES + 1)
            check_bytes(len(content), name, is_single=True)
        image = nibabel.Nifti1Image.from_bytes(content)
        volume = np.asarray(image.dataobj, dtype=np.float32).T
        sides = image.header.get_zooms()[:2]
    except damage as error:
        raise ValueError(
            f"{name} in {tree.path.name}: expected a NIfTI volume, found "
            f"{len(content):,} bytes that cannot be read ({error}). Probably an "
            "incomplete copy: get the file again"
        ) from error
    _check_volume(name, volume, sides)
    return volume


def _check_volume(name: str, volume: np.ndarray, sides: tuple[float, ...]) -> None:
    shape = volume.shape
    if volume.ndim != 3 or shape[0] < 3 or 0 in shape or not np.isfinite(volume).all():
        raise ValueError(
            f"{name}: expected finite numbers in at least three slices, found shape "
            f"{shape[::-1]}; is this a single, complete volume?"
        )
    if shape[1] != shape[2] or not np.isclose(*sides, rtol=0.01):
        raise ValueError(
            f"{name}: expected square slices of square pixels, found {shape[2]}x"
            f"{shape[1]} pixels of {sides[0]:g}x{sides[1]:g} mm; resample the volume "
            "and its mask, since resizing would distort them"
        )


def _source(num_cases: int, num_slices: int, by: str, num_train: int) -> str:
    volumes = sum(site.volumes for site in SITES.values())
    slices = sum(site.slices for site in SITES.values())
    note = f"{num_cases} of {volumes} volumes, {num_slices:,} of {slices:,} slices"
    if (num_cases, num_slices) == (volumes, slices):
        note = f"{volumes} volumes, {slices:,} slices"
    kind = "patients" if by == "patients" else "slices, with patients on both sides"
    return (
        f"ProstateMRI (Liu et al., IEEE TMI 2020), {note}; a fifth of each site for "
        f"testing by {kind}; {num_train:,} slices for training"
    )
