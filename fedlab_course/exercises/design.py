"""The check of the open tasks: whether an experiment is set up fairly."""

from __future__ import annotations

import pandas as pd

from .checking import Wrong


def check_comparison(answer: object, setting: str = "method") -> str:
    """Check the form of an experiment, not its outcome.

    answer:  tidy history of at least two settings with three seeds each.
    setting: the column that tells the settings apart.
    """
    if not isinstance(answer, pd.DataFrame):
        raise Wrong(f"expected a table (a DataFrame), found {type(answer).__name__}")
    missing = [n for n in (setting, "seed", "round", "value") if n not in answer]
    if missing:
        raise Wrong(f"the table lacks the columns {missing}; use run.history.table()")
    if "metric" in answer and answer["metric"].nunique() > 1:
        raise Wrong("the table holds several metrics; keep the one you compare")
    seeds = answer.groupby(setting)["seed"].agg(_distinct)
    if len(seeds) < 2:
        raise Wrong(f"a comparison needs two settings; the table has {len(seeds)}")
    for name, found in seeds.items():
        if len(found) < 3:
            raise Wrong(f"{name!r} has {len(found)} seeds; spread needs at least three")
    if seeds.nunique() > 1:
        raise Wrong("the settings use different seeds; with equal ones they share luck")
    rounds = answer.groupby([setting, "seed"])["round"].agg(_distinct)
    if rounds.nunique() > 1:
        raise Wrong(
            "the runs were not evaluated at the same rounds: who had more time?"
        )
    if answer["value"].isna().any():
        raise Wrong("some values are missing (NaN): did a run diverge? Say so instead")
    return f"a fair form: {len(seeds)} settings, {len(seeds.iloc[0])} seeds each"


def _distinct(values: pd.Series) -> tuple:
    return tuple(sorted(set(values)))
