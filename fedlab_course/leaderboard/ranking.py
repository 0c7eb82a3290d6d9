"""Ranks over data sets, their uncertainty, and which differences are significant.

The bootstrap resamples what was sampled: data sets, and seeds within each data set.
A **block** is one data set, held-out domain and seed. Within a block all methods share
clients, order of samples and random streams, so they are compared only within blocks.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pandas as pd

from .measures import MEASURES
from .paired import EQUAL, LEAST, LEVEL

DRAWS = 4000


def blocks(runs: pd.DataFrame, measure: str = "score") -> pd.DataFrame:
    """Blocks × methods; NaN where a method could not run. Higher is always better.

    runs: a row per run, as in ``Board``. Values are rounded to twelve decimals, so that
          a tie is one although the means were added up in another order.
    Raises ValueError for an unknown measure, or one that no run has.
    """
    if measure not in MEASURES:
        raise ValueError(f"expected a measure of {list(MEASURES)}, found {measure!r}")
    if runs.empty or runs[measure].isna().all():
        raise ValueError(f"expected runs with a {measure}, found none")
    keys = ["protocol", "held_out_domain", "seed"]
    order = list(runs["method"].unique())
    table = runs.pivot(index=keys, columns="method", values=measure)[order]
    table = table.dropna(how="all").round(12)
    return -table if MEASURES[measure] == "lower" else table


def beaten(table: pd.DataFrame) -> pd.DataFrame:
    """Share of the other methods in its block that each method beats; a tie is half.

    table: of ``blocks``.
    Returns a rank that does not depend on the number of methods: 1 is first, 0 is last,
    NaN is alone in its block.
    """
    num_others = table.notna().sum(axis=1) - 1
    won = table.rank(axis=1) - 1  # a tie counts one half
    return won.div(num_others.where(num_others > 0), axis=0)


def ranks(runs: pd.DataFrame, measure: str = "score") -> pd.DataFrame:
    """The methods, ranked by the share of opponents that they beat.

    Every data set has the same weight. Returns method, beats (share in [0, 1]), low and
    high (95 % bootstrap interval), num_protocols, and num_blocks. The interval is wide
    because there are few data sets, and still too narrow: with three or four of them a
    bootstrap interval covers less than its nominal level. Below three there is none
    (NaN).
    """
    shares = beaten(blocks(runs, measure))
    edge = (1 - LEVEL) / 2
    draws = pd.DataFrame(_drawn(shares))
    low, high = draws.quantile([edge, 1 - edge]).round(12).to_numpy()
    protocols = shares.notna().groupby("protocol").any().sum()
    has_few = protocols.to_numpy() < LEAST
    low, high = (np.where(has_few, np.nan, edge) for edge in (low, high))
    found = pd.DataFrame(
        {
            "method": shares.columns,
            "beats": shares.groupby("protocol").mean().mean().to_numpy(),
            "low": low,
            "high": high,
            "num_protocols": protocols.to_numpy(),
            "num_blocks": shares.notna().sum().to_numpy(),
        }
    ).dropna(subset="beats")
    return found.sort_values("beats", ascending=False, kind="stable", ignore_index=True)


def pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """Compare all pairs of methods, and test whether seeds explain the difference.

    Differences are taken within blocks, which removes the effect of a seed on both.

    difference: better minus worse, in the unit of the measure: the mean over data sets
                and held-out domains with at least two seeds (``num_sets``), with equal
                weights.
    is_real:    whether its *simultaneous* 95 % interval (``low``, ``high``) excludes
                zero. The interval is Student's t with Welch's degrees of freedom, since
                each data set has its own spread; each of P pairs gets 5 % / P
                (Bonferroni).

    Data sets are treated as fixed: a difference that is significant on these need not
    be on others, which is what the intervals of ``ranks`` are about.
    """
    from scipy.stats import t

    table = blocks(runs)
    names = list(combinations(table.columns, 2))
    rows = []
    for a, b in names:
        found = _difference((table[a] - table[b]).dropna())
        if found is not None:
            mean, error, freedom, num = found
            reach = error * t.isf((1 - LEVEL) / 2 / len(names), freedom)
            better, worse = (a, b) if mean >= 0 else (b, a)
            row = {"better": better, "worse": worse, "difference": abs(mean)}
            row |= {"low": abs(mean) - reach, "high": abs(mean) + reach}
            rows.append(row | {"is_real": abs(mean) > reach > 0, "num_sets": num})
    columns = ["better", "worse", "difference", "low", "high", "is_real", "num_sets"]
    found = pd.DataFrame(rows, columns=columns)
    return found.sort_values("difference", ascending=False, ignore_index=True)


def _difference(gaps: pd.Series) -> tuple[float, float, float, int] | None:
    """Mean over data sets, its standard error, degrees of freedom, and how many.

    gaps: of one pair, by block. None where no data set has two seeds.
    """
    sets = gaps.groupby(["protocol", "held_out_domain"]).agg(["mean", "var", "count"])
    sets = sets[sets["count"] > 1]
    if sets.empty:
        return None
    sets["var"] = sets["var"].where(sets["var"] > EQUAL**2, 0.0)
    # Welch: u = s^2 / n; error^2 = sum u / D^2; nu = (sum u)^2 / sum(u^2 / (n - 1))
    u, num = sets["var"] / sets["count"], len(sets)
    parts = (u**2 / (sets["count"] - 1)).sum()
    freedom = u.sum() ** 2 / parts if parts > 0 else 1.0
    return sets["mean"].mean(), np.sqrt(u.sum()) / num, freedom, num


def _drawn(shares: pd.DataFrame) -> np.ndarray:
    """The methods' means over data sets in each draw, (DRAWS, methods).

    A draw samples as many data sets as there are, and as many blocks within each, both
    with replacement; a data set that is drawn twice gets other blocks each time.
    """
    rng = np.random.default_rng(0)
    parts = [part.to_numpy() for _, part in shares.groupby("protocol")]
    drawn = []
    for which in rng.integers(len(parts), size=(len(parts), DRAWS)):
        means = [_means(_resampled(len(part), rng), part) for part in parts]
        drawn.append(np.stack(means)[which, np.arange(DRAWS)])
    return _means(np.ones((DRAWS, len(parts))), np.stack(drawn, axis=1))


def _resampled(num: int, rng: np.random.Generator) -> np.ndarray:
    """How often each of ``num`` is drawn, with replacement, (DRAWS, num)."""
    return rng.multinomial(num, np.full(num, 1 / num), DRAWS)


def _means(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Weighted means, (draws, columns), of (num, columns) or (draws, num, columns).

    weights: (draws, num). NaN are left out.
    """
    parts = np.nan_to_num(values), ~np.isnan(values)
    total, counted = ((weights[:, None] @ part)[:, 0] for part in parts)
    return np.divide(total, counted, out=np.full_like(total, np.nan), where=counted > 0)
