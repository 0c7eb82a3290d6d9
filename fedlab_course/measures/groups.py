"""Fairness between clients and between types of clients, and quality of clusters."""

from __future__ import annotations

import numpy as np
import pandas as pd


def fairness(scores: np.ndarray, types: np.ndarray) -> dict[str, float]:
    """Mean, spread and minimum of scores over clients and over types of clients.

    scores:  one per client, (K,), shares or per cent.
    types:   (K,), any values; in one of the paper's tables, the domain of each client.

    A client may be tested on the whole test set of its domain, as in the paper, or on
    samples of its own. Returns:

    avg_type, avg_client:  means over types, each the mean of its clients, and over
        clients. The paper's tables print ``avg_type`` and call it the average over
        clients.
    sigma_type, sigma_client:  population standard deviations. A low one with a low
        average is not fairness.
    worst_type, worst_client:  the lowest.

    Raises ValueError for a score that is not finite.
    Source: Cheng et al., AAAI 2024 (FedGCR), "Evaluation Metrics", and their code.
    """
    scores, types = np.asarray(scores, dtype=np.float64), np.asarray(types)
    if not np.isfinite(scores).all():
        raise ValueError(
            f"expected a finite score for every client, found "
            f"{scores[~np.isfinite(scores)][:3]}; leave out clients without samples"
        )
    each = np.array([scores[types == one].mean() for one in np.unique(types)])
    return {
        f"{what}_{name}": float(measure(values))
        for name, values in (("type", each), ("client", scores))
        for what, measure in (("avg", np.mean), ("sigma", np.std), ("worst", np.min))
    }


def cluster_accuracy(clusters: np.ndarray, types: np.ndarray) -> float:
    """Share of clients whose type is the most common one in their cluster, in (0, 1].

    clusters, types:  (K,). Splitting a type is not penalised: with K clusters it is 1.
    Source: Cheng et al., AAAI 2024 (FedGCR), Table 3.
    """
    table = pd.crosstab(np.asarray(types), np.asarray(clusters))
    return table.max().sum() / len(types)
