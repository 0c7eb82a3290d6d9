"""Images as small as they were published, enlarged only where they are used."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from .reading import resize


@dataclass(frozen=True, eq=False)
class Images:
    """Images uint8 (N, C, H, W) that are stored once, on disk or in memory.

    array:      uint8 (M, C, h, w), often a memory map (see ``mapped``), never copied.
    size:       height and width when used; None: as stored.
    rows:       int (N,), which of the stored images these are; None: all.
    version:    of a published set: how many images it has here, and how they are split.
                It stands in the fingerprint for the pixels, which depend on the
                decoder.

    Indexing returns plain arrays at full size. Training instead takes ``array`` and
    enlarges each batch on the device; Pillow and PyTorch then differ by a grey level.
    """

    array: np.ndarray
    size: int | None = None
    rows: np.ndarray | None = None
    version: str = ""

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __len__(self) -> int:
        return len(self.array if self.rows is None else self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W), at the size when used."""
        _, channels, *stored = self.array.shape
        return len(self), channels, *((self.size,) * 2 if self.size else stored)

    def __getitem__(self, index) -> np.ndarray:
        index, *rest = index if isinstance(index, tuple) else (index,)
        if index is Ellipsis or index is None or any(map(np.ndim, rest)):
            return self[:][(index, *rest)]  # depends on all axes
        found = self.array[index if self.rows is None else self.rows[index]]
        found = resize(np.asarray(found), self.size)
        return found[(slice(None),) * (found.ndim == 4) + tuple(rest)]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.asarray(self[:], dtype)

    def select(self, index: np.ndarray) -> Images:
        """These images at ``index``, as positions in the same array."""
        rows = np.arange(len(self.array)) if self.rows is None else self.rows
        return replace(self, rows=rows[index])

    def identity(self) -> bytes:
        """What the images are: their version, or else a hash, and which of them."""
        rows = b"" if self.rows is None else self.rows.astype("<i8").tobytes()
        if self.version:
            return self.version.encode() + rows
        return hashlib.sha256(np.ascontiguousarray(self.array)).digest() + rows


def at_size(images: np.ndarray, size: int | None) -> np.ndarray | Images:
    """Images for use at ``size`` pixels: shrunk now, or enlarged per batch."""
    if size is None or size <= max(images.shape[2:]):
        return resize(images, size)
    return Images(images, size)
