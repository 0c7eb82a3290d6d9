"""Images in folders ``<domain>/<class>/<image>``, on disk or in a zip."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from ..core.checks import COUNT, checked
from .arrays import drawn_split, from_arrays
from .domain_data import DomainData
from .images import Images
from .trees import Tree, decode

SIDE = 64
"""Default height and width in pixels, since files differ in shape."""

DRAWN = "a fifth of each class for testing, drawn with a seed"
SPLITS = ("test", "testing", "val", "valid", "validation", "crossval")
SPLITS += ("train", "training")
"""Folders that are not domains; the first that there is has the test images."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

Row = tuple[str, str, str]
"""Domain, class and path of an image."""


@dataclass(frozen=True)
class Layout:
    """The contents of a published data set, and how copies of it may differ.

    source:   name and reference.
    domains:  name → number of images per class, or one number for all classes.
    classes:  names in the order of their labels.
    also:     aliases → class names.
    is_part:  whether further classes of a copy are left out instead of refused.
    lists:    suffixes, after the domain's name, of the published lists of training and
              test images.
    numbers:  the number of each class in these lists.
    surplus:  share of images that copies may have beyond the counts.
    """

    source: str
    domains: dict[str, Sequence[int]]
    classes: tuple[str, ...]
    also: dict[str, str] = field(default_factory=dict)
    is_part: bool = False
    lists: tuple[str, str] | None = None
    numbers: tuple[int, ...] = ()
    surplus: float = 0.0


@checked(size=COUNT)
def from_folders(path: str | os.PathLike[str], size: int = SIDE) -> DomainData:
    """Read a tree ``<domain>/<class>/<image>``, folder or zip, as square RGB images.

    path:  the folder or zip; images are JPEG, PNG, BMP, WebP or TIFF files of 8 bits.
    size:  height and width in pixels to which images are resized.

    A folder level ``images`` and folders above the domains are ignored. Each domain is
    one owner. A fifth of the images of each domain and class is set aside for testing,
    drawn with a fixed seed; identical files are on the same side. A tree without
    domains, ``<class>/<image>``, is one domain. Folders ``train`` and ``test`` (or
    ``val``) give the split instead; they may be above the domains, or directly above
    the classes, in a single domain or in every one; beside ``test``, images in ``val``
    are for training. Images in fewer folders than the others are left out, with a
    warning. Raises ValueError for a file that is not a complete image, if most images
    are in fewer folders, and if only some domains are split in this way.
    """
    path = Path(os.path.abspath(path))  # "." has no name
    with Tree(path) as tree:
        rows = sorted(_placed(tree))
        if not rows:
            raise ValueError(
                f"{path.name}: expected images ({', '.join(SUFFIXES)}) in folders "
                "<class> or <domain>/<class>, found none"
            )
        names = tuple(tuple(sorted({row[place] for row in rows})) for place in (0, 1))
        data = _assemble(tree, rows, names, int(size), {})
    files = [row[2] for row in rows]
    if len(splits := {name.lower() for name in names[0]} & {*SPLITS}) < 2:
        return _split_above(data, files)
    if others := [name for name in names[0] if name.lower() not in SPLITS]:
        raise ValueError(
            f"{path.name}: expected only folders of splits, found {others[0]!r} "
            f"beside {' and '.join(sorted(splits))}; move it, or rename those folders"
        )
    return _as_split(data, files)


def _split_above(data: DomainData, files: Sequence[str]) -> DomainData:
    """The data with the split that folders directly above all domains give, if any."""
    above = ["".join(_folders(PurePosixPath(f))[-3:-2]).lower() for f in files]
    if len(set(above)) < 2 or not {*above} <= {*SPLITS}:
        return data
    is_test, source = _for_testing(data, above)
    return replace(data, is_test=is_test, source=source)


def _as_split(data: DomainData, files: Sequence[str]) -> DomainData:
    """The data whose domains are not domains but splits, below those if any."""
    above = [_folders(PurePosixPath(file))[:-2] for file in files]
    domain = [parts[-1] if parts else data.name for parts in above]
    lower = [name.lower() for name in data.domain_names]
    is_test, source = _for_testing(data, [lower[d] for d in data.domain])
    return from_arrays(
        data.images,
        data.labels,
        domain=domain if len(set(domain)) > 1 else None,
        test=is_test,
        class_names=data.class_names,
        name=data.name,
        source=source,
    )


