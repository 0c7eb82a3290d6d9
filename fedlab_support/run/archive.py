"""Finished runs on disk: one file per run in a folder, or all of them in one archive.

A folder of runs, figures/04_fedfa/runs, and the archive beside it,
figures/04_fedfa/runs.zip, are one place, and either path names it. New runs go to the
folder; `pack` moves them into the archive.
"""

from __future__ import annotations

import io
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from glob import glob
from lzma import LZMAError
from pathlib import Path
from zipfile import ZIP_LZMA, ZIP_STORED, BadZipFile, ZipFile, ZipInfo
from zipfile import Path as ZipPath

from ..core.files import replacing
from ..core.history import History
from ..core.naming import plain, short_hash
from .checkpoint import MACHINE, claimed

DAMAGED = (BadZipFile, LZMAError, EOFError, OSError, ValueError, KeyError, TypeError)
DAMAGED += (zlib.error, RuntimeError, MemoryError, AttributeError)
"""Raised for archives and finished runs that are cut short or changed."""


def as_text(settings: dict) -> str:
    """The settings of a run as JSON: equal settings give equal texts."""
    return json.dumps(settings, indent=2, sort_keys=True, default=plain) + "\n"


def name_for(made_by: str) -> str:
    """The file name of the run with these settings, given as JSON text.

    The device and the version of PyTorch are kept with a run, but do not name it: a run
    that was trained on another machine is read, too.
    """
    return f"{short_hash(as_text(anywhere(made_by)).encode())}.zip"


def anywhere(made_by: str) -> dict:
    """The settings of a run, given as JSON text, without those of the machine."""
    return {k: v for k, v in json.loads(made_by).items() if k not in MACHINE}


def folder_of(place: str | Path) -> Path:
    """The folder of a place: runs for both runs and runs.zip."""
    place = Path(place)
    return place.with_suffix("") if place.suffix == ".zip" else place


def archive_of(place: str | Path) -> Path:
    """The archive of a place: runs.zip for both runs and runs.zip."""
    return Path(f"{folder_of(place)}.zip")


def matching(patterns: Iterable[str | Path]) -> list[Path]:
    """The folders and archives that patterns match, such as `figures/*/runs.zip`.

    A pattern matches a place under either of its names.
    """
    found = [
        place
        for pattern in patterns
        for form in (folder_of(pattern), archive_of(pattern))
        for place in sorted(map(Path, glob(str(form), recursive=True)))
    ]
    return [place for place in found if place.is_dir() or place.suffix == ".zip"]


def find(name: str, place: str | Path) -> History | None:
    """Return the finished run with this file name, or None.

    place: a folder of runs or its archive; the archive is searched first, and only this
           run is read from it. If it is damaged there, the folder's is returned.
    Raises ValueError for a damaged file.
    """
    archive, home = archive_of(place), folder_of(place) / name
    if archive.exists():
        try:
            with _opened(archive) as file:
                if name in file.NameToInfo:
                    return _history(file.read(name))
        except ValueError:
            if not home.exists():
                raise
    return kept(home) if home.exists() else None


@contextmanager
def _opened(archive: Path) -> Iterator[ZipFile]:
    """An archive; ValueError, also inside the block, if it is damaged."""
    try:
        with ZipFile(archive) as file:
            # one that was cut short passes for the last run that is whole
            if not all(name.endswith(".zip") for name in file.namelist()):
                raise ValueError("its end missing")
            yield file
    except DAMAGED as error:
        raise ValueError(
            f"{archive}: expected an archive of finished runs, found {error}; "
            "restore it from version control, or delete it to train its runs again"
        ) from None


def settings_in(place: str | Path) -> Iterator[str]:
    """The settings of all finished runs, as JSON; damaged files are left out."""
    with suppress(*DAMAGED), _opened(archive_of(place)) as archive:
        for name in archive.namelist():
            with suppress(*DAMAGED):
                yield _settings(io.BytesIO(archive.read(name)))
    for home in sorted(folder_of(place).glob("*.zip")):
        with suppress(*DAMAGED):
            yield _settings(home)


def _settings(run: Path | io.BytesIO) -> str:
    with ZipFile(run) as file:
        return file.read("made_by.json").decode()


def kept(home: Path) -> History:
    """The finished run in the file `home`; ValueError if it is damaged."""
    try:
        return _history(home.read_bytes())
    except DAMAGED as error:
        raise ValueError(
            f"{home}: expected a finished run, found {error}; delete the file to train "
            "the run again"
        ) from None


def _history(content: bytes) -> History:
    with ZipFile(io.BytesIO(content)) as file:
        if "run.json" not in file.namelist():
            raise ValueError("no run.json")
        file.filename = "run"  # without one, ZipPath cannot say what is missing
        return History.load(ZipPath(file))


def keep(history: History, made_by: str, home: Path) -> None:
    """Write a finished run and its settings into one file.

    The file appears only when it is complete. Its bytes depend only on the arguments,
    so a file under version control does not change when it is written again.
    """
    home.parent.mkdir(parents=True, exist_ok=True)
    texts = history.files() | {"made_by.json": made_by}
    with replacing(home) as part, ZipFile(part, "w") as file:
        for name in sorted(texts):
            file.writestr(ZipInfo(name), texts[name], ZIP_LZMA)


def pack(place: str | Path) -> int:
    """Add the runs of a folder to its archive; return how many were new.

    A run that the archive already holds stays as it is there. The archive is replaced
    in one step, and its bytes depend only on its runs. Files of the folder that it
    holds byte for byte are then deleted.
    Raises ValueError, and changes nothing, for a file that is damaged or not named
    after its settings, and for an empty folder; BlockingIOError while another process
    packs.
    """
    folder, archive = folder_of(place), archive_of(place)
    homes = sorted(folder.glob("*.zip"))
    if not homes:
        raise ValueError(f"expected finished runs (*.zip) in {folder}, found none")
    claim = folder / ".unfinished_archive"
    with claimed(claim):
        runs = {}
        if archive.exists():
            with _opened(archive) as file:
                runs = {name: file.read(name) for name in file.namelist()}
        num_before = len(runs)
        for home in homes:
            _check_name(home)
            runs.setdefault(home.name, home.read_bytes())
        with replacing(archive) as part, ZipFile(part, "w") as file:
            for name in sorted(runs):
                file.writestr(ZipInfo(name), runs[name], ZIP_STORED)
        for home in homes:
            if home.read_bytes() == runs[home.name]:
                home.unlink()
        shutil.rmtree(claim, ignore_errors=True)  # Windows keeps .in_use, still open
    return len(runs) - num_before


def _check_name(home: Path) -> None:
    kept(home)
    name = name_for(_settings(home))
    if home.name != name:
        raise ValueError(
            f"{home}: expected a run named after its settings, {name}; rename it, or "
            "delete it"
        )
