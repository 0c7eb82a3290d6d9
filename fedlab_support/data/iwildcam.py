"""iWildCam: animals at 323 camera traps, in the layout of WILDS 2.0."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from .domain_data import DomainData
from .images import Images
from .trees import Tree, decode

SIDE = 64
"""Default height and width in pixels, since files differ in shape; 2.5 GB on disk."""

CLASSES, IMAGES, CAMERAS = 182, 203_029, 323
"""Size of the published set."""

COLUMNS = ("split", "filename", "y", "location_remapped")
KINDS = {
    "train": "camera",
    "id_val": "camera",
    "id_test": "camera",
    "val": "val_camera",
    "test": "test_camera",
}
"""Split → kind of its cameras: those of the clients, and two held-out kinds."""


def read(paths: tuple[Path, ...], size: int | None) -> DomainData:
    """IWildCam from its folder ``iwildcam_v2.0``: each camera is a domain and an owner.

    The splits are those of ``metadata.csv``. Test samples are ``id_test``, from the
    clients' cameras, and all of ``val`` and ``test``, from cameras that no client has
    (``data.unseen_domains``). ``id_val`` belongs to the clients' samples like
    ``train``, since a federation draws its own validation samples. Class names come
    from ``categories.csv`` if it exists. Images are resized to squares.

    Raises ValueError for a file that is missing or not a complete image, a table
    without the columns, an unknown split, a camera on two sides of the split, and for
    more classes, cameras or images than were published.

    Source: Beery et al., 2021; Koh et al., ICML 2021 (WILDS).
    """
    with Tree(paths[0]) as tree:
        home, rows = _table(tree)
        names = [f"{home}train/{row['filename']}" for row in rows]
        if absent := [name for name in names if name not in tree]:
            raise ValueError(
                f"{paths[0].name}: expected the {len(names):,} images of "
                f"metadata.csv, found {len(names) - len(absent):,}, not {absent[0]}; "
                "the copy is incomplete. For a part of the set, cut metadata.csv"
            )
        labels = np.array([_number(row, "y") for row in rows])
        camera, camera_names = _cameras(rows)
        _check_counts(labels, camera_names, paths[0].name)
        images, _ = decode(tree, names, size or SIDE)
        classes = _class_names(tree, home, labels.max() + 1)
    split = np.array([row["split"] for row in rows])
    return DomainData(
        name="iwildcam",
        images=Images(images, version=f"{len(rows)} images, published split"),
        labels=labels,
        domain=camera,
        owner=camera.copy(),
        is_test=np.isin(split, ("id_test", "val", "test")),
        class_names=classes,
        domain_names=camera_names,
        owner_names=camera_names,
        source=f"iWildCam of WILDS 2.0 (Beery et al., 2021), {len(rows):,} of "
        f"{IMAGES:,} images; split as published, id_val joined with train",
    )


def _table(tree: Tree) -> tuple[str, list[dict[str, str]]]:
    """The folder of metadata.csv inside the tree, and its rows."""
    found = [name for name in tree if f"/{name}".endswith("/metadata.csv")]
    lines = tree.lines(found[0]) if len(found) == 1 else []
    rows = list(csv.DictReader(lines))
    if not rows or any(rows[0].get(column) is None for column in COLUMNS):
        header = lines[0] if lines else f"{len(found)} tables"
        raise ValueError(
            f"{tree.path.name}: expected one metadata.csv with the columns "
            f"{', '.join(COLUMNS)}, found {header}; version 1.0 has other tables: use "
            "iwildcam_v2.0"
        )
    return found[0].removesuffix("metadata.csv"), rows


def _number(row: dict[str, str], column: str) -> int:
    if not (row[column] or "").isdecimal():
        raise ValueError(
            f"metadata.csv: expected a number ≥ 0 as {column}, found {row[column]!r} "
            f"for {row['filename']}"
        )
    return int(row[column])


def _cameras(rows: list[dict[str, str]]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The camera of each image, (N,), and the names of cameras, the clients' first."""
    kinds, number = {}, [_number(row, "location_remapped") for row in rows]
    for place, row in zip(number, rows, strict=True):
        if row["split"] not in KINDS:
            raise ValueError(
                f"metadata.csv: expected a split of {', '.join(KINDS)}, found "
                f"{row['split']!r} for {row['filename']}"
            )
        kind = KINDS[row["split"]]
        if kinds.setdefault(place, kind) != kind:
            raise ValueError(
                f"metadata.csv: expected every camera on one side of the split, found "
                f"camera {place} as {kinds[place]} and, for {row['filename']}, as "
                f"{kind}; the table has been changed"
            )
    ranks = {kind: rank for rank, kind in enumerate(dict.fromkeys(KINDS.values()))}
    order = sorted(kinds, key=lambda place: (ranks[kinds[place]], place))
    position = {place: i for i, place in enumerate(order)}
    names = tuple(f"{kinds[place]}_{place:03d}" for place in order)
    return np.array([position[place] for place in number]), names


def _check_counts(labels: np.ndarray, cameras: tuple[str, ...], what: str) -> None:
    found = (int(labels.max()) + 1, len(cameras), len(labels))
    if any(n > most for n, most in zip(found, (CLASSES, CAMERAS, IMAGES), strict=True)):
        raise ValueError(
            f"{what}: expected at most {CLASSES} classes, {CAMERAS} cameras and "
            f"{IMAGES:,} images, found {found}; this is not iWildCam of WILDS 2.0"
        )


def _class_names(tree: Tree, home: str, num: int) -> tuple[str, ...]:
    known = {}
    if f"{home}categories.csv" in tree:
        table = csv.DictReader(tree.lines(f"{home}categories.csv"))
        known = {row.get("y"): row.get("name") for row in table}
    return tuple(known.get(str(y)) or f"class_{y:03d}" for y in range(num))
