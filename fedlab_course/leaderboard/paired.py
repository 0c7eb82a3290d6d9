"""Paired comparisons of two methods, over seeds and over images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

LEVEL = 0.95
"""Coverage of an interval; below three pairs there is none."""
ALPHA = 0.05
"""A p-value below it is clear. In floats, 1 - LEVEL is a little more."""
LEAST = 3
EQUAL = 1e-9
"""Differences whose standard deviation is less are equal but for rounding."""
POWER = 0.8
MOST_SEEDS = 10_000
DRAWS = 9_999


@dataclass(frozen=True)
class Paired:
    """A mean paired difference with its interval and test.

    mean:      of method minus reference over pairs, which have the same seed.
    low, high: the 95 % interval, mean ± t_{n-1} · sd / sqrt(n); NaN for fewer than
               three pairs.
    sd:        standard deviation of the differences, dividing by n - 1; NaN for one.
    num:       n, the number of pairs.
    p:         of the paired t-test of a mean of 0; NaN for fewer than three pairs, and
               for equal differences, which show no spread (1 if they are 0).
    """

    mean: float
    low: float
    high: float
    sd: float
    num: int
    p: float


def paired(differences: Sequence[float]) -> Paired:
    """The mean difference over pairs, its t-interval and its test.

    differences: method minus reference, of each seed, (n,). ValueError for none, and
    for one that is not finite.
    """
    from scipy.stats import ttest_1samp

    found = np.asarray(differences, dtype=np.float64)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ValueError(
            "expected a finite difference for each of at least one pair, found "
            f"{found.tolist()}; leave out seeds that only one method has"
        )
    mean, num = found.mean(), len(found)
    sd = found.std(ddof=1) if num > 1 else np.nan
    if num < LEAST:
        return Paired(mean, np.nan, np.nan, sd, num, np.nan)
    if sd < EQUAL:
        return Paired(mean, mean, mean, 0.0, num, np.nan if abs(mean) > EQUAL else 1.0)
    test = ttest_1samp(found, 0)
    low, high = test.confidence_interval(LEVEL)
    return Paired(mean, low, high, sd, num, test.pvalue)


def leads(each: pd.DataFrame, reference: str) -> pd.DataFrame:
    """How far methods are ahead of a reference, seed by seed.

    each: accuracies in per cent, a row per seed and a column per method; NaN where a
          method has no run.

    Returns a row per other method, by name: points (the mean difference), 95 %
    interval, clear from (half its width: a larger mean would exclude zero; NaN for
    fewer than three seeds), seeds, and ahead (seeds with which the method is ahead).
    """
    rows = {}
    for name in each.columns.drop(reference):
        gaps = (each[name] - each[reference]).dropna()
        found = paired(gaps)
        shown = f"{found.low:.1f} to {found.high:.1f}" if found.num >= LEAST else "–"
        row = {"points": round(found.mean, 1), "95 % interval": shown}
        row |= {"clear from": round((found.high - found.low) / 2, 1)}
        rows[name] = row | {"seeds": found.num, "ahead": int((gaps > 0).sum())}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("name")


def over_images(mine: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of a difference in accuracy over test images.

    mine, reference: credit for each image, (S, N), in the same order of S seeds and N
                     images: 1 if it is classified correctly, or its weight in a mean
                     over domains.

    Draws images, with all their seeds, so it holds for these trained networks and other
    images like these; ``paired`` holds for other seeds and these images.
    """
    from scipy.stats import bootstrap

    each = mine.mean(0) - reference.mean(0)
    if np.ptp(each) == 0:
        return float(each[0]), float(each[0])
    rng = np.random.default_rng(0)
    options = {"confidence_level": LEVEL, "method": "percentile", "rng": rng}
    found = bootstrap((each,), np.mean, n_resamples=DRAWS, batch=500, **options)
    low, high = found.confidence_interval
    return float(low), float(high)


def holm(p: Sequence[float]) -> np.ndarray:
    """P-values adjusted for multiple comparisons, in the given order; NaN stays NaN.

    A claim whose adjusted value is below 0.05 may be called clear; the probability of
    one or more false ones among all is then at most 5 %.
    Source: Holm, *Scandinavian Journal of Statistics* 6, 1979.
    """
    p = np.asarray(p, dtype=np.float64)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    # max_{j <= i} (m - j + 1) p_(j), at most 1
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted = np.full_like(p, np.nan)
    adjusted[order] = np.maximum.accumulate(steps).clip(max=1)
    return adjusted


def pairs_needed(sd: float, difference: float) -> int | None:
    """Pairs with which a paired t-test finds a true difference in four of five cases.

    sd:         standard deviation of the differences.
    difference: the true mean that is to be found, at a level of 5 %, two-sided.
    Returns at least three, and None for more than MOST_SEEDS.
    Source: Cohen, *Statistical Power Analysis*, 1988: the t-statistic has a noncentral
    t-distribution with n - 1 degrees of freedom and parameter sqrt(n) difference / sd.
    """
    from scipy.stats import nct, t

    if sd == 0 and difference:
        return LEAST
    n = np.arange(LEAST, MOST_SEEDS + 1)
    shift = np.sqrt(n) * abs(difference) / sd if sd else np.zeros(len(n))
    edge = t.isf((1 - LEVEL) / 2, n - 1)
    power = nct.sf(edge, n - 1, shift) + nct.cdf(-edge, n - 1, shift)
    enough = np.flatnonzero(power >= POWER)
    return int(n[enough[0]]) if len(enough) else None


def verdict(printed: float, ours: Paired, p: float) -> str:
    """The verdict of our runs on a printed difference.

    printed: method minus reference in the paper, in the unit of ``ours``; its sign is
             the claim.
    p:       of ``ours``, adjusted for the claims that are read together (``holm``).

    "holds" and "refuted": the difference is clear, in the printed direction or against
    it. "not this size": it is not clear, and its interval does not reach the printed
    one. Otherwise "undecided", with the number of seeds that would find the printed
    difference at our spread, or "more than" ours if that is not more.
    """
    if ours.num < LEAST:
        return f"undecided (an interval needs at least {LEAST} seeds)"
    if np.isnan(p):
        return "undecided (equal differences cannot be tested)"
    if p < ALPHA:
        return "holds" if ours.mean * printed > 0 else "refuted"
    sign = np.sign(printed)
    if max(sign * ours.low, sign * ours.high) < abs(printed):
        return "not this size"
    needed = pairs_needed(ours.sd, printed)
    tried = MOST_SEEDS if needed is None else ours.num
    seeds = f"{needed:,}" if needed and needed > tried else f"more than {tried:,}"
    return f"undecided (would need {seeds} seeds)"