def _for_testing(data: DomainData, splits: Sequence[str]) -> tuple[np.ndarray, str]:
    """Which images are for testing, bool (N,), by their splits, and the new source."""
    test = next(name for name in SPLITS if name in splits)
    source = f"{data.source.partition(';')[0]}; {test} for testing"
    return np.array(splits) == test, source


def read(paths: tuple[Path, ...], size: int | None, layout: Layout) -> DomainData:
    """A published set from its tree, checked against ``layout``.

    Uses the published split if its lists are in the tree, and otherwise the one that
    ``from_folders`` draws; ``source`` records which, and how many images are missing.
    Raises ValueError for a domain or class that is unknown or missing, for more images
    than were published, and for a list that numbers classes differently.
    """
    with Tree(paths[0]) as tree:
        rows = list(_recognised(tree, layout))
        _check_counts(rows, layout, paths[0].name)
        parts = _published_split(tree, layout)
        note = f"{len(rows):,} images"
        official = sum(sum(counts) for counts in layout.domains.values())
        if len(rows) < official:
            note = f"{len(rows):,} of {official:,} images"
        if parts:
            listed = [row for row in rows if _key_of(row) in parts]
            left_out = len(rows) - len(listed)
            note += f", {left_out:,} of them in no list and left out" * bool(left_out)
            rows, note = listed, f"{note}; split as published"
        else:
            note = f"{note}; {DRAWN}"
        names = tuple(layout.domains), layout.classes
        data = _assemble(tree, rows, names, size or SIDE, parts)
    mark = hashlib.sha256(np.packbits(data.is_test)).hexdigest()[:4]
    kind = "published" if parts else f"drawn ({mark})"  # it follows the files' digests
    images = replace(data.images, version=f"{len(rows)} images, {kind} split")
    return replace(data, images=images, source=f"{layout.source}, {note}")


def _placed(tree: Tree) -> Iterator[Row]:
    """Every image in a folder ``<domain>/<class>``, or ``<class>`` if all are such.

    Raises ValueError if most images are in fewer folders than the others; if only some
    are, they are left out with a warning.
    """
    folders = {
        name: _folders(path)
        for name, path in ((name, PurePosixPath(name)) for name in tree)
        if path.suffix.lower() in SUFFIXES
    }
    least = 2 if any(len(parts) > 1 for parts in folders.values()) else 1
    above = [name for name, parts in folders.items() if len(parts) < least]
    if len(folders) > len(above) > len(folders) / 2:
        raise ValueError(
            f"{tree.path.name}: expected all images in folders <domain>/<class>, or "
            f"all in <class>, found {len(above):,} of {len(folders):,} in fewer "
            f"folders than the others, such as {min(above)}"
        )
    if 0 < len(above) < len(folders):
        warnings.warn(
            f"{tree.path.name}: {len(above):,} of {len(folders):,} images are in fewer "
            f"folders than the others and left out, such as {min(above)}",
            stacklevel=4,
        )
    for name, parts in folders.items():
        if len(parts) >= least:
            yield [tree.path.stem, *parts][-2], parts[-1], name


def _folders(path: PurePosixPath) -> list[str]:
    """The folders of a file, from the top."""
    return [part for part in path.parts[:-1] if part.lower() != "images"]


def plain(name: str) -> str:
    """A name without case and separators: "Real World" and "real_world" are equal."""
    return re.sub(r"[ _-]", "", name.lower())


def _recognised(tree: Tree, layout: Layout) -> Iterator[Row]:
    """The images of the set, with the official names of domains and classes."""
    domains, classes = _spellings(layout)
    for domain, label, name in _placed(tree):
        for kind, found, known in (
            ("domain", domain, domains),
            ("class", label, classes),
        ):
            if plain(found) not in known and not (layout.is_part and kind == "class"):
                raise ValueError(
                    f"{tree.path.name}: expected a {kind} of {layout.source}, one of "
                    f"{', '.join(known.values())}, found {found!r} ({name}); is this "
                    "another set, or not laid out as <domain>/<class>/<image>?"
                )
        if plain(label) in classes:
            yield domains[plain(domain)], classes[plain(label)], name


