"""Checkpoints: save the state of a run after a round, and continue from it.

A folder belongs to one run. Every saved round is one safetensors file, replaced in one
step, whose name ends in a hash of its content. The last two undamaged files are kept,
and the history is in a file beside them (see ``journal``).

Random streams are functions of (seed, purpose, round, client) and are not saved. Code
is not compared: delete the folder after changing a method or a model.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from safetensors import SafetensorError
from safetensors.torch import load as tensors_from

from ..core.files import replacing
from ..core.history import History
from ..core.naming import plain, short_hash
from .journal import TABLES, Journal
from .snapshot import Snapshot, restored, serialised

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes apart
    fcntl = None

FORMAT = 3
"""Changes when files of an older version can no longer be read."""

MACHINE = ("device", "torch")
"""Settings of the machine: a difference causes only a warning. But a run that a CPU has
begun cannot continue on an accelerator."""

DAMAGED = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError)
DAMAGED += (IndexError, MemoryError, SafetensorError)
"""Raised for checkpoints that are cut short, changed, or not written here."""


# ---- a run and its folder -----------------------------------------------------------
@contextmanager
def keeping(run, folder: str | Path | None, every: int) -> Iterator[Callable]:
    """Restore ``run`` from its newest checkpoint, and save new ones inside the block.

    folder:  used by this run only; None restores and saves nothing.
    every:   rounds between checkpoints.
    Yields ``keep(is_last)``, which saves when the round is a multiple of ``every`` or
    the last. Only a run without rounds is restored; ``run.rounds_restored`` counts
    them.

    Raises ValueError, without changing the run, for checkpoints of another run, damaged
    ones only, one ahead of a run that has made rounds, and settings that do not
    identify a run. Raises BlockingIOError when another run uses the folder.
    """
    if folder is None:
        yield lambda is_last: None
        return
    folder, made_by = Path(folder), _made_by(run)
    device = run.federation.store.device

    def keep(is_last: bool) -> None:
        if is_last or run.server.round % every == 0:
            save(folder, made_by, Snapshot.of(run), journal)

    with claimed(folder):
        found, journal = load(folder, made_by, device) or (None, None)
        if found is not None and found.server.round > run.server.round:
            if run.server.round > 0:
                raise ValueError(
                    f"the checkpoint in {folder} is at round {found.server.round}, but "
                    f"this run has already made {run.server.round} rounds; pass "
                    "checkpoint= to the first fit of a run, or use another folder"
                )
            found.restore(run)
            run.rounds_restored = found.server.round
        if found is None or not _is_start(found.history, run.history):
            journal = Journal(folder / f"history_{run.server.round}.jsonl")
        yield keep


def _is_start(start: History, history: History) -> bool:
    """Whether ``history`` has the same rows as ``start``, and maybe more."""
    return all(
        json.dumps(rows, default=plain)
        == json.dumps(getattr(history, table)[: len(rows)], default=plain)
        for table, rows in ((table, getattr(start, table)) for table in TABLES)
    )


def _made_by(run) -> dict:
    """The settings that identify a run; ValueError if it cannot be restored."""
    made_by = run.describe() | {"evaluate_every": run.evaluate_every, "format": FORMAT}
    refuse_nameless(made_by, ("select", "schedule"))
    return made_by


def refuse_nameless(made_by: dict, functions: Sequence[str]) -> None:
    """Raise ValueError for a setting whose name others may share."""
    for name, value in made_by.items():
        # "...," is NumPy's and PyTorch's short form of a long array
        shared = (" at 0x", "...,")
        if name in functions:  # all lambdas have one name
            shared += ("<lambda>", "<locals>")
        if any(sign in str(value) for sign in shared):
            raise ValueError(
                f"a run on disk is identified by its settings, but its {name} is only "
                f"known as {value!r}, a name that others may share; use "
                "functools.partial, or a function or frozen dataclass of a module or "
                "notebook cell"
            )


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Lock ``folder`` inside the block; the lock of a killed process is released.

    Raises BlockingIOError when another process holds the lock, OSError when the folder
    is not writable. On file systems without locks nothing is locked.
    """
    with _claim_file(folder) as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno,
                "another run is writing checkpoints here; wait until it ends, or give "
                "each run its own folder",
                str(folder),
            ) from None
        except OSError:
            pass  # this file system has no locks
        yield


