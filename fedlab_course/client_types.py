"""Measures of runs whose clients belong to types: evenness and found groups."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedlab_support.core.history import last, summarise
from fedlab_support.federation.federation import Federation
from fedlab_support.run.run import Run

from .comparison import Comparison
from .measures import cluster_accuracy, fairness
from .printed import matched

MEASURES = ["avg_type", "avg_client", "sigma_type", "sigma_client", "worst_type"]
KEYS = ["name", "seed", "imbalance"]
"""What identifies a run in the tables of ``Comparison.sweep``."""


def types_of(federation: Federation) -> np.ndarray:
    """The domain of every client's first training sample, by name, (K,)."""
    clients = map(federation.client, range(len(federation)))
    domains = [client.train.domain[0] for client in clients]
    return np.array(federation.data.domain_names)[domains]


def ends_by_domain(table: pd.DataFrame, evaluations: int = 1) -> pd.DataFrame:
    """Accuracy on test images, by run and domain: a mean of the last evaluations."""
    kept = "metric == 'accuracy' and split == 'test' and domain != ''"
    return last(table.query(kept), evaluations)


def evenness(
    comparison: Comparison, table: pd.DataFrame, evaluations: int = 1
) -> pd.DataFrame:
    """``measures.fairness`` of every run, in per cent; see ``MEASURES``.

    table: histories with the columns name, seed and imbalance.
    Every client is tested on all test images of its domain, as in FedGCR's code by
    default; ``split_test`` is its other way.
    """
    rows = []
    for key, run in ends_by_domain(table, evaluations).groupby(KEYS, sort=False):
        types = types_of(_federation(comparison, key))
        scores = 100 * run.set_index("domain")["value"][types].to_numpy()
        rows.append(dict(zip(KEYS, key, strict=True)) | fairness(scores, types))
    return pd.DataFrame(rows)


def split_test(run: Run) -> pd.DataFrame:
    """Accuracy of each client on test images of its domain that no other client has.

    The test images of a type are dealt at random, in proportion to its clients'
    training images, as with the option ``split_test`` of FedGCR's code. Returns client,
    type, images and accuracy, in per cent. Clients that are too small to get an image
    are left out.
    """
    test, rng = run.federation.test, np.random.default_rng(0)
    types, sizes = types_of(run.federation), run.federation.sizes
    domains = np.array(run.federation.data.domain_names)[test.domain]
    right, rows = 100 * run.scores(test).score, []
    for one in dict.fromkeys(types):
        mine = rng.permutation(np.flatnonzero(domains == one))
        clients = np.flatnonzero(types == one)
        ends = np.cumsum(sizes[clients]) / sizes[clients].sum() * len(mine)
        for client, part in zip(
            clients, np.split(mine, ends.round().astype(int)[:-1]), strict=True
        ):
            if len(part):
                rows.append((client, one, len(part), right[part].mean()))
    return pd.DataFrame(rows, columns=["client", "type", "images", "accuracy"])


def spread(found: pd.DataFrame) -> pd.DataFrame:
    """Mean ± standard deviation over seeds of each measure, as text."""
    groups = found.groupby("name", sort=False)[MEASURES]
    mean = groups.mean().map("{:.1f}".format)
    return mean + groups.std().map(lambda s: "" if np.isnan(s) else f" ± {s:.1f}")


def by_type(comparison: Comparison, table: pd.DataFrame) -> pd.DataFrame:
    """Mean and spread over seeds on every type, with its number of clients."""
    ends = ends_by_domain(table).rename(columns={"domain": "type"})
    counts = pd.Series(types_of(comparison.federation())).value_counts()
    found = summarise(ends[ends["type"].isin(counts.index)], ["type", "name"])
    return found.assign(num_clients=found["type"].map(counts))


def cluster_accuracies(comparison: Comparison, table: pd.DataFrame) -> pd.DataFrame:
    """The share of clients in the right group in the last round, in per cent.

    Returns one row per run that has groups, with the paper's number where it prints
    some for this protocol; see ``measures.cluster_accuracy``.
    """
    rows = []
    logged = table.query("split == 'server' and metric == 'group'")
    logged = logged[logged["round"] == logged["round"].max()]
    for key, run in logged.groupby(KEYS, sort=False):
        types = types_of(_federation(comparison, key))[run["client"]]
        right = 100 * cluster_accuracy(run["value"].to_numpy(), types)
        rows.append(dict(zip(KEYS, key, strict=True)) | {"clusters": right})
    found = pd.DataFrame(rows, columns=[*KEYS, "clusters"])
    theirs = pd.concat(map(comparison.printed, ["number of clusters", "clustering"]))
    theirs = theirs.query("metric == 'clusters'").astype({"imbalance": int})
    return matched(found, theirs, "name", "imbalance")


def _federation(comparison: Comparison, key: tuple) -> Federation:
    name, _, imbalance = key
    return comparison.federation(name=name, imbalance=imbalance)
