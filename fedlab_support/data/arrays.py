"""Data sets of one's own: from arrays, and from any data set of torch."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from PIL import Image

from ..core.checks import SHARE, Range, checked
from .domain_data import DomainData
from .images import Images
from .reading import refuse_deep

SEED, TEST_SHARE = 20240, 0.2

TEST = Range(
    holds=lambda test: np.ndim(test) > 0 or SHARE.contains(test, "float"),
    allowed="a share in [0, 1), or True or False for each sample",
)


@checked(test=TEST)
def from_arrays(
    inputs,
    labels,
    *,
    domain=None,
    owner=None,
    test=TEST_SHARE,
    class_names: Sequence[str] | None = None,
    task: str | None = None,
    name: str = "own data",
    **settings,
) -> DomainData:
    """Make a data set of your own images, table, text features or other numbers.

    inputs:         (N, …): arrays, tensors, a table or a sparse matrix. uint8 (N, C, H,
                    W) are images; others are used as they are, whole numbers as int64
                    for an embedding, the rest as float32.
    labels:         (N,) of any values: the classes, in sorted order; masks, uint8 (N,
                    H, W); or the targets of a regression, floats (N,) or (N, M).
    domain, owner:  (N,) of any values: the style of a sample, and whose it is, for
                    ``by_owner``. None: one domain; one owner per domain.
    test:           the share of each domain and class that is set aside for testing,
                    drawn with a fixed seed, equal inputs on the same side; or bool
                    (N,), True for test samples.
    class_names:    for labels 0, 1, …; the order of labels that are texts; or the names
                    of targets.
    task:           "classification", "segmentation" or "regression". None: floats are
                    targets of a regression, and other labels classes or masks.
    settings:       further fields of ``DomainData``: mean, std, source.

    Raises ValueError as ``DomainData``, and for missing values.
    """
    inputs, labels = _numbers(inputs), _column(labels)
    is_mask = labels.dtype == np.uint8 and labels.ndim == 3
    usual = "regression" if labels.dtype.kind == "f" else "classification"
    task = task or ("segmentation" if is_mask else usual)
    if task == "regression":
        labels = labels.astype(np.float32).reshape(len(labels), -1)
        usual_names = [f"target {i + 1}" for i in range(labels.shape[1])]
    elif task == "segmentation":
        usual_names = ("background", "foreground")
    else:
        labels, usual_names = _numbered("labels", labels, class_names)
    domain = np.full(len(inputs), name) if domain is None else domain
    domain, domain_names = _numbered("domain", domain)
    owner, owner_names = (
        (domain, domain_names) if owner is None else _numbered("owner", owner)
    )
    class_names = usual_names if class_names is None else class_names
    names = tuple(class_names), domain_names, owner_names
    share = test if SHARE.contains(test, "float") else 0.0
    is_test = np.zeros(len(inputs), bool) if share is test else np.asarray(test)
    columns = inputs, labels, domain, owner, is_test
    data = DomainData(name, *columns, *names, task, **settings)
    return _split(data, share) if share else data


def _split(data: DomainData, share: float) -> DomainData:
    """The data with a share of each domain and class for testing."""
    has_classes = data.task == "classification"
    classes = data.labels if has_classes else np.zeros(len(data), dtype=np.int64)
    cells = [f"{d}/{y}" for d, y in zip(data.domain, classes, strict=True)]
    hashes = [hashlib.blake2b(x.tobytes(), digest_size=8).digest() for x in data.images]
    return replace(data, is_test=drawn_split(cells, np.array(hashes, "V8"), share))


@checked()
def from_dataset(dataset, *, test=TEST_SHARE, **settings) -> DomainData:
    """A data set of one's own from a map-style ``torch.utils.data.Dataset``.

    dataset:   ``dataset[i]`` is an input and a label, as ``from_arrays`` takes them;
               images of Pillow become uint8 (C, H, W), all of the same size. Every
               sample is read once: write a random transform as an ``Augmentation`` for
               ``LocalTraining(augment=…)``.
    test:      another such Dataset, or as in ``from_arrays``.
    settings:  of ``from_arrays``; ``domain`` and ``owner`` have an entry for each
               sample, those of ``test`` last. Class names are ``dataset.classes``, if
               there are any.

    Raises ValueError for another kind of data set, and for inputs that differ in shape.
    """
    # arrays, tensors and columns of tables have ndim, and samples are pairs
    is_row = isinstance(test, Sequence) and not isinstance(next(iter(test), 0), tuple)
    is_other = not (is_row or isinstance(test, float | int) or hasattr(test, "ndim"))
    parts = [dataset, test] if is_other else [dataset]
    try:
        sizes = [len(part) for part in parts]
        pairs = [part[i] for part in parts for i in range(len(part))]
        if isinstance(pairs[0], dict):
            raise TypeError(f"its samples are dictionaries of {list(pairs[0])}")
        inputs, labels = (
            np.stack([*map(read, column)])
            for read, column in zip(
                (_array, np.asarray), zip(*pairs, strict=True), strict=True
            )
        )
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise ValueError(
            "expected a map-style Dataset whose samples are an input and a label, all "
            f"inputs of one shape, found {type(dataset).__name__}: {error}"
        ) from error
    test = np.repeat([False, True], sizes) if is_other else test
    names = {"class_names": getattr(dataset, "classes", None)} | settings
    return from_arrays(inputs, labels, test=test, **names)


def _array(value) -> np.ndarray:
    """An array; of an image of Pillow its grey or RGB pixels, (C, H, W)."""
    if not isinstance(value, Image.Image):
        return np.asarray(value)
    refuse_deep(value)
    value = value if value.mode in ("L", "RGB") else value.convert("RGB")
    return np.moveaxis(np.atleast_3d(np.asarray(value)), 2, 0)


def _numbers(inputs) -> np.ndarray | Images:
    """Inputs as uint8, int64 or float32; ValueError for what is no array of numbers."""
    if isinstance(inputs, Images):
        return inputs
    if hasattr(inputs, "toarray"):  # a sparse matrix
        inputs = inputs.toarray()
    inputs = np.asarray(inputs)
    if inputs.dtype == np.uint8:
        return inputs
    if inputs.dtype.kind not in "biuf":
        raise ValueError(
            f"inputs must be numbers, found {inputs.dtype}; encode texts and "
            "categories, as pandas.get_dummies(…, dtype=float) or scikit-learn's "
            "TfidfVectorizer do"
        )
    return inputs.astype(np.int64 if inputs.dtype.kind in "iu" else np.float32)


def _column(values) -> np.ndarray:
    """An array; of texts one of objects, or NumPy would write NaN as the text "nan"."""
    column = np.asarray(values)
    return np.asarray(values, object) if column.dtype.kind == "U" else column


def _numbered(
    what: str, values, names: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Values as positions in their names, sorted if none are given, and the names."""
    values = _column(values)
    try:
        found, numbers = np.unique(values, return_inverse=True)
        is_whole = not (found != found).any() and None not in found.tolist()
    except TypeError:  # None or NaN among texts
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"{what} must be values of one kind, none of them missing, found "
            f"{values[:5].tolist()}; drop or name the missing ones"
        )
    if names is None:
        return numbers, tuple(map(str, found.tolist()))
    if values.dtype.kind in "iu":
        return values.astype(np.int64), tuple(names)
    places = {name: i for i, name in enumerate(names)}
    if unknown := [value for value in found.tolist() if value not in places]:
        raise ValueError(f"{what} must be among {list(names)}, found {unknown[0]!r}")
    return np.array([places[value] for value in found.tolist()])[numbers], tuple(names)


def drawn_split(
    cells: Sequence[str], digests: np.ndarray, share: float = TEST_SHARE
) -> np.ndarray:
    """Mark test samples, bool (N,): this share of each cell, rounded, or less.

    cells:    (N,) the name of each sample's cell. It seeds the draw, so that a cell is
              split in the same way in a set and in a part of it.
    digests:  (N,) samples with equal digests are on the same side, that of the first.
    """
    cells = np.asarray(cells)
    _, first, group, sizes = np.unique(
        digests, return_index=True, return_inverse=True, return_counts=True
    )
    is_test = np.zeros(len(first), dtype=bool)
    names, cell_of = np.unique(cells[first], return_inverse=True)
    by_cell = np.argsort(cell_of, kind="stable")
    parts = np.split(by_cell, np.cumsum(np.bincount(cell_of))[:-1])
    for cell, mine in zip(names, parts, strict=False):  # of no samples, one part
        rng = np.random.default_rng([SEED, zlib.crc32(cell.encode())])
        mine = rng.permutation(mine)
        most = round(share * sizes[mine].sum())
        mine = mine[sizes[mine] <= most]  # a larger group would end the draw
        is_test[mine[np.cumsum(sizes[mine]) <= most]] = True
    return is_test[group]
