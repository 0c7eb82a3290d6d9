"""Evaluate every split of a federation: one loop for all methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.history import PERSONAL
from ..core.metrics import Scores, per_group
from ..engines import Evaluation
from ..federation.samples import Samples

Row = tuple[str, str, float, str, int]
"""split, metric, value, domain ("" for all), client (-1 for all)."""

SPLITS = ("test", "held_out", "val", "client_test")


def measure(run) -> Iterator[Row]:
    """Yield scores and losses of a run's current weights.

    The splits ``test`` and ``held_out`` are evaluated over all samples and per domain,
    as a new client predicts; ``val`` and ``client_test`` on each client's share, with
    the weights that this client uses.

    Metrics of private weights are named ``personal_…``. Where the engine has these
    weights, each test domain that only one client trains on is also evaluated by that
    client, and all test samples together if every domain is such a domain.
    """
    engine, federation = run.engine, run.federation
    metric = federation.store.task.metric
    for split in ("test", "held_out"):
        samples: Samples = getattr(federation, split)
        if len(samples):
            scores = run.scores(samples)
            for what, value in scores.means(metric):
                yield split, what, value, "", -1
            names = federation.data.domain_names
            for name, what, value in per_group(scores, metric, samples.domain, names):
                yield split, what, value, name, -1
    is_personal = bool(run.job.initial_private) and run.method.predicts_personally
    metric = PERSONAL + metric if is_personal else metric
    if is_personal and engine.holds_clients:
        yield from _by_only_client(run, metric)
    for split, part, owners in (
        ("val", "val", federation.with_val),
        ("client_test", "test", federation.with_test),
    ):
        clients = np.intersect1d(owners, run.clients).tolist()
        found = _by_client(run, clients, part, is_personal) if clients else []
        for client, scores in zip(clients, found, strict=True):
            for what, value in scores.means(metric):
                yield split, what, value, "", client


def _by_client(run, clients: list[int], part: str, is_personal: bool) -> list[Scores]:
    """Scores of each client on a part of its own samples."""
    samples = {i: getattr(run.federation.client(i), part) for i in clients}
    if is_personal or not run.engine.holds_clients:
        requests = []
        for i, own in samples.items():
            state = run.state_of(i if is_personal else None)
            private = run.private.get(i) if is_personal else None
            requests.append(Evaluation(state, own, i, part, private))
        return run.engine.evaluate(requests, run.server.round)
    rows = [own.rows for own in samples.values()]
    whole = run.scores(Samples(run.federation.store, np.concatenate(rows)))
    return _split(whole, [len(row) for row in rows])


def _by_only_client(run, metric: str) -> Iterator[Row]:
    """Test domains that only one client trains on, as this client predicts."""
    federation, test = run.federation, run.federation.test
    names, present = federation.data.domain_names, set(run.clients.tolist())
    samples_of = {
        domain: Samples(test.store, test.rows[test.domain == domain])
        for domain in np.unique(test.domain).tolist()
        if federation.homes.get(domain) in present
    }
    found = [run.scores(samples_of[d], federation.homes[d]) for d in samples_of]
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
