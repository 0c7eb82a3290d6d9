"""Choose the settings of methods, each with the same budget, without the test data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..core.checks import COUNT, checked
from ..core.history import ALL_CLIENTS, PERSONAL
from ..core.rng import numpy_stream
from ..federation.federation import Federation
from .run import Run
from .study import check_values, each, expect_run, fit_once, refuse_ignored_axes

if TYPE_CHECKING:
    import pandas as pd

VAL = "val"
"""Validate on the clients' validation samples."""


class Tuned(NamedTuple):
    """The result of ``tune``.

    trials: a row per method, setting and seed: method, the settings (missing where a
            method has no such setting), seed, score, and is_chosen.
    choice: the chosen settings by method.
    """

    trials: pd.DataFrame
    choice: dict[str, dict]


@checked(rounds=COUNT, budget=COUNT, jobs=COUNT)
def tune(
    build: Callable[..., Run],
    spaces: Mapping[str, Mapping[str, Sequence]],
    rounds: int,
    validate_on: str,
    *,
    budget: int | None = None,
    seeds: Sequence[int] = (0,),
    folder: str | Path | None = None,
    jobs: int = 1,
    progress: bool = True,
) -> Tuned:
    """Choose the settings of each method by its score on validation data.

    build:       called as ``build(method=…, seed=…, **settings)``; returns a new Run.
    spaces:      method → setting → values to try, e.g. {"FedAvg": {"lr": [0.01, 0.1]}}.
    rounds:      of each run.
    validate_on: a held-out domain other than the last, which is the test domain (see
                 ``leave_two_domains_out``); or "val", the clients' validation samples.
    budget:      number of settings to try for each method, drawn with a fixed seed from
                 all combinations. None tries all; then all methods must have equally
                 many.
    seeds:       one run per setting and seed; the mean score over seeds counts.
    folder:      where finished runs are kept and found, as for ``study``.

    A run's score is that of its last round, the mean over clients for "val". The first
    of equal settings is chosen. Raises ValueError for unequal budgets, a choice on the
    test domain, values or seeds given twice, and runs without such validation data.
    Source: Gulrajani and Lopez-Paz, *In Search of Lost Domain Generalization*, ICLR
    2021: an equal budget for all, and a method includes how its settings are chosen.
    """
    import pandas as pd

    tried = {method: _drawn(method, space, budget) for method, space in spaces.items()}
    _check(build, spaces, tried, seeds, validate_on)
    cells = [
        {"method": method, **settings, "seed": seed}
        for method, settings_of in tried.items()
        for settings in settings_of
        for seed in seeds
    ]

    def score(cell: dict) -> float:
        run = expect_run(build(**cell))
        _refuse_test_domain(run, validate_on)  # each seed may have its own federation
        table = fit_once(run, rounds, folder).table()
        return validation_score(table, run.federation, validate_on)

    trials = pd.DataFrame(cells).assign(score=each(score, cells, jobs, progress))
    return _chosen(trials, tried, len(seeds))


def _chosen(trials: pd.DataFrame, tried: dict[str, list[dict]], num: int) -> Tuned:
    """Mark the best of each method's settings, of ``num`` trials each."""
    choice, is_chosen = {}, np.zeros(len(trials), dtype=bool)
    for method, settings in tried.items():
        mine = np.flatnonzero(trials["method"] == method).reshape(-1, num)
        means = trials["score"].to_numpy()[mine].mean(1)
        best = int(np.nan_to_num(means, nan=-np.inf).argmax())  # NaN: it diverged
        choice[method], is_chosen[mine[best]] = settings[best], True
    return Tuned(trials.assign(is_chosen=is_chosen), choice)


def _drawn(
    method: str, space: Mapping[str, Sequence], budget: int | None
) -> list[dict]:
    """The settings to try, in the order of the grid."""
    if not space:
        raise ValueError(f"spaces needs a setting of {method}, found {space!r}")
    if taken := {"method", "seed"} & set(space):
        raise ValueError(
            f"spaces of {method} must hold its settings only, found {sorted(taken)}; "
            "seeds are given by seeds="
        )
    for name, values in space.items():
        check_values(name, values)
    grid = [
        dict(zip(space, values, strict=True)) for values in product(*space.values())
    ]
    if budget is None:
        return grid
    if budget > len(grid):
        raise ValueError(
            f"expected at least budget={budget} settings of {method}, found "
            f"{len(grid)}; equal budgets need as many values to try for each method"
        )
    rng = numpy_stream(0, "select", 0)
    return [grid[i] for i in sorted(rng.choice(len(grid), budget, replace=False))]


def _check(build, spaces: Mapping, tried: dict, seeds, validate_on: str) -> None:
    """Raise ValueError for budgets, seeds, settings and data that are not fair."""
    counts = {method: len(settings) for method, settings in tried.items()}
    check_values("seeds", seeds)
    if not counts:
        raise ValueError(f"expected at least one method in spaces, found {spaces!r}")
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"every method gets the same budget, found {counts} settings to try; give "
            f"all equally many, or budget={min(counts.values())}"
        )
    for method, space in spaces.items():
        first = {"method": [method], "seed": [seeds[0]]}
        refuse_ignored_axes(build, first | {n: list(v) for n, v in space.items()})
        run = build(method=method, seed=seeds[0], **tried[method][0])
        _refuse_test_domain(run, validate_on)


def _refuse_test_domain(run: Run, validate_on: str) -> None:
    held_out = run.federation.held_out_domains
    if validate_on == VAL:
        if not len(run.federation.with_val):
            raise ValueError(
                "expected clients with validation samples, found none; "
                "Federation.build(…, val=0.1) sets some aside"
            )
    elif held_out and validate_on == held_out[-1]:
        raise ValueError(
            f"{validate_on!r} is the domain that is tested on; choosing on it would "
            "be oracle selection: choose on another held-out domain, as "
            "leave_two_domains_out has one, or on 'val'"
        )
    elif validate_on not in held_out:
        raise ValueError(
            f"validate_on must be 'val' or a held-out domain before the last, found "
            f"{validate_on!r}; held out are {list(held_out)}"
        )


def validation_score(
    table: pd.DataFrame, federation: Federation, validate_on: str
) -> float:
    """The score by which ``tune`` chooses, from the table of a run's history."""
    metric = federation.store.task.metric
    rows = table[table["metric"].isin((metric, PERSONAL + metric))]
    if validate_on == VAL:
        rows = rows[rows["split"] == VAL]
    else:
        rows = rows[(rows["split"] == "held_out") & (rows["domain"] == validate_on)]
        rows = rows[rows["client"] == ALL_CLIENTS]
    return float(rows[rows["round"] == rows["round"].max()]["value"].mean())
