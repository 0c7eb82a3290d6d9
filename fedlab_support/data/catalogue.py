"""The catalogue of data sets: load one by name, list them, find their files."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ..core.checks import COUNT, checked
from . import folders, iwildcam, layouts, prepared, prostate, tiny_imagenet
from .builtin import BUILT_IN, built_in
from .domain_data import DomainData
from .images import at_size
from .reading import resize, search_path

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Stored:
    """A data set that is read from prepared files.

    about:   a short description.
    files:   paths under a data folder. The first one that exists is read, or all that
             exist if ``joint``.
    read:    turns these paths and a size in pixels into ``DomainData``.
    obtain:  how to get the files, completing "To get it, …".
    """

    about: str
    files: tuple[str, ...]
    read: Callable[[tuple[Path, ...], int | None], DomainData]
    obtain: str
    joint: bool = False

    def find(self, root: str | os.PathLike[str] | None) -> tuple[Path, ...]:
        """The files to read; empty when none exists.

        Folders are searched in the order of ``reading.search_path``; the first folder
        that has a file is used.
        """
        wanted = [(file,) for file in self.files] if self.joint else [self.files]
        hits = (_first(search_path(root), files) for files in wanted)
        return tuple(hit for hit in hits if hit)


def _first(places: tuple[Path, ...], files: tuple[str, ...]) -> Path | None:
    paths = (place / file for place in places for file in files)
    return next((path for path in paths if path.exists()), None)


def _one_domain(name: str, about: str, *files: str) -> Stored:
    read = partial(prepared.read_one_domain, name=name)
    return Stored(about, files or (f"digits5/{name}.npz",), read, _prepare(name))


def _prepare(name: str) -> str:
    return f"run `python -m fedlab_course.making.prepare {name} --root data`"


def _tree(about: str, layout: folders.Layout, home: str, *names: str) -> Stored:
    """Images in folders, or in a zip of them, under one of several ``names``."""
    files = tuple(f"{name}{end}" for name in names for end in ("", ".zip"))
    obtain = (
        f"put its folder or zip there ({home}); images are resized to 64x64 or size="
    )
    return Stored(about, files, partial(folders.read, layout=layout), obtain)


def _prostate(about: str, **settings) -> Stored:
    files = ("prostate", "ProstateMRI", "prostate.zip")
    obtain = (
        "put the folder or zip of its six sites there (liuquande.github.io/SAML); "
        "nibabel reads it: pip install nibabel"
    )
    return Stored(about, files, partial(prostate.read, **settings), obtain)


STORED: dict[str, Stored] = {
    "femnist": Stored(
        "handwritten characters of 87 real writers",
        ("femnist/femnist_87writers.npz",),
        prepared.read_femnist,
        _prepare("femnist") + ", or copy the file from the course data",
    ),
    "femnist_unseen": Stored(
        "81 further FEMNIST writers, all for testing",
        ("femnist/femnist_81writers_testonly.npz",),
        prepared.read_femnist,
        _prepare("femnist_unseen") + ", or copy the file from the course data",
    ),
    "femnist_leaf": Stored(
        "FEMNIST as LEAF writes it, with LEAF's split",
        ("femnist/femnist_leaf.npz",),
        prepared.read_femnist,
        _prepare("femnist_leaf"),
    ),
    "femnist_hub": Stored(
        "FEMNIST from the Hugging Face hub, split 90/10 per writer",
        ("femnist/femnist_hub.npz",),
        prepared.read_femnist,
        _prepare("femnist_hub"),
    ),
    "emnist": _one_domain(
        "emnist", "EMNIST by class, writers unknown", "femnist/emnist.npz"
    ),
    "mnist": _one_domain("mnist", "handwritten digits"),
    "mnistm": _one_domain("mnistm", "MNIST digits blended over photographs"),
    "usps": _one_domain("usps", "digits from zip codes, scanned at 16x16"),
    "svhn": _one_domain("svhn", "house numbers in street photographs"),
    "synthdigits": _one_domain("synthdigits", "digits drawn from fonts, in colour"),
    "digits5": Stored(
        "all digit sets that were found, one domain each",
        tuple(f"digits5/{name}.npz" for name in prepared.DIGITS5),
        prepared.read_digits5,
        _prepare("mnist") + ", then mnistm, usps, svhn, synthdigits",
        joint=True,
    ),
    "cifar10": _one_domain(
        "cifar10",
        "photographs of ten classes of animals and vehicles",
        *("cifar10/cifar10.npz", "cifar10/cifar10_subset.npz"),
    ),
    "pacs": _tree(
        "seven classes as photos, art, cartoons and sketches",
        layouts.PACS,
        "the project page iccv2017 of the authors",
        *("PACS", "pacs"),
    ),
    "office31": _tree(
        "31 office objects from a shop and two cameras",
        layouts.OFFICE31,
        "the page domainadapt of its authors",
        *("office31", "Office31"),
    ),
    "office10": _tree(
        "ten classes of office31: three of Office-Caltech-10's four clients",
        layouts.OFFICE10,
        "the page domainadapt of its authors",
        *("office31", "Office31"),
    ),
    "office_caltech10": _tree(
        "ten office objects in four domains",
        layouts.OFFICE_CALTECH10,
        "Office-31 and ten folders of Caltech-256",
        *("office_caltech10", "office_caltech_10", "office_caltech_10_dataset"),
    ),
    "office_home": _tree(
        "65 household objects in four domains",
        layouts.OFFICE_HOME,
        "the page officehome-dataset of its authors",
        *("office_home", "OfficeHome", "OfficeHomeDataset_10072016"),
    ),
    "domainnet10": _tree(
        "ten classes of DomainNet in six domains",
        layouts.DOMAINNET10,
        "one zip and two lists per domain, in one folder, from ai.bu.edu/M3SDA",
        *("domainnet", "DomainNet"),
    ),
    "tiny_imagenet": Stored(
        "photographs of 200 classes, 64x64 pixels",
        ("tiny-imagenet-200", "tiny-imagenet-200.zip"),
        tiny_imagenet.read,
        "put the folder or zip tiny-imagenet-200 there (cs231n.stanford.edu)",
    ),
    "iwildcam": Stored(
        "animals at 323 camera traps, 80 of them held out",
        ("iwildcam_v2.0", "iwildcam", "iwildcam_v2.0.zip"),
        iwildcam.read,
        "unpack iwildcam_v2.0.tar.gz there (wilds.stanford.edu); images are resized to "
        "64x64 or size=",
    ),
    "prostate": _prostate("prostate MRI of six hospitals, split by patient"),
    "prostate_slices": _prostate(
        "prostate MRI of six hospitals, split by slice as in the papers", by="slices"
    ),
    "mini_prostate": _prostate(
        "prostate_slices with 32 to 46 slices per hospital to train on",
        by="slices",
        one_in=6,
    ),
}
"""Every data set that needs files; a name always refers to the same files."""


@checked(size=COUNT)
def load(
    name: str, root: str | os.PathLike[str] | None = None, size: int | None = None
) -> DomainData:
    """Load a data set by name; nothing is ever downloaded.

    root:  folder with prepared files, searched before ``$FEDLAB_DATA`` and ``./data``.
    size:  height and width in pixels (bilinear, antialiased; masks by the nearest
           pixel); None keeps the stored size, 32 for ``digits5``, or 64 for sets of
           image files, which differ in shape. Images are enlarged where they are used.

    Image files and digits are decoded once, into a file under ``$FEDLAB_CACHE`` or
    ``~/.cache/fedlab`` that later calls open; delete it whenever you like.

    Raises ValueError for an unknown name or a damaged file, and FileNotFoundError, with
    instructions to get the files, when they are missing. See ``available``.
    """
    size = size and int(size)  # NumPy's numbers are written differently in names
    if name in BUILT_IN:
        data = deepcopy(built_in(name))  # its arrays may be changed
        labels = data.labels
        if data.has_masks:
            labels = resize(labels, size, Image.Resampling.NEAREST)
        return replace(data, images=at_size(data.images, size), labels=labels)
    if name not in STORED:
        known = (*BUILT_IN, *STORED)
        close = difflib.get_close_matches(name, known, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        if os.path.exists(name):
            guess = " It is a path: from_folders reads folders and zips of images."
        raise ValueError(
            f"expected the name of a data set, one of {', '.join(known)}; found "
            f"{name!r}.{guess}"
        )
    stored = STORED[name]
    paths = stored.find(root)
    if not paths:
        files = " or ".join(stored.files)
        places = ", ".join(map(str, search_path(root)))
        raise FileNotFoundError(
            f"{name}: expected {files} under {places}; found none.\n"
            f"To get it, {stored.obtain}; or pass its folder as root= or $FEDLAB_DATA."
        )
    return replace(stored.read(paths, size), name=name)


def available(root: str | os.PathLike[str] | None = None) -> pd.DataFrame:
    """A table of all data sets: name, description, and whether its files were found.

    root:  as for ``load``.

    The column ``here`` is ``built in``, ``yes``, ``no``, or, for a joint set, how many
    of its files were found, such as ``3 of 5``.
    """
    import pandas as pd

    rows = [(name, about, "built in") for name, about in BUILT_IN.items()]
    for name, stored in STORED.items():
        found = len(stored.find(root))
        here = "yes" if found else "no"
        if stored.joint and 0 < found < len(stored.files):
            here = f"{found} of {len(stored.files)}"
        rows.append((name, stored.about, here))
    return pd.DataFrame(rows, columns=["name", "about", "here"]).set_index("name")
