"""The measures of a run: accuracy, fairness and cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedlab_support.core.history import ALL_CLIENTS, ALL_DOMAINS, History, last
from fedlab_support.core.metrics import TASKS
from fedlab_support.federation.federation import Federation

from ..measures import as_participants, fairness

MEASURES = {
    "score": "higher",
    "worst_domain": "higher",
    "held_out": "higher",
    "sigma_domain": "lower",
    "sigma_type": "lower",
    "sigma_client": "lower",
    "kilobytes": "lower",
    "seconds": "lower",
}
"""Measures of a run, and whether higher or lower is better."""


def measured(
    history: History, federation: Federation, last_rounds: int
) -> dict[str, float]:
    """The measures of one run, as shares in [0, 1]; NaN where one is not defined.

    score:        the basis of ranks: mean over the held-out domains if there are any,
                  else over the clients' domains on test samples, with personal layers
                  if the method has them and every domain has only one client.
    worst_domain: the lowest score of a domain.
    sigma_domain: standard deviation over domains (dividing by their number).
    held_out:     score on held-out domains.
    sigma_type, sigma_client: if each client holds one domain, with test samples,
                  standard deviation over types of clients and over clients, tested on
                  their domains as in FedGCR's paper; otherwise ``sigma_client`` is over
                  clients on their validation samples.
    kilobytes:    per round, down and up, all clients together, without the one-time
                  set-up in round 0.
    seconds:      median per round, on the machine that trained.

    Every score is the mean of the last ``last_rounds`` evaluations.
    """
    table = as_participants(history.table())
    metric = federation.store.task.metric
    ends = last(table[table["metric"].str.endswith(metric)], last_rounds)
    domains = _of_domains(ends)
    means = domains.groupby("split")["value"].mean()
    every = domains.groupby("domain")["value"].mean()
    return {
        "held_out_domain": history.held_out,
        "score": float(means.get("held_out", means.get("test", np.nan))),
        "worst_domain": float(every.min()),
        "held_out": float(means.get("held_out", np.nan)),
        "sigma_domain": float(every.std(ddof=0)),
        **_evenness(ends, every, federation),
        **_cost(table, history.wire()),
    }


def _evenness(
    ends: pd.DataFrame, every: pd.Series, federation: Federation
) -> dict[str, float]:
    """Deviations between types of clients and between clients."""
    names = federation.data.domain_names
    held = [
        np.unique(federation.client(i).train.domain) for i in range(len(federation))
    ]
    types = np.array([names[own[0]] for own in held if len(own) == 1])
    if len(names) > 1 and len(types) == len(held) and np.isin(types, every.index).all():
        found = fairness(every[types].to_numpy(), types)
        return {name: found[name] for name in ("sigma_type", "sigma_client")}
    clients = ends[(ends["client"] != ALL_CLIENTS) & (ends["split"] == "val")]["value"]
    spread = float(clients.std(ddof=0)) if len(clients) else np.nan
    return {"sigma_type": np.nan, "sigma_client": spread}


def _cost(table: pd.DataFrame, wire: pd.DataFrame) -> dict[str, float]:
    seconds = table[table["metric"] == "seconds"]["value"]
    in_rounds = wire[wire["round"] > 0].groupby("round")["bytes"].sum()
    return {"kilobytes": in_rounds.mean() / 1000, "seconds": seconds.median()}


def by_round(curves: pd.DataFrame) -> pd.DataFrame:
    """The score after every evaluation, as a tidy table with split "score"."""
    curves = as_participants(curves)
    score = curves["metric"].isin([each.metric for each in TASKS.values()])
    domains = _of_domains(curves[score])
    has_unseen = domains["held_out"] != ""
    chosen = domains[(domains["split"] == "held_out") == has_unseen]
    keys = ["protocol", "method", "seed", "held_out", "round"]
    means = chosen.groupby(keys, sort=False)["value"].mean().reset_index()
    whole = {"domain": ALL_DOMAINS, "client": ALL_CLIENTS}
    return means.assign(split="score", metric="accuracy", **whole)


def _of_domains(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of single domains, measured over all clients."""
    is_single = table["domain"] != ALL_DOMAINS
    return table[is_single & (table["client"] == ALL_CLIENTS)]
