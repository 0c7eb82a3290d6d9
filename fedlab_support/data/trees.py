"""Files of a folder or of a zip by their paths, and the images among them."""

from __future__ import annotations

import hashlib
import io
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from PIL import Image

from .reading import DAMAGE, check_size

UNREADABLE = (
    *DAMAGE,
    SyntaxError,  # Pillow's word for a broken PNG
    IndexError,
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow and zipfile raise for images that are cut short or altered."""


class Tree:
    """Files of a folder or of a zip, by their paths inside. Nothing is extracted.

    A zip that lies directly in the folder counts as unpacked there. Hidden files and
    those that an operating system adds are not seen. To be used in a ``with`` block,
    which closes the zips.

    Raises ValueError for a damaged zip, or one with a member whose path would lead out
    of the folder that it is unpacked in.
    """

    def __init__(self, path: Path):
        self.path, self._archives = path, []
        self._files: dict[str, Callable[[], bytes]] = {}
        try:
            if path.is_dir():
                for archive in sorted(path.glob("*.zip")):
                    self._add_zip(archive)
                for file in sorted(path.rglob("*")):
                    self._add(file.relative_to(path).as_posix(), file.read_bytes)
            else:
                self._add_zip(path)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, read: Callable[[], bytes]) -> None:
        parts = PurePosixPath(name).parts
        is_extra = any(part.startswith((".", "__MACOSX")) for part in parts)
        if PurePosixPath(name).suffix and not is_extra:
            self._files[name] = read

    def _add_zip(self, path: Path) -> None:
        try:
            archive = zipfile.ZipFile(path)
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise ValueError(
                f"{path.name}: expected a zip, found {path.stat().st_size:,} bytes "
                f"that cannot be read ({error}). Probably an incomplete copy: delete "
                "the file and copy it again"
            ) from error
        self._archives.append(archive)
        for member in archive.infolist():
            place = PureWindowsPath(member.filename)  # knows both kinds of slashes
            if place.drive or place.root or ".." in place.parts:
                raise ValueError(
                    f"{path.name}: expected paths inside the zip, found a member "
                    f"{member.filename!r} that leads out of it; get the zip from its "
                    "publisher"
                )
            if not member.is_dir():
                self._add(member.filename, partial(archive.read, member))

    def __iter__(self) -> Iterator[str]:
        """Paths of all files, parts divided by "/", sorted by code point."""
        return iter(sorted(self._files))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> bytes:
        """What the file ``name`` holds."""
        return self._files[name]()

    def lines(self, name: str) -> list[str]:
        """The lines of a text file that say something."""
        text = self.read(name).decode("utf-8", errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def close(self) -> None:
        """Let go of the zips."""
        for archive in self._archives:
            archive.close()

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def decode(
    tree: Tree, names: Sequence[str], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images of any shape and mode as squares in colour, by all cores.

    Returns uint8 (N, 3, size, size), resized with an antialiasing bilinear filter, and
    uint64 (N,), equal where files are identical. Transparency is dropped. Raises
    ValueError naming the first file that is not a whole image.

    Large JPEG files are opened at a half, a quarter or an eighth of their sides, never
    below twice ``size``, which their format allows at a fraction of the cost.
    """
    check_size(size)
    images = np.empty((len(names), 3, size, size), np.uint8)
    digests = np.empty(len(names), np.uint64)

    def place(i: int) -> None:
        content, image = _opened(tree, names[i], size)
        images[i] = np.asarray(image).transpose(2, 0, 1)
        digest = hashlib.sha256(content).digest()
        digests[i] = int.from_bytes(digest[:8], "little")

    with ThreadPoolExecutor() as pool:
        try:
            for _ in pool.map(place, range(len(names))):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return images, digests


def _opened(tree: Tree, name: str, size: int) -> tuple[bytes, Image.Image]:
    content = b""
    try:
        content = tree.read(name)
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (2 * size, 2 * size))
        image = image.convert("RGB")
        return content, image.resize((size, size), Image.Resampling.BILINEAR)
    except UNREADABLE as error:
        raise ValueError(
            f"{name} in {tree.path.name}: expected an image, found {len(content):,} "
            f"bytes that cannot be read ({error}). Probably an incomplete copy: get "
            "the file again, or remove it"
        ) from error
