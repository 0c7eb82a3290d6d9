"""The built-in data sets: files that ship with the package and load in milliseconds.

``fedlab_course.making`` draws them; here they are only read.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from .domain_data import DomainData
from .reading import DAMAGE

FOLDER = Path(__file__).parent / "toy"
MAKING = "python -m fedlab_course.making --shipped"
ARRAYS = ("images", "labels", "domain", "owner", "is_test")

BUILT_IN = {
    "digits": "real handwritten digits, one domain (scikit-learn)",
    "characters": "drawn characters of 100 writers; stands in for FEMNIST",
    "digit_domains": "digits in five styles; stands in for Digit-Five",
    "picture_styles": "seven classes in four styles; stands in for PACS",
    "prostate_phantoms": "organs with masks at six sites; stands in for ProstateMRI",
    "camera_sites": "drawn animals at fifty cameras; stands in for iWildCam",
}
"""Name of each built-in set → its description in one line."""


@cache
def built_in(name: str) -> DomainData:
    """Load a built-in set; cached for the life of the process."""
    return read(FOLDER / f"{name}.npz")


def read(path: Path) -> DomainData:
    """Read a file that ``fedlab_course.making`` wrote.

    Raises FileNotFoundError or ValueError, with the cure, for a file that is missing
    or damaged.
    """
    cure = f"reinstall the package, or run `{MAKING} {path.stem}` to write it"
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in ARRAYS}
            about = json.loads(str(file["about"]))
    except FileNotFoundError:
        message = f"expected the built-in data set {path.name}, found no file; {cure}"
        raise FileNotFoundError(message) from None
    except (*DAMAGE, KeyError) as error:
        raise ValueError(
            f"expected a built-in data set in {path.name}, found a damaged file "
            f"({error}); {cure}"
        ) from error
    # stored as differences along a row, modulo 256, which compress better
    np.cumsum(arrays["images"], axis=3, dtype=np.uint8, out=arrays["images"])
    listed = {k: tuple(v) if isinstance(v, list) else v for k, v in about.items()}
    return DomainData(**arrays, **listed)