def _claim_file(folder: Path) -> TextIO:
    """Open the lock file; retry if the folder is removed at the same time."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return (folder / ".in_use").open("w")


# ---- files --------------------------------------------------------------------------
def save(folder: Path, made_by: dict, snapshot: Snapshot, journal: Journal) -> Path:
    """Write one checkpoint; if the process is killed, older ones stay unchanged.

    made_by:  JSON values that ``load`` compares.
    journal:  receives the new rows of the history.
    Removes unfinished files, and all but the last two undamaged checkpoints. Raises
    OSError when the file cannot be written; older checkpoints stay unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".*.unfinished"):
        leftover.unlink()
    round, path = snapshot.server.round, journal.path
    try:
        content = serialised(made_by, snapshot, journal.append(snapshot.history))
        path = folder / f"round_{round:08d}_{short_hash(content)}.safetensors"
        with replacing(path) as part, part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _settle(folder)
    except OSError as error:
        raise OSError(
            error.errno,
            f"round {round} could not be saved ({error.strerror}); older checkpoints "
            "are unchanged: free some disk space, and continue from the last one",
            str(path),
        ) from error
    others = [other for other in _saved(folder) if other != path]
    older = (other for other in others if other.name < f"round_{round:08d}")
    previous = next((other for other in older if _is_whole(other)), None)
    for other in others:
        if other != previous:
            other.unlink()
    return path


def load(folder: Path, made_by: dict, device="cpu") -> tuple[Snapshot, Journal] | None:
    """The newest undamaged checkpoint and its journal; None when there is none at all.

    Damaged ones are skipped with a warning. Tensors are restored bit for bit in their
    memory layout, those of an accelerator on ``device``. Raises ValueError when all are
    damaged or when ``made_by`` differs; the message lists the differences.
    """
    here, saved = json.loads(json.dumps(made_by, default=plain)), _saved(folder)
    for path in saved:
        try:
            tensors = tensors_from(_read(path))
            state = json.loads(tensors.pop("state").numpy().tobytes())
            there = dict(state["made_by"])
        except DAMAGED as error:
            _warn_of_damage(path, error)
            continue
        _refuse_another(path, there, here)
        try:
            journal, rows = Journal.read(folder, state["journal"])
            return restored(state, tensors, rows, device), journal
        except DAMAGED as error:
            _warn_of_damage(path, error)
    if saved:
        raise ValueError(
            f"expected an undamaged checkpoint in {folder}, found {len(saved)} "
            "damaged; restore a copy, or delete the folder to start from round 0"
        )
    return None


def _warn_of_damage(path: Path, error: Exception) -> None:
    found = f"{type(error).__name__}: {error}"
    warnings.warn(f"skipped as damaged: {path}: {found}", stacklevel=4)


def _saved(folder: Path) -> list[Path]:
    """All checkpoints, newest first."""
    return sorted(folder.glob("round_*.safetensors"), reverse=True)


def _read(path: Path) -> bytes:
    """The content of a file; ValueError when its hash differs."""
    content = path.read_bytes()
    if not path.stem.endswith(found := short_hash(content)):
        raise ValueError(
            f"expected content with the hash in its name, found {len(content):,} bytes "
            f"with hash {found}; the file was cut short or changed"
        )
    return content


def _is_whole(path: Path) -> bool:
    try:
        return bool(_read(path))
    except (OSError, ValueError):
        return False


def _settle(folder: Path) -> None:
    """Flush the folder, so that a new name survives a loss of power."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_DIRECTORY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _refuse_another(path: Path, there: dict, here: dict) -> None:
    differs = {
        name: f"{name}: here {here.get(name, 'not set')!r}, there "
        f"{there.get(name, 'not set')!r}"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    }
    # files of a CPU do not show which tensors an accelerator would hold
    alike = MACHINE if there.get("device") != "cpu" else ("torch",)
    machine = [differs.pop(name) for name in alike if name in differs]
    if differs:
        raise ValueError(
            f"the checkpoint {path} is another run's: {'; '.join(differs.values())}; "
            "use another folder, or the same settings"
        )
    if machine:
        warnings.warn(
            f"the run continues on another platform ({'; '.join(machine)}), so its "
            "last bits may differ from those of an uninterrupted run",
            stacklevel=3,
        )
