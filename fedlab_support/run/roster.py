"""What a round's selection may know about the clients, and may ask them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..core.history import History
from ..core.rng import numpy_stream
from ..engines import Evaluation
from ..federation.selection import Roster
from .traffic import record_loss_query


def roster_of(run, record: History) -> Roster:
    """The clients of a run before its next round.

    record:  receives the bytes of the selection's queries.
    """

    def query_losses(ids: Sequence[int]) -> dict[int, float]:
        """Mean training loss of the current weights, per client."""
        if run.job.privacy is not None:
            raise ValueError(
                f"a loss is not protected by {run.job.privacy}; choose a "
                "selection that needs no losses, as in uniform(10)"
            )
        ids, client = [int(i) for i in ids], run.federation.client
        weights = run.state_of(None)
        requests = [Evaluation(weights, client(i).train, i, "train") for i in ids]
        scores = run.engine.evaluate(requests, run.server.round)
        # each client sends one float32
        means = [float(np.float32(s.loss.mean(dtype=np.float64))) for s in scores]
        losses = dict(zip(ids, means, strict=True))
        record_loss_query(record, run.server, losses)
        return losses

    sizes = _entries(run.federation.sizes, run.clients)
    chosen = _entries(run.times_chosen, run.clients)
    stream = partial(numpy_stream, run.seed, "select", 0)
    return Roster(run.clients, sizes, chosen, run.reports, query_losses, stream)


def _entries(column: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """The entries of some clients in a column of all clients, read-only."""
    is_whole = len(clients) == len(column)
    entries = column.view() if is_whole else column[clients]
    entries.flags.writeable = False
    return entries
