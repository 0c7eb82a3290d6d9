"""Evaluate every split of a federation: one loop for all methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..core.history import PERSONAL
from ..core.metrics import Scores
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
            domain, names = samples.domain, federation.data.domain_names
            for d in np.unique(domain):
                for what, value in scores.means(metric, domain == d):
                    yield split, what, value, names[d], -1
    metric = PERSONAL + metric if _is_personal(run) else metric
    if engine.holds_clients:
        yield from _personal_rows(run, metric)
    for split, part, owners in (
        ("val", "val", federation.with_val),
        ("client_test", "test", federation.with_test),
    ):
        clients = np.intersect1d(owners, run.clients).tolist()
        found = _by_client(run, clients, part) if clients else []
        for client, scores in zip(clients, found, strict=True):
            for what, value in scores.means(metric):
                yield split, what, value, "", client


def _is_personal(run) -> bool:
    """Whether clients predict with private weights."""
    return bool(run.job.initial_private) and run.method.predicts_personally


def requests_of(run, clients: Sequence[int], part: str) -> list[Evaluation]:
    """Ask each client to evaluate the weights that it uses on a part of its samples."""
    is_personal, shared = _is_personal(run), run.state_of(None)
    requests = []
    for i in clients:
        samples = getattr(run.federation.client(i), part)
        state = run.state_of(i) if is_personal else shared
        private = run.private.get(i) if is_personal else None
        requests.append(Evaluation(state, samples, i, part, private))
    return requests


def _by_client(run, clients: list[int], part: str) -> list[Scores]:
    """Scores of each client on a part of its own samples."""
    if _is_personal(run) or not run.engine.holds_clients:
        return run.engine.evaluate(requests_of(run, clients, part), run.server.round)
    rows = [getattr(run.federation.client(i), part).rows for i in clients]
    whole = run.scores(Samples(run.federation.store, np.concatenate(rows)))
    cuts = np.cumsum([len(row) for row in rows])[:-1]
    parts = zip(np.split(whole.loss, cuts), np.split(whole.score, cuts), strict=True)
    return [Scores(loss, score) for loss, score in parts]


def by_only_client(run) -> dict[int, Scores]:
    """Scores on each test domain that only one client trains on, as it predicts.

    Empty unless clients predict with private weights. The samples of a domain are in
    the order of ``federation.test``.
    """
    federation, test = run.federation, run.federation.test
    if not _is_personal(run):
        return {}
    present = set(run.clients.tolist())
    return {
        domain: run.scores(
            Samples(test.store, test.rows[test.domain == domain]),
            federation.homes[domain],
        )
        for domain in np.unique(test.domain).tolist()
        if federation.homes.get(domain) in present
    }


def _personal_rows(run, metric: str) -> Iterator[Row]:
    """The rows of ``by_only_client``."""
    found, names = by_only_client(run), run.federation.data.domain_names
    for domain, scores in found.items():
        value = scores.score.mean(dtype=np.float64)
        yield "test", metric, value, names[domain], -1
    every = [scores.score for scores in found.values()]
    if sum(map(len, every)) == len(run.federation.test) > 0:
        value = np.concatenate(every).mean(dtype=np.float64)
        yield "test", metric, value, "", -1
