"""Write shipped files again: ``python -m fedlab_course.making NAME …``.

Names are those of the built-in data sets, ``style`` and ``tiny_vit`` (two pretrained
networks, which take minutes), or ``all``. Without a name the command lists them. Files
go to build/made; ``--shipped`` overwrites those of the package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from fedlab_support.data import DomainData, builtin
from fedlab_support.models.prompted_vit import TINY_VIT
from fedlab_support.models.style.adain import SMALL

from . import style, tiny_vit
from .camera_sites import camera_sites
from .characters import characters
from .digit_domains import digit_domains
from .digits import digits
from .phantoms import prostate_phantoms
from .picture_styles import picture_styles

DATA: dict[str, Callable[[], DomainData]] = {
    "digits": digits,
    "characters": characters,
    "digit_domains": digit_domains,
    "picture_styles": picture_styles,
    "prostate_phantoms": prostate_phantoms,
    "camera_sites": camera_sites,
}
MADE = Path("build", "made")
NETWORKS = {"style": (style.main, SMALL), "tiny_vit": (tiny_vit.main, TINY_VIT)}


def write(data: DomainData, path: Path) -> None:
    """Write a data set, lossless and compressed; equal sets give equal bytes.

    Pixels are stored as differences to their left neighbour, which compress better.
    """
    arrays = {name: getattr(data, name) for name in builtin.ARRAYS}
    arrays["images"] = np.diff(data.images, axis=3, prepend=np.uint8(0))
    about = {k: v for k, v in vars(data).items() if k not in builtin.ARRAYS}
    np.savez_compressed(path, about=json.dumps(about), **arrays)


def make(name: str, folder: Path | None = None) -> Path:
    """Write one file; returns its path.

    name:   a key of ``DATA`` or ``NETWORKS``.
    folder: where to, made if missing; None overwrites the shipped file.
    """
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    if name in DATA:
        path = (folder or builtin.FOLDER) / f"{name}.npz"
        with threadpool_limits(1):  # painting is many small matrix products
            write(DATA[name](), path)
    else:
        main, shipped = NETWORKS[name]
        path = (folder or shipped.parent) / shipped.name
        main(path)
    return path


def run(arguments: Sequence[str] | None = None) -> None:
    """Write the files that the command line names, or list them."""
    names = [*DATA, *NETWORKS]
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.making")
    parser.add_argument("names", nargs="*", choices=[*names, "all", []])
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--into", type=Path, default=MADE, help=f"default: {MADE}")
    where.add_argument("--shipped", action="store_true", help="overwrite the package's")
    chosen = parser.parse_args(arguments)
    if not chosen.names:
        print("\n".join(names))
    for name in names if "all" in chosen.names else chosen.names:
        path = make(name, None if chosen.shipped else chosen.into)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    run()
