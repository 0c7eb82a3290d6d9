"""Evaluate every split of a federation: one loop for all methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..core.history import PERSONAL
from ..core.messages import Tensors
from ..core.metrics import Scores, per_group, task
from ..engines import Engine, Evaluation
from ..federation.federation import Federation
from ..federation.samples import Samples

Row = tuple[str, str, float, str, int]
"""split, metric, value, domain ("" for all), client (-1 for all)."""


def measure(
    engine: Engine,
    federation: Federation,
    client_ids: np.ndarray,
    state_of: Callable[[int | None], Tensors],
    round: int,
    is_personal: bool,
) -> Iterator[Row]:
    """Yield scores and losses of the current weights.

    client_ids:   clients that are still in the run, ascending.
    state_of:     weights to predict with, by client; None for a new client.
    is_personal:  clients predict with private weights; metrics that use these are named
                  ``personal_…``.

    The splits ``test`` and ``held_out`` are evaluated over all samples and per domain,
    as a new client predicts. If ``is_personal`` and the engine has the private weights,
    each test domain that only one client trains on is also evaluated by that client,
    and all test samples together if every domain is such a domain. The split ``val`` is
    each client's validation share, evaluated with the weights that this client uses.
    """
    metric = task(federation.data.task).metric
    for split in ("test", "held_out"):
        samples: Samples = getattr(federation, split)
        if len(samples):
            (scores,) = engine.evaluate([Evaluation(state_of(None), samples)], round)
            for what, value in scores.means(metric):
                yield split, what, value, "", -1
            names = federation.data.domain_names
            for name, what, value in per_group(scores, metric, samples.domain, names):
                yield split, what, value, name, -1
    metric = PERSONAL + metric if is_personal else metric
    if is_personal and engine.holds_clients:
        parts = (engine, federation, client_ids, state_of)
        yield from _by_only_client(*parts, round, metric)
    owners = federation.with_val
    place = np.searchsorted(client_ids, owners).clip(max=len(client_ids) - 1)
    clients = [federation.client(i) for i in owners[client_ids[place] == owners]]
    if clients and (is_personal or not engine.holds_clients):
        requests = [
            Evaluation(
                state_of(client.id if is_personal else None),
                client.val,
                client.id,
                "val",
                is_personal,
            )
            for client in clients
        ]
        found = engine.evaluate(requests, round)
    elif clients:
        rows = [client.val.rows for client in clients]
        whole = Samples(federation.store, np.concatenate(rows))
        (scores,) = engine.evaluate([Evaluation(state_of(None), whole)], round)
        found = _split(scores, [len(row) for row in rows])
    else:
        found = []
    for client, scores in zip(clients, found, strict=True):
        for what, value in scores.means(metric):
            yield "val", what, value, "", client.id


def _by_only_client(
    engine, federation, client_ids, state_of, round, metric: str
) -> Iterator[Row]:
    """Test domains that only one client trains on, as this client predicts."""
    test, names = federation.test, federation.data.domain_names
    present = set(client_ids.tolist())
    samples_of = {
        domain: Samples(test.store, test.rows[test.domain == domain])
        for domain in np.unique(test.domain).tolist()
        if federation.homes.get(domain) in present
    }
    requests = [
        Evaluation(state_of(federation.homes[d]), samples_of[d]) for d in samples_of
    ]
    found = engine.evaluate(requests, round) if requests else []
    for domain, scores in zip(samples_of, found, strict=True):
        value = scores.score.mean(dtype=np.float64)
        yield "test", metric, value, names[domain], -1
    if sum(map(len, samples_of.values())) == len(test) > 0:
        every = np.concatenate([scores.score for scores in found])
        yield "test", metric, every.mean(dtype=np.float64), "", -1


def _split(scores: Scores, sizes: Sequence[int]) -> list[Scores]:
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(scores.loss, cuts), np.split(scores.score, cuts), strict=True)
    return [Scores(loss, score) for loss, score in parts]
