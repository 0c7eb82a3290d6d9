"""Checkpoints: save the state of a run after a round, and continue from it.

A folder belongs to one run. Every saved round is one safetensors file that is replaced
in one step; its name ends in a hash of its content, which reveals damage. The last two
undamaged files are kept.

Random state is not saved: every stream is a function of (seed, purpose, round, client),
so the seed and the number of completed rounds determine it. Code is not compared:
delete the folder after changing a method or a model.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of

from ..core.history import History
from ..core.messages import Server, Tensors, expect_alike
from ..core.naming import is_nameless, plain
from ..training.context import PrivateState
from .bounds import Usual

try:
    import fcntl
except ImportError:  # Windows: nothing there keeps two processes apart
    fcntl = None

FORMAT = 2
"""Changes when files of an older version can no longer be read."""

UNFINISHED = ".unfinished_"
"""Prefix of the name of a file that is still being written."""

MACHINE = ("device", "torch")
"""Settings of the machine: a difference causes only a warning."""

ROWS = ("measured", "traffic", "absences")

UNUSABLE = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, IndexError)
UNUSABLE += (MemoryError, SafetensorError)
"""Raised for files with a valid hash whose content was not written here."""


@dataclass(frozen=True)
class Snapshot:
    """The state that the next round of a run depends on, and its history so far.

    server:        round, weights, shared, memory, and which weights are parameters.
    private:       private state of each client.
    reports:       last accepted upload of each client.
    clients:       clients that are still in the run, (K,).
    times_chosen:  how often each client was selected, (number of clients,).
    usual:         usual sizes of updates, see ``bounds``.
    history:       the tables so far.
    """

    server: Server
    private: dict[int, PrivateState]
    reports: dict[int, Tensors]
    clients: np.ndarray
    times_chosen: np.ndarray
    usual: Usual
    history: History

    @classmethod
    def of(cls, run) -> Snapshot:
        """The state of ``run`` after a round; nothing is copied."""
        return cls(**{name: getattr(run, name) for name in cls.__dataclass_fields__})

    def restore(self, run) -> None:
        """Set ``run`` to this state; its ``messages`` are not saved.

        Raises ValueError, without changing the run, if weights, private weights or
        columns of clients do not have the run's form.
        """
        expect_alike("weights", self.server.weights, run.server.weights)
        for kept in self.private.values():
            if kept.weights:
                expect_alike("private weights", kept.weights, run.job.initial_private)
        num = len(run.federation)
        is_known = ((self.clients >= 0) & (self.clients < num)).all()
        if len(self.times_chosen) != num or not is_known:
            raise ValueError(
                f"expected a checkpoint of {num} clients, found counts of "
                f"{len(self.times_chosen)}"
            )
        for name in self.__dataclass_fields__:
            if name != "history":
                setattr(run, name, getattr(self, name))
        for name in ROWS:
            getattr(run.history, name)[:] = getattr(self.history, name)
        run.show_weights()
        run.has_started, run.must_measure = True, False


# ---- a run and its folder -----------------------------------------------------------
@contextmanager
def keeping(run, folder: str | Path | None, every: int) -> Iterator[Callable]:
    """Restore ``run`` from its newest checkpoint, and save new ones inside the block.

    folder:  used by this run only; None restores and saves nothing.
    every:   rounds between checkpoints.
    Yields ``keep(is_last)``, which saves when the round is a multiple of ``every`` or
    the last.

    Only a run without rounds is restored; ``run.rounds_restored`` counts its rounds.
    Raises ValueError, without changing the run, when the folder holds checkpoints of
    another run, only damaged ones, or one ahead of a run that has made rounds; when the
    run's settings do not identify it, or the engine does not hold the clients' private
    state. Raises BlockingIOError when another run uses the folder.
    """
    if folder is None:
        yield lambda is_last: None
        return
    if str(folder) == "" or Path(folder).is_file():
        raise ValueError(
            "checkpoint must be a folder, or None to save nothing, found "
            f"{str(folder)!r}"
        )
    folder, made_by = Path(folder), _made_by(run)

    def keep(is_last: bool) -> None:
        if is_last or run.server.round % every == 0:
            save(folder, made_by, Snapshot.of(run))

    with claimed(folder):
        found = load(folder, made_by, run.federation.store.device)
        if found is not None and found.server.round > run.server.round:
            if run.server.round > 0:
                raise ValueError(
                    f"the checkpoint in {folder} stands at round {found.server.round}, "
                    f"this run has made {run.server.round} of its own; give the "
                    "checkpoint to the first fit of a run, or another folder to this"
                )
            found.restore(run)
            run.rounds_restored = found.server.round
        yield keep


def _made_by(run) -> dict:
    """The settings that identify a run; ValueError if it cannot be restored."""
    if not run.engine.holds_clients:
        raise ValueError(
            "a checkpoint holds what clients keep, which this engine leaves with them; "
            "use engine='local' or no checkpoint"
        )
    made_by = run.describe() | {"evaluate_every": run.evaluate_every, "format": FORMAT}
    for name, value in made_by.items():
        if " at 0x" in str(value) or (name == "select" and is_nameless(value)):
            raise ValueError(
                f"a checkpoint is found again by the run's settings, and its {name} is "
                f"only known as {value!r}, as others may be; take a module's "
                "function or a notebook's, or give it a repr, as a frozen dataclass has"
            )
    return made_by


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
                "another run is writing checkpoints here; wait for its end, or give "
                "each run a folder of its own",
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
def save(folder: Path, made_by: dict, snapshot: Snapshot) -> Path:
    """Write one checkpoint; if the process is killed, older ones stay unchanged.

    made_by:  JSON values that ``load`` compares.
    Removes unfinished files, and all but the last two undamaged checkpoints. Raises
    OSError when the file cannot be written; older checkpoints stay unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(f"{UNFINISHED}*"):
        leftover.unlink()
    content, round = _serialised(made_by, snapshot), snapshot.server.round
    path = folder / f"round_{round:08d}_{_hash(content)}.safetensors"
    unfinished = folder / f"{UNFINISHED}{path.name}"
    try:
        with unfinished.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        _settle(folder)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(
            error.errno,
            f"round {round} could not be kept ({error.strerror}); older checkpoints "
            "are as they were: make room, and start again from the last",
            str(path),
        ) from error
    older = [other for other in _saved(folder) if other != path]
    previous = next((other for other in older if _is_whole(other)), None)
    for other in older:
        if other != previous:
            other.unlink()
    return path