def _spellings(layout: Layout) -> tuple[dict[str, str], dict[str, str]]:
    """Plain name → official name, of domains and of classes."""
    classes = {plain(name): name for name in layout.classes}
    also = {plain(name): official for name, official in layout.also.items()}
    return {plain(name): name for name in layout.domains}, classes | also


def _check_counts(rows: list[Row], layout: Layout, what: str) -> None:
    for domain, official in layout.domains.items():
        mine = [label for where, label, _ in rows if where == domain]
        counts = np.array([mine.count(label) for label in layout.classes])
        if not counts.all():
            absent = [c for c, n in zip(layout.classes, counts, strict=True) if n == 0]
            raise ValueError(
                f"{what}: expected {len(counts)} classes in {domain}, found no image "
                f"of {', '.join(absent[:5])}; the copy is incomplete: add the missing "
                "files, or copy the set again"
            )
        found = counts if len(official) > 1 else counts.sum(keepdims=True)
        if (found > np.array(official) * (1 + layout.surplus)).any():
            raise ValueError(
                f"{what}: expected at most {sum(official):,} images in {domain}, "
                f"class by class {list(official)}, found {found.tolist()}; the copy "
                "is not the published one, or holds images twice"
            )


def _key_of(row: Row) -> Row:
    return (*row[:2], PurePosixPath(row[2]).name)


def _published_split(tree: Tree, layout: Layout) -> dict[Row, bool]:
    """(domain, class, file name) → is_test; empty unless all lists were found."""
    files = {PurePosixPath(name).name.lower(): name for name in tree}
    if layout.lists is None or not all(
        f"{domain}{end}" in files for domain in layout.domains for end in layout.lists
    ):
        return {}
    domains, classes = _spellings(layout)
    numbers = dict(zip(layout.classes, layout.numbers, strict=True))
    split: dict[Row, bool] = {}
    for domain in layout.domains:
        for is_test, end in enumerate(layout.lists):
            for line in tree.lines(files[f"{domain}{end}"]):
                path, _, number = line.rpartition(" ")
                *_, where, label, file = ("", "", "", *PurePosixPath(path).parts)
                name = classes.get(plain(label))
                if name is None and layout.is_part:
                    continue
                is_here = domains.get(plain(where)) == domain
                if not is_here or number != str(numbers.get(name)):
                    raise ValueError(
                        f"{domain}{end}: expected lines such as "
                        f"'{domain}/{layout.classes[0]}/name.jpg {layout.numbers[0]}' "
                        f"with the numbers {layout.numbers}, found {line!r}; this is "
                        "another list, or its classes are numbered differently"
                    )
                split[domain, name, file] = bool(is_test)
    return split


def _assemble(
    tree: Tree,
    rows: list[Row],
    names: tuple[tuple[str, ...], tuple[str, ...]],
    size: int,
    split: dict[Row, bool],
) -> DomainData:
    """The images of ``rows``, sorted by domain, class and path.

    names:  of the domains and of the classes.
    split:  as published, or empty.
    """
    places = [{name: i for i, name in enumerate(each)} for each in names]
    rows = sorted(rows, key=lambda row: (places[0][row[0]], places[1][row[1]], row[2]))
    images, digests = decode(tree, [row[2] for row in rows], size)
    if split:
        is_test = np.array([split[_key_of(row)] for row in rows])
    else:
        is_test = drawn_split([f"{row[0]}/{row[1]}" for row in rows], digests)
    domain = np.array([places[0][row[0]] for row in rows])
    return DomainData(
        name=tree.path.stem,
        images=Images(images),
        labels=np.array([places[1][row[1]] for row in rows]),
        domain=domain,
        owner=domain.copy(),
        is_test=is_test,
        class_names=names[1],
        domain_names=names[0],
        owner_names=names[0],
        source=f"{len(rows):,} images under {tree.path.name}; {DRAWN}",
    )
