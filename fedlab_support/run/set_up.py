"""The exchange before round 1: one upload per client, and a reply to each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.history import History
from ..core.messages import Broadcast, Server, Tensors, copies, nbytes, unwritten
from ..engines import raise_mistakes
from ..training.context import PrivateState
from .upload_validation import accepted_setup_uploads


def set_up(run, record: History) -> tuple[Server, np.ndarray, dict[int, PrivateState]]:
    """Call ``client_setup``, ``server_setup`` and ``setup_reply`` of a run's method.

    record:  receives the traffic, and the reasons for clients that are left out.
    Returns the server with its first memory, the clients that stay in the run, (K,),
    and their private state. Raises RuntimeError if none stays.
    """
    method, server = run.method, run.server
    uploads: dict[int, Tensors] = {int(i): {} for i in run.clients}
    private: dict[int, PrivateState] = {}
    if method.overrides("client_setup"):
        results = run.engine.client_setup(list(uploads), Broadcast(0, server.weights))
        raise_mistakes(results, len(uploads), run.raises_at_once)
        uploads = accepted_setup_uploads(run, results, record)
        private = {i: results[i][1] for i in uploads}
    if not uploads:
        raise RuntimeError(
            "expected at least one client in the run, every setup upload was "
            f"refused; the last: {record.absences[-1][-1]}"
        )
    with unwritten("set-up uploads", uploads.values()):
        memory = method.server_setup(uploads)
    if method.overrides("setup_reply"):
        with unwritten("the server's memory", [memory]):
            replies = {i: copies(method.setup_reply(memory, i)) for i in uploads}
        for i, reply in replies.items():
            private.setdefault(i, PrivateState()).memory.update(reply)
            record.add_wire(0, i, "down", setup_reply=nbytes(reply))
    clients = np.array(sorted(uploads), dtype=np.int64)
    return replace(server, memory=memory, num_clients=len(clients)), clients, private
