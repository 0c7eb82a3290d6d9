"""A round: the fixed order in which a run calls its method's hooks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..core.history import ALL_CLIENTS, History
from ..core.messages import (
    Broadcast,
    Message,
    Server,
    Tensors,
    copies,
    nbytes,
    refuse_unnamed,
    unwritten,
)
from ..core.rng import numpy_stream
from ..engines import Failure, train_with_faults
from ..federation.selection import Roster, cohort_of
from ..training.context import PrivateState
from .bounds import Usual
from .building import check_server
from .evaluation import requests_of
from .traffic import MEAN_BYTES, record_loss_query
from .upload_validation import accepted_messages, accepted_setup_uploads


def set_up(run, record: History) -> tuple[Server, np.ndarray, dict[int, PrivateState]]:
    """Before round 1: one upload per client, and a reply to each.

    record:  receives the traffic, and the reasons for clients that are left out.
    Returns the server with its first memory, the clients that stay in the run, (K,),
    and their private state. Raises RuntimeError if none stays.
    """
    method, server = run.method, run.server
    uploads: dict[int, Tensors] = {int(i): {} for i in run.clients}
    private: dict[int, PrivateState] = {}
    if method.overrides("client_setup"):
        results = run.engine.client_setup(list(uploads), Broadcast(0, server.weights))
        uploads = accepted_setup_uploads(run, results, record)
        private = {i: results[i][1] for i in uploads}
    if not uploads:
        raise RuntimeError(
            "expected at least one client in the run, every setup upload was "
            f"refused; the last: {record.absences[-1][-1]}"
        )
    with unwritten("set-up uploads", uploads.values()):
        memory = method.server_setup(uploads)
    refuse_unnamed("the server's memory", memory)
    if method.overrides("setup_reply"):
        what = f"the result of {method.label}.setup_reply"
        with unwritten("the server's memory", [memory]):
            replies = {i: copies(method.setup_reply(memory, i), what) for i in uploads}
        for i, reply in replies.items():
            private.setdefault(i, PrivateState()).memory.update(reply)
            record.add_wire(0, i, "down", setup_reply=nbytes(reply))
    clients = np.array(sorted(uploads), dtype=np.int64)
    return replace(server, memory=memory, num_clients=len(clients)), clients, private


@dataclass(frozen=True)
class Round:
    """The result of a round, before the run takes it over.

    server:   after aggregation.
    cohort:   the selected clients.
    messages: accepted uploads, in order of clients.
    private:  private state of the clients that trained.
    usual:    sizes of updates, see ``bounds``.
    record:   the rows that the round adds to the history.
    """

    server: Server
    cohort: list[int]
    messages: list[Message]
    private: dict[int, PrivateState]
    usual: Usual
    record: History


def play(run) -> Round:
    """Select, broadcast, train, validate and aggregate.

    Changes nothing of the run, except that it frees the messages of the last round.
    """
    began, record = time.perf_counter(), run.history.empty()
    round = run.server.round + 1
    rng = numpy_stream(run.seed, "select", round)
    cohort = cohort_of(run.select(roster_of(run, record), rng), run.clients)
    broadcasts = _broadcasts(run, cohort)
    run.messages = []
    results = train_with_faults(run.engine, run.faults, broadcasts, run.private)
    messages, usual = accepted_messages(run, broadcasts, results, record)
    server = _aggregate(run, messages, record)
    if not run.engine.holds_clients:
        for m in messages:
            size = MEAN_BYTES * len(m.metrics)
            record.add_wire(round, m.client, "up", metrics=size)
    trained = {i: r for i, r in sorted(results.items()) if not isinstance(r, Failure)}
    private = {i: kept for i, (_, kept) in trained.items()}
    record.add(round, "cost", "seconds", time.perf_counter() - began)
    return Round(server, cohort, messages, private, usual, record)


# ---- selection ----------------------------------------------------------------------
def roster_of(run, record: History) -> Roster:
    """What the next round's selection may know about the clients, and may ask them.

    record:  receives the bytes of the selection's queries.
    """

    def query_losses(ids: Sequence[int]) -> dict[int, float]:
        """Mean training loss of the weights that each client uses, by client."""
        if run.job.privacy is not None:
            raise ValueError(
                f"a loss is not protected by {run.job.privacy}; choose a "
                "selection that needs no losses, as in uniform(10)"
            )
        ids = [int(i) for i in ids]
        scores = run.engine.evaluate(requests_of(run, ids, "train"), run.server.round)
        # each client sends one float32
        means = [float(np.float32(s.loss.mean(dtype=np.float64))) for s in scores]
        losses = dict(zip(ids, means, strict=True))
        record_loss_query(record, run.server.round + 1, run.server.weights, losses)
        return losses

    ids = _entries(np.arange(len(run.federation)), run.clients)
    sizes = _entries(run.federation.sizes, run.clients)
    chosen = _entries(run.times_chosen, run.clients)
    stream = partial(numpy_stream, run.seed, "select", 0)
    return Roster(ids, sizes, chosen, run.reports, query_losses, stream)


def _entries(column: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The entries of some clients in a column of all clients, read-only."""
    is_whole = len(clients) == len(column)
    entries = column.view() if is_whole else column[clients]
    entries.flags.writeable = False
    return entries


# ---- the server ---------------------------------------------------------------------
def _broadcasts(run, cohort: list[int]) -> dict[int, Broadcast]:
    """What each client of the round receives."""
    server, method, round = run.server, run.method, run.server.round + 1
    if not method.overrides("client_broadcast"):
        broadcast = Broadcast(round, server.weights, server.shared)
        return dict.fromkeys(cohort, broadcast)
    with unwritten_state(server):
        return {
            i: Broadcast(round, server.weights, method.client_broadcast(server, i))
            for i in cohort
        }


def _aggregate(run, messages: list[Message], record: History) -> Server:
    """The next server; with too few accepted messages its weights stay."""
    server, method, round = run.server, run.method, run.server.round + 1
    if len(messages) < run.min_clients:
        found = f"{len(messages)} of at least {run.min_clients} messages"
        if record.absences and not messages and server.round and not run.faults:
            found += "; an upload accepted earlier may have ruined the weights"
            text = f"round {round}: every client failed: {found}"
            warnings.warn(text, stacklevel=6)
        record.add_event(round, ALL_CLIENTS, "the weights stay", found)
        return replace(server, round=round)
    with unwritten_state(server, messages):
        after = method.aggregate(server, messages)
    check_server(after, method, server)
    server = after
    with unwritten_state(server, messages):
        metrics = method.server_metrics(server, messages)
    for name, values in metrics.items():
        for message, value in zip(messages, values.tolist(), strict=True):
            record.add(round, "server", name, value, client=message.client)
    return replace(server, round=round)


def unwritten_state(
    server: Server, messages: Iterable[Message] = ()
) -> AbstractContextManager:
    """Refuse hooks that write into the server's state or into messages."""
    trees = [server.weights, server.shared, server.memory]
    trees += [tree for m in messages for tree in (m.weights, m.upload)]
    return unwritten("the server's state and messages", trees)