def load(folder: Path, made_by: dict, device="cpu") -> Snapshot | None:
    """The newest undamaged checkpoint, or None when ``folder`` holds none at all.

    Damaged ones are skipped with a warning. Tensors are restored bit for bit in their
    memory layout, those of an accelerator on ``device``. Raises ValueError when all are
    damaged or when ``made_by`` differs; the message lists the differences.
    """
    saved = _saved(folder)
    for path in saved:
        try:
            content = _read(path)
        except (OSError, ValueError) as error:
            warnings.warn(f"damaged and passed over: {path}: {error}", stacklevel=2)
            continue
        try:
            tensors = tensors_from(content)
            state = json.loads(tensors.pop("state").numpy().tobytes())
            there = dict(state["made_by"])
        except UNUSABLE as error:
            raise _unusable(path, error) from error
        _refuse_another(path, there, _as_json(made_by))
        try:
            return _restored(state, tensors, device)
        except UNUSABLE as error:
            raise _unusable(path, error) from error
    if saved:
        raise ValueError(
            f"expected a whole checkpoint in {folder}, found {len(saved)} damaged; put "
            "a copy of one there, or delete the folder to start from round 0"
        )
    return None


def _unusable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"expected a checkpoint that this package wrote in {path}, found "
        f"{type(error).__name__}: {error}; delete the file"
    )


def _saved(folder: Path) -> list[Path]:
    """All checkpoints, newest first."""
    return sorted(folder.glob("round_*.safetensors"), reverse=True)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _read(path: Path) -> bytes:
    """The content of a file; ValueError when its hash differs."""
    content = path.read_bytes()
    if not path.stem.endswith(found := _hash(content)):
        raise ValueError(
            f"the name promises content with another hash than {found}, that of the "
            f"{len(content):,} bytes found; the file was cut short or changed"
        )
    return content


