"""A run to be killed: what the tests of checkpoints start in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from fedlab_support import Federation, LocalTraining, Run, dirichlet
from fedlab_support.core import files
from fedlab_support.core.history import History
from fedlab_support.core.messages import Server
from fedlab_support.run import checkpoint, journal
from fedlab_support.run import snapshot as snapshots
from fedlab_support.run.checkpoint import Snapshot
from fedlab_support.run.journal import Journal
from fedlab_support.training.context import PrivateState
from tests.probe import AwkwardNet, Probe
from tests.tiny import tiny_data

FITS = (4, 3)
"""Rounds of the two fits of the script."""

SAVING = {m.__file__ for m in (checkpoint, files, journal, snapshots)}
"""What a save runs."""


@dataclass(frozen=True)
class Fragile(Probe):
    """Client 4 never gets in, client 1 fails in even rounds; old reports matter."""

    def client_setup(self, model, context):
        if context.client.id == 4:
            raise OSError("the camera is off")
        return super().client_setup(model, context)

    def loss(self, model, batch, context):
        if context.client.id == 1 and context.received.round % 2 == 0:
            raise RuntimeError("out of battery")
        context.memory["pictures"] = batch.x  # channels-last, or a view
        return super().loss(model, batch, context)


@dataclass(frozen=True)
class Curious:
    """Those chosen least often; of these, those whose last report was the worst."""

    num: int = 3

    def __call__(self, roster, rng):
        def order(client):
            said = roster.reports.get(client, {}).get("loss_received", torch.zeros(1))
            position = list(roster.ids).index(client)
            return roster.times_chosen[position], -said.item(), rng.random()

        return sorted(map(int, roster.ids), key=order)[: self.num]


@cache
def federation(seed: int = 3) -> Federation:
    data = tiny_data(num=100, owners=5, channels=3)
    return Federation.build(data, dirichlet(data, 5, alpha=0.8, rng=seed), val=0.2)


def build(kind: type = Run, **changes) -> Run:
    settings = {
        "method": Fragile(),
        "federation": federation(),
        "model": AwkwardNet,
        "training": LocalTraining(lr=0.05, epochs=1, batch_size=7),
        "select": Curious(),
        "workers": 1,
        "evaluate_every": 3,
    }
    return kind(**settings | changes)


def bits(tensors: dict) -> list:
    """Every name, type, shape, layout and bit, in their order."""
    return [
        [n, str(v.dtype), list(v.shape), list(v.stride()), _hash(v)]
        for n, v in tensors.items()
    ]


def _hash(value: torch.Tensor) -> str:
    content = value.contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(content.numpy()).hexdigest()


def trace(run: Run) -> dict:
    """All that a run is, except for seconds and for the last round's messages."""
    server, history = run.server, run.history
    return {
        "round": server.round,
        "server": [bits(t) for t in (server.weights, server.shared, server.memory)],
        "parameters": list(server.parameters),
        "private": [
            [i, bits(p.weights), bits(p.memory)] for i, p in run.private.items()
        ],
        "reports": [[i, bits(said)] for i, said in run.reports.items()],
        "clients": run.clients.tolist(),
        "times_chosen": run.times_chosen.tolist(),
        "flags": [run.has_started, run.must_measure],
        "model": bits(run.model.state_dict()),
        "measured": [repr(row) for row in history.measured if row[1] != "cost"],
        "traffic": [repr(row) for row in history.traffic],
        "absences": [repr(row) for row in history.absences],
    }


def script(folder: Path | None, result: Path) -> None:
    """Two fits; their trace, and at which round they began, when both are done."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run = build()
    for rounds in FITS:
        run.fit(rounds, progress=False, checkpoint=folder)
    unfinished = result.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(trace(run)))
    os.replace(unfinished, result)


def journal_of(folder: Path, made_by: dict) -> Journal:
    """The journal that a run goes on with in ``folder``."""
    found = checkpoint.load(folder, made_by)
    return found[1] if found else Journal(folder / "history_0.jsonl")


def save(folder: Path, made_by: dict, said: Snapshot) -> None:
    """Add a checkpoint to those in ``folder``."""
    checkpoint.save(folder, made_by, said, journal_of(folder, made_by))


def killed_at_line(where: tuple, folder: Path, made_by: dict, round: int) -> None:
    """Save, and die before a line of ``SAVING`` is run."""

    def watch(frame, event, argument):
        if frame.f_code.co_filename not in SAVING:
            return None
        if event == "line" and (frame.f_code.co_filename, frame.f_lineno) == where:
            os.kill(os.getpid(), signal.SIGKILL)
        return watch

    said, kept = snapshot(round), journal_of(folder, made_by)
    sys.settrace(watch)
    checkpoint.save(folder, made_by, said, kept)


def killed_half_written(where: tuple, folder: Path, made_by: dict, round: int) -> None:
    """Save, and die when a share of the bytes of a file are written.

    where:  the share, and how many files are written before.
    """
    share, before = where
    kept = journal_of(folder, made_by)
    starts, is_done = iter([kept.size, 0]), iter([True] * before)

    def write_and_die(file_descriptor):
        start = next(starts)
        if next(is_done, False):
            return
        written = os.fstat(file_descriptor).st_size - start
        os.truncate(file_descriptor, start + int(share * written))
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = write_and_die
    checkpoint.save(folder, made_by, snapshot(round), kept)


def claim_and_wait(folder: Path) -> None:
    """Hold ``folder`` until killed."""
    with checkpoint.claimed(folder):
        (folder / "held").touch()
        signal.pause()


def snapshot(round: int) -> Snapshot:
    """A small one, other in every round."""
    own = {"w": torch.arange(600.0) + round, "n": torch.tensor(round)}
    history = History("run", "FedAvg", 0)
    for done in range(1, round + 1):
        history.add(done, "test", "loss", float("nan"))
    return Snapshot(
        Server(round, own, {}, own, ("w",)),
        {2: PrivateState(own, {})},
        {2: own},
        np.arange(3),
        np.arange(3),
        {"update": 0.5 + round},
        history,
    )
