"""The state of a run after a round, and as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import save as bytes_of

from ..core.history import CONSTANTS, History
from ..core.messages import Server, Tensors, expect_alike
from ..core.naming import plain
from ..training.context import PrivateState
from .bounds import Usual
from .evaluation import SPLITS
from .journal import TABLES


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
        for name in TABLES:
            getattr(run.history, name)[:] = getattr(self.history, name)
        run.show_weights()
        run.has_started, run.must_measure = True, False
        rounds = (round for round, split, *_ in run.history.measured if split in SPLITS)
        run.measured_round = max(rounds, default=-1)


def _trees(snapshot: Snapshot) -> dict[str, Tensors]:
    """Every dictionary of tensors, by a unique name."""
    server = snapshot.server
    trees = {name: getattr(server, name) for name in ("weights", "shared", "memory")}
    for i, kept in snapshot.private.items():
        trees[f"private/{i}/weights"] = kept.weights
        trees[f"private/{i}/memory"] = kept.memory
    return trees | {f"reports/{i}": upload for i, upload in snapshot.reports.items()}


def serialised(made_by: dict, snapshot: Snapshot, journal: dict) -> bytes:
    """A snapshot as safetensors; all other values are JSON in one tensor of bytes.

    made_by:  the settings of its run.
    journal:  where the rows of its history are (`Journal.append`).

    The JSON part has what safetensors drops: the order of names, strides
    (channels-last) and devices.
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
        "parameters": snapshot.server.parameters,
        "private": list(snapshot.private),
        "reports": list(snapshot.reports),
        "clients": snapshot.clients.tolist(),
        "times_chosen": snapshot.times_chosen.tolist(),
        "usual": snapshot.usual,
        "history": {name: getattr(snapshot.history, name) for name in CONSTANTS},
        "journal": journal,
        "trees": trees,
    }
    text = bytearray(json.dumps(state, default=plain), "utf-8")
    return bytes_of({**tensors, "state": torch.frombuffer(text, dtype=torch.uint8)})


def restored(state: dict, tensors: Tensors, rows: dict, device) -> Snapshot:
    """The snapshot that ``serialised`` wrote.

    state:    its JSON part.
    tensors:  the others.
    rows:     of the history, by table.
    device:   of the tensors that were on an accelerator.
    """
    trees: dict[str, Tensors] = {}
    for tree, named in state["trees"].items():
        trees[tree] = {}
        for name, (stride, is_on_cpu) in named.items():
            value = tensors[f"{tree}/{name}"]
            settings = {"dtype": value.dtype, "device": "cpu" if is_on_cpu else device}
            laid_out = torch.empty_strided(value.shape, stride, **settings)
            trees[tree][name] = laid_out.copy_(value)
    if type(state["round"]) is not int:
        raise ValueError(f"expected a number of rounds, found {state['round']!r}")
    return Snapshot(
        server=Server(
            state["round"],
            trees["weights"],
            trees["shared"],
            trees["memory"],
            tuple(state["parameters"]),
            len(state["clients"]),
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