def _is_whole(path: Path) -> bool:
    try:
        return bool(_read(path))
    except (OSError, ValueError):
        return False


def _settle(folder: Path) -> None:
    """Names of files outlive a loss of power only after this."""
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
    machine = [differs.pop(name) for name in MACHINE if name in differs]
    if differs:
        raise ValueError(
            f"the checkpoint {path} is another run's: {'; '.join(differs.values())}. "
            "Give this run a folder of its own, or the settings of the other"
        )
    if machine:
        warnings.warn(
            f"the run goes on elsewhere ({'; '.join(machine)}): its last bits may "
            "differ from those of one that did not move",
            stacklevel=3,
        )


# ---- content ------------------------------------------------------------------------
def _trees(snapshot: Snapshot) -> dict[str, Tensors]:
    """Every dictionary of tensors, by a unique name."""
    server = snapshot.server
    trees = {name: getattr(server, name) for name in ("weights", "shared", "memory")}
    for i, kept in snapshot.private.items():
        trees[f"private/{i}/weights"] = kept.weights
        trees[f"private/{i}/memory"] = kept.memory
    return trees | {f"reports/{i}": upload for i, upload in snapshot.reports.items()}


def _serialised(made_by: dict, snapshot: Snapshot) -> bytes:
    """Serialise as safetensors; all other values are JSON in one tensor of bytes.

    safetensors needs contiguous tensors that share no memory, and sorts them, so the
    JSON part holds the order of names, the strides (channels-last) and the devices.
    """
    tensors, trees = {}, {}
    for tree, named in _trees(snapshot).items():
        trees[tree] = {}
        for name, value in named.items():
            dense = value.detach().cpu().clone()
            tensors[f"{tree}/{name}"] = dense.contiguous()
            trees[tree][name] = (dense.stride(), value.device.type == "cpu")
    state = {
        "made_by": made_by,
        "round": snapshot.server.round,
        "parameters": sorted(snapshot.server.parameters),
        "private": list(snapshot.private),
        "reports": list(snapshot.reports),
        "clients": snapshot.clients.tolist(),
        "times_chosen": snapshot.times_chosen.tolist(),
        "usual": snapshot.usual,
        "history": vars(snapshot.history),
        "trees": trees,
    }
    text = bytearray(json.dumps(state, default=plain), "utf-8")
    return bytes_of({**tensors, "state": torch.frombuffer(text, dtype=torch.uint8)})


def _restored(state: dict, tensors: Tensors, device) -> Snapshot:
    trees: dict[str, Tensors] = {}
    for tree, named in state["trees"].items():
        trees[tree] = {}
        for name, (stride, is_on_cpu) in named.items():
            value = tensors[f"{tree}/{name}"]
            settings = {"dtype": value.dtype, "device": "cpu" if is_on_cpu else device}
            laid_out = torch.empty_strided(value.shape, stride, **settings)
            trees[tree][name] = laid_out.copy_(value)
    rows = {name: [tuple(r) for r in state["history"][name]] for name in ROWS}
    if type(state["round"]) is not int:
        raise ValueError(f"expected a number of rounds, found {state['round']!r}")
    return Snapshot(
        server=Server(
            state["round"],
            trees["weights"],
            trees["shared"],
            trees["memory"],
            frozenset(state["parameters"]),
        ),
        private={
            i: PrivateState(trees[f"private/{i}/weights"], trees[f"private/{i}/memory"])
            for i in state["private"]
        },
        reports={i: trees[f"reports/{i}"] for i in state["reports"]},
        clients=np.array(state["clients"], dtype=np.int64),
        times_chosen=np.array(state["times_chosen"], dtype=np.int64),
        usual={str(part): float(size) for part, size in state["usual"].items()},
        history=History(**{**state["history"], **rows}),
    )


def _as_json(values: dict) -> dict:
    return json.loads(json.dumps(values, default=plain))
