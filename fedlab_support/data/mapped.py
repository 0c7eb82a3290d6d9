"""Large data sets are decoded once, into a memory-mapped file that is opened later.

The file is a plain ``.npy`` of uint8 (N, C, H, W). Its index, ``.jsonl``, has a line
for every finished block of images: hash of its pixels, digests of the files it was
made from. Whoever is interrupted goes on after the last finished block.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock
from tqdm.auto import tqdm

from ..core.naming import short_hash

BLOCK_BYTES = 32_000_000
"""Pixels that are decoded, written and hashed in one go."""

Block = tuple[np.ndarray, np.ndarray]
"""Images uint8 (B, C, H, W), and a digest of each one's file, uint64 (B,)."""


@dataclass(frozen=True)
class Source:
    """Images that are yet to be decoded.

    name:   of the data set, for the file and the progress bar.
    files:  a text that changes with the files, their sizes or the decoding.
    shape:  (N, C, H, W).
    read:   decodes the images from one position to another.
    """

    name: str
    files: str
    shape: tuple[int, int, int, int]
    read: Callable[[int, int], Block]


def cache_folder() -> Path:
    """Where decoded images are kept: ``$FEDLAB_CACHE`` or ``~/.cache/fedlab``."""
    return Path(os.environ.get("FEDLAB_CACHE") or Path.home() / ".cache" / "fedlab")


def mapped(source: Source) -> Block:
    """The images of a source as a memory map, and the digests of their files.

    Decoded with a progress bar by the first caller, while others wait; later calls open
    the file. A file that was changed since is compared with its hashes, block by block,
    and damaged blocks are decoded again. Nobody can change the file through the map.

    Raises OSError, before anything is decoded, when the folder cannot be written or the
    disk has too little room; and what ``read`` raises.
    """
    mark = short_hash(f"{source.shape} {source.files}".encode())
    path = cache_folder() / f"{source.name}-{mark}.npy"
    blocks = _Blocks(source, path)
    try:
        if (digests := blocks.finished()) is None:  # a read-only folder takes no lock
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                digests = blocks.complete()
    except OSError as error:
        if error.errno is None:  # too little room
            raise
        raise OSError(_room(source, path.parent, f"cannot write: {error}")) from error
    return np.load(path, mmap_mode="c"), digests


def _room(source: Source, folder: Path, found: str) -> str:
    needed = math.prod(source.shape) / 1e9
    return (
        f"{source.name}: expected {needed:.1f} GB for its decoded images in {folder}, "
        f"found {found}; set FEDLAB_CACHE to another folder, or load a smaller size="
    )


class _Blocks:
    """The file and its index while they are made."""

    def __init__(self, source: Source, path: Path):
        self.source, self.path, self.index = source, path, path.with_suffix(".jsonl")
        num, *image = source.shape
        self.step = max(1, BLOCK_BYTES // math.prod(image))
        self.starts = range(0, num, self.step)

    def finished(self) -> np.ndarray | None:
        """The digests, uint64 (N,), if all blocks are there and unchanged."""
        done, is_finished = self._known()
        return self._digests(done) if is_finished else None

    def complete(self) -> np.ndarray:
        """Decode what is missing; returns the digests, uint64 (N,)."""
        done, is_finished = self._known()
        if not is_finished:
            if not self._is_whole():
                self._create()
                done = {}
            done = {start: line for start, line in done.items() if self._holds(line)}
            missing = [start for start in self.starts if start not in done]
            with tqdm(
                desc=f"{self.source.name}, decoded once",
                total=self.source.shape[0],
                initial=sum(line["num"] for line in done.values()),
                unit=" images",
                delay=2,
            ) as bar:
                for start in missing:
                    done[start] = self._decode(start)
                    bar.update(done[start]["num"])
            self._note({"written": self._stamp()})
        return self._digests(done)

    def _digests(self, done: dict[int, dict]) -> np.ndarray:
        digests = b"".join(bytes.fromhex(done[s]["digests"]) for s in self.starts)
        return np.frombuffer(digests, "<u8")

    def _known(self) -> tuple[dict[int, dict], bool]:
        """First image → line of its block; and whether all are there, unchanged."""
        done, written = {}, None
        with suppress(FileNotFoundError):
            for text in self.index.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # cut short by an interrupt
                    line = json.loads(text)
                    written = line.get("written")
                    if "start" in line:
                        done[line["start"]] = line
        is_unchanged = written is not None and written == self._stamp()
        return done, is_unchanged and done.keys() >= {*self.starts}

    def _stamp(self) -> list[int] | None:
        with suppress(FileNotFoundError):
            status = self.path.stat()
            return [status.st_size, status.st_mtime_ns]

    def _is_whole(self) -> bool:
        with suppress(OSError, ValueError):
            return np.load(self.path, mmap_mode="r").shape == self.source.shape
        return False

    def _create(self) -> None:
        self.index.unlink(missing_ok=True)
        free = shutil.disk_usage(self.path.parent).free
        if math.prod(self.source.shape) > free:
            raise OSError(
                _room(self.source, self.path.parent, f"{free / 1e9:.1f} GB free")
            )
        np.lib.format.open_memmap(self.path, "w+", np.uint8, self.source.shape)

    def _holds(self, line: dict) -> bool:
        stored = np.load(self.path, mmap_mode="r")
        pixels = stored[line["start"] : line["start"] + line["num"]]
        return hashlib.sha256(pixels).hexdigest() == line["sha256"]

    def _decode(self, start: int) -> dict:
        stop = min(start + self.step, self.source.shape[0])
        images, digests = self.source.read(start, stop)
        images = np.ascontiguousarray(images)
        stored = np.load(self.path, mmap_mode="r+")
        stored[start:stop] = images
        stored.flush()
        line = {
            "start": start,
            "num": stop - start,
            "sha256": hashlib.sha256(images).hexdigest(),
            "digests": digests.astype("<u8").tobytes().hex(),
        }
        self._note(line)
        return line

    def _note(self, line: dict) -> None:
        with self.index.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
