"""Read and check prepared ``.npz`` files, and resize images."""

from __future__ import annotations

import io
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

MOST_BYTES = 4_000_000_000
"""Largest archive, or array in one, that is read, in bytes. For larger data raise it:
``fedlab_support.data.reading.MOST_BYTES = …``."""

MOST_FILE_BYTES = 200_000_000
"""Largest single file of a data set, such as an image, in bytes when unpacked;
raise it as ``MOST_BYTES``."""

MOST_PIXELS = 50_000_000
"""Largest image that is decoded, in pixels; raise it as ``MOST_BYTES``."""

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF")
"""Image formats that are decoded, whatever the name of the file; some of Pillow's other
formats start programs."""

Arrays = dict[str, np.ndarray]
"""The contents of a prepared file: arrays by key."""

DAMAGE = (
    OSError,
    EOFError,
    ValueError,  # not an array file, or one with pickled objects
    AttributeError,  # a single array, which cannot be opened as an archive
    TypeError,
    RuntimeError,  # a flag byte means "encrypted" or "other compression"
    MemoryError,  # a header promises more than there is
    OverflowError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Raised by NumPy for files that are truncated, corrupted or of another kind."""


def regular(path: Path, is_single: bool = False) -> Path:
    """The path of a regular file; ValueError for another, or one that is too large.

    is_single:  as in ``check_bytes``.

    Reading a pipe would wait for ever, reading a device would never end.
    """
    check_bytes(size_of(path), path.name, is_single)
    return path


def size_of(path: Path) -> int:
    """The bytes of a regular file; ValueError for another, OSError if there is none."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"expected a file, found a device, pipe or folder: {path}")
    return status.st_size


def check_bytes(size: int, what: str, is_single: bool = False) -> None:
    """Raise ValueError when something is larger than MOST_BYTES.

    is_single:  it is a single file of a data set: MOST_FILE_BYTES.
    """
    most = MOST_FILE_BYTES if is_single else MOST_BYTES
    if size > most:
        name = "MOST_FILE_BYTES" if is_single else "MOST_BYTES"
        raise ValueError(
            f"{what}: expected at most {most:,} bytes, found {size:,}; if that is "
            f"right, raise fedlab_support.data.reading.{name}"
        )


def open_image(content: bytes) -> Image.Image:
    """Open an encoded image; ValueError for other FORMATS and above MOST_PIXELS.

    Raises what Pillow raises for damaged content.
    """
    image = Image.open(io.BytesIO(content), formats=FORMATS)
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(
            f"expected at most {MOST_PIXELS:,} pixels, found {image.width} x "
            f"{image.height}; if that is right, raise "
            "fedlab_support.data.reading.MOST_PIXELS"
        )
    refuse_deep(image)
    return image


def refuse_deep(image: Image.Image) -> None:
    """Raise ValueError for 16 or 32 bits per value, which Pillow clips at 255."""
    if image.mode[0] in "IF":
        raise ValueError(
            f"expected 8 bits per value, found the mode {image.mode!r}; rescale the "
            "images to 0…255"
        )


def search_path(root: str | os.PathLike[str] | None) -> tuple[Path, ...]:
    """Folders that are searched for data: ``root``, ``$FEDLAB_DATA``, ``./data``."""
    wanted = (root, os.environ.get("FEDLAB_DATA"), "data")
    return tuple(Path(folder) for folder in wanted if folder)


def resize(
    images: np.ndarray,
    size: int | None,
    kind: Image.Resampling = Image.Resampling.BILINEAR,
) -> np.ndarray:
    """Resize images to ``size`` x ``size`` pixels; None returns them unchanged.

    images:  uint8 (…, H, W).
    kind:    how: by antialiased filters, or NEAREST for masks.
    Returns uint8 (…, size, size).
    """
    if size is None or images.shape[-2:] == (size, size):
        return images
    planes = images.reshape(-1, *images.shape[-2:])
    out = np.empty((len(planes), size, size), np.uint8)
    for i, plane in enumerate(planes):
        out[i] = Image.fromarray(plane).resize((size, size), kind)
    return out.reshape(*images.shape[:-2], size, size)


class Rows:
    """An array of an ``.npz`` file, read some rows at a time.

    state:  a text that changes with the array.
    """

    def __init__(self, path: Path, key: str):
        self.path, self.member = path, f"{key}.npy"
        with zipfile.ZipFile(path) as archive:
            about = archive.getinfo(self.member)
            self.state = f"{self.member} {about.file_size} {about.CRC}"
            with archive.open(self.member) as file:
                self.shape, self.is_fortran, self.dtype = _header(file)
        size = math.prod(self.shape) * self.dtype.itemsize
        if not self.shape or self.dtype.hasobject or size > about.file_size:
            raise ValueError(f"{size:,} bytes promised, {about.file_size:,} there")

    def blocks(self, step: int) -> Iterator[np.ndarray]:
        """The rows, ``step`` at a time; ValueError for a damaged file."""
        try:
            with (
                zipfile.ZipFile(self.path) as archive,
                archive.open(self.member) as file,
            ):
                yield from self._read(file, step)
        except DAMAGE as error:
            raise _damaged(self.path, (self.member,), error) from error

    def _read(self, file: IO[bytes], step: int) -> Iterator[np.ndarray]:
        num, *shape = self.shape
        if self.is_fortran:  # rows do not lie together
            whole = np.lib.format.read_array(file, allow_pickle=False)
            yield from (whole[start : start + step] for start in range(0, num, step))
            return
        _header(file)
        for start in range(0, num, step):
            rows = min(step, num - start)
            content = file.read(rows * math.prod(shape) * self.dtype.itemsize)
            yield np.frombuffer(content, self.dtype).reshape(rows, *shape)
        file.read()  # at its end the checksum is compared


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns lie together, and type, at the start of an array file."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def read_arrays(
    path: Path, kinds: Mapping[str, str], leave: Sequence[str] = ()
) -> Arrays:
    """Read a prepared ``.npz`` of plain arrays and check its keys and types.

    kinds:  required keys and their NumPy kind codes, ``{"labels": "i"}``; ``"u1"`` is
            uint8.
    leave:  keys of arrays that are returned as ``Rows``, not read yet.
    Returns every array of the file, by key.
    Raises ValueError when the file is damaged, a key is missing or a kind is wrong.
    """
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            for member in archive.infolist():
                check_bytes(member.file_size, member.filename)
        with np.load(path, allow_pickle=False) as stored:
            arrays = {
                key: Rows(path, key) if key in leave else stored[key]
                for key in stored.files
            }
    except FileNotFoundError:
        raise
    except DAMAGE as error:
        raise _damaged(path, kinds, error) from error
    absent = [key for key in kinds if key not in arrays]
    if absent:
        raise ValueError(
            f"{path.name}: expected the arrays {', '.join(kinds)}, found "
            f"{', '.join(arrays) or 'none'}; {', '.join(absent)} is missing, so this "
            "is another kind of file. Make it again with fedlab_course.making.prepare"
        )
    for key, kind in kinds.items():
        found = arrays[key].dtype
        if found.kind not in kind and found.str[1:] != kind:
            raise ValueError(
                f"{path.name}: expected {key} of kind {kind!r}, found {found}; make "
                "the file again with fedlab_course.making.prepare"
            )
    return arrays


def _damaged(path: Path, kinds: Iterable[str], error: Exception) -> ValueError:
    size = path.stat().st_size
    return ValueError(
        f"{path.name} ({path}): expected an .npz with {', '.join(kinds)}, found "
        f"{size:,} bytes that cannot be read ({error}). Probably an incomplete copy: "
        "delete the file and copy or prepare it again"
    )
