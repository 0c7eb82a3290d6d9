"""Access the files of a folder or zip by path, and decode images."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path, PureWindowsPath

import numpy as np
from PIL import Image

from .mapped import Block, Source, mapped
from .reading import DAMAGE, check_bytes, open_image, regular, size_of

UNREADABLE = (
    *DAMAGE,
    SyntaxError,  # raised by Pillow for a broken PNG
    IndexError,
    struct.error,
    Image.DecompressionBombError,
)
"""Raised by Pillow and zipfile for images that are truncated or corrupted."""


class Tree(ExitStack):
    """The files of a folder or zip, by their paths inside; nothing is extracted.

    A zip directly in the folder is treated as if it were unpacked there, unless a
    folder of its name is beside it; links to folders are followed. Hidden files and
    those that an operating system adds are ignored. Use it in a ``with`` block, which
    closes the zips.

    Raises ValueError for a damaged zip, or one with a path that leads out of it.
    """

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self._files: dict[str, tuple[Callable[[], bytes], str]] = {}
        try:
            if path.is_dir():
                for archive in sorted(path.glob("[!.]*.zip")):
                    if not archive.is_dir() and not archive.with_suffix("").is_dir():
                        self._add_zip(archive)
                for folder, inner, files in os.walk(path, followlinks=True):
                    inner[:] = [each for each in inner if not _is_above(folder, each)]
                    inside = os.path.relpath(folder, path).replace(os.sep, "/")
                    above = "" if inside == "." else f"{inside}/"
                    for name in files:
                        self._add_file(f"{folder}{os.sep}{name}", above + name)
            else:
                self._add_zip(path)
        except BaseException:
            self.close()
            raise

    def _add(self, name: str, read: Callable[[], bytes], state: str) -> None:
        """state: changes with the contents of the file."""
        rooted = f"/{name}"
        is_extra = "/." in rooted or "/__MACOSX" in rooted
        if "." in rooted.rpartition("/")[2] and not is_extra:
            self._files[name] = read, state

    def _add_file(self, path: str, name: str) -> None:
        try:
            status = os.stat(path)  # with a Path for each file, it takes much longer
        except OSError:  # a link to nowhere
            return
        if stat.S_ISREG(status.st_mode):  # neither a folder nor a pipe or device
            state = f"{status.st_size} {status.st_mtime_ns}"
            self._add(name, partial(_content, path), state)

    def _add_zip(self, path: Path) -> None:
        try:
            size_of(path)  # refuses devices; any size will do, members are read singly
            archive = self.enter_context(zipfile.ZipFile(path))
        except FileNotFoundError:
            raise
        except DAMAGE as error:
            raise ValueError(
                f"{path.name}: expected a folder or a zip, found "
                f"{path.stat().st_size:,} bytes that cannot be read ({error}); unpack "
                "archives of other kinds. If it is a zip, it is probably an incomplete "
                "copy: get it again"
            ) from error
        for member in archive.infolist():
            place = PureWindowsPath(member.filename)  # splits at both kinds of slashes
            if place.drive or place.root or ".." in place.parts:
                raise ValueError(
                    f"{path.name}: expected paths inside the zip, found a member "
                    f"{member.filename!r} that leads out of it; get the zip from its "
                    "publisher"
                )
            if not member.is_dir():
                state = f"{member.file_size} {member.CRC}"
                self._add(place.as_posix(), partial(_unpacked, archive, member), state)

    def __iter__(self) -> Iterator[str]:
        """Paths of all files, with "/" as separator, sorted by code point."""
        return iter(sorted(self._files))

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def read(self, name: str) -> bytes:
        """The contents of the file ``name``."""
        return self._files[name][0]()

    def state(self, names: Sequence[str]) -> str:
        """A text that changes with the contents of these files."""
        return "\n".join(f"{name} {self._files[name][1]}" for name in names)

    def lines(self, name: str) -> list[str]:
        """The lines of a text file that are not empty, stripped."""
        try:
            text = self.read(name).decode("utf-8-sig", errors="replace")
        except DAMAGE as error:
            raise ValueError(
                f"{name} in {self.path.name}: expected a text that can be read, found "
                f"a damaged one ({error}); get the file again"
            ) from error
        return [line.strip() for line in text.splitlines() if line.strip()]


def _is_above(folder: str, name: str) -> bool:
    """Whether this folder in it is a link to one above, a loop without end."""
    return Path(folder).resolve().is_relative_to(Path(folder, name).resolve())


def _content(file: str) -> bytes:
    return regular(Path(file), is_single=True).read_bytes()


def _unpacked(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    # zipfile reads no more than that
    check_bytes(member.file_size, member.filename, is_single=True)
    return archive.read(member)


def decode(
    tree: Tree, names: Sequence[str], size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images of any shape and mode as square RGB images, decoded once (``mapped``).

    Returns uint8 (N, 3, size, size), a memory map, resized with an antialiasing
    bilinear filter, and digests, uint64 (N,), equal for identical files. Transparency
    is dropped. Raises ValueError, naming the first file that is not a complete image.

    Large JPEG files are decoded at a half, a quarter or an eighth of their size, never
    below twice ``size``, which is much faster.
    """
    shape = (len(names), 3, size, size)
    with ThreadPoolExecutor() as pool:

        def read(start: int, stop: int) -> Block:
            """Decode in threads, which works because Pillow releases the GIL."""
            images = np.empty((stop - start, *shape[1:]), np.uint8)
            digests = np.empty(stop - start, np.uint64)

            def decode_one(i: int) -> None:
                content, image = _open(tree, names[start + i], size)
                images[i] = np.asarray(image).transpose(2, 0, 1)
                digest = hashlib.sha256(content).digest()
                digests[i] = int.from_bytes(digest[:8], "little")

            for _ in pool.map(decode_one, range(stop - start)):
                pass
            return images, digests

        try:
            return mapped(Source(tree.path.stem, tree.state(names), shape, read))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _open(tree: Tree, name: str, size: int) -> tuple[bytes, Image.Image]:
    content = b""
    try:
        content = tree.read(name)
        image = open_image(content)
        image.draft("RGB", (2 * size, 2 * size))
        image = image if image.mode == "RGB" else image.convert("RGB")
        return content, image.resize((size, size), Image.Resampling.BILINEAR)
    except UNREADABLE as error:
        raise ValueError(
            f"{name} in {tree.path.name}: expected an image, found {len(content):,} "
            f"bytes that cannot be read ({error}). Probably an incomplete copy: get "
            "the file again, or remove it"
        ) from error
