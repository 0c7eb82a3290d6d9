"""Evaluation protocols: which domains are held out, and which round is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..core.checks import SHARE, Range, checked
from ..core.history import ALL_CLIENTS, ALL_DOMAINS, GROUPS, MEASURED, PERSONAL
from ..data import DomainData
from .federation import Federation
from .partition import Parts, by_owner, leave_out

if TYPE_CHECKING:
    import pandas as pd

VALIDATED_BY = (1, 3, 0, 2)
"""For each of four domains in name order, the number of its validation domain.

On PACS: cartoon for art, sketch for cartoon, art for photo, photo for sketch; on
Office-Home: Clipart for Art, Real World for Clipart, Art for Product, Product for Real
World. Source: Bai et al., ICLR 2024, and Table 1 of FISC.
"""

RULES = ("last", "best_val", "best_held_out_val")
"""The rules for choosing the reported round."""


@checked(val=SHARE)
def leave_one_domain_out(
    data: DomainData,
    deal: Callable[..., Parts] = by_owner,
    val: float = 0.0,
    seed: int = 0,
) -> dict[str, Federation]:
    """One federation per domain, which holds out that domain: its name → federation.

    deal:       a partition that takes ``among``, the rows to deal, e.g. ``by_owner`` or
                ``partial(heterogeneous, clients=100, lam=0.1)``.
    val, seed:  as for ``Federation.build``; validation samples belong to clients, so
                never to the held-out domain.

    The test samples of the other domains are ``federation.test``; the held-out domain
    is ``federation.held_out``. Raises ValueError when there is only one domain.
    """
    _refuse_few(data, 2)
    return {
        name: _without(data, (name,), deal, val, seed) for name in data.domain_names
    }


@checked(val=SHARE)
def leave_two_domains_out(
    data: DomainData,
    deal: Callable[..., Parts] = by_owner,
    val: float = 0.0,
    seed: int = 0,
) -> dict[str, Federation]:
    """One federation per test domain; it and a validation domain are held out.

    deal, val, seed:  as for ``leave_one_domain_out``.

    Every domain is the test domain once. Rounds and settings may be chosen on the
    validation domain: with four domains that of ``VALIDATED_BY``, else the previous one
    in name order.

    Returns test domain → federation, whose ``held_out_domains`` are (validation, test).
    The history measures each of them, and ``reported`` keeps them apart. Raises
    ValueError for fewer than three domains.
    """
    _refuse_few(data, 3)
    names = sorted(data.domain_names)
    before = VALIDATED_BY if len(names) == 4 else range(-1, len(names) - 1)
    return {
        test: _without(data, (names[chosen], test), deal, val, seed)
        for test, chosen in zip(names, before, strict=True)
    }


@checked(rule=Range(one_of=RULES))
def reported(
    table: pd.DataFrame,
    rule: str = "last",
    domain: str | Iterable[str] | None = None,
    metric: str = "accuracy",
) -> pd.DataFrame:
    """The number that each run reports, by a rule that is fixed beforehand.

    table:   tidy, of one run or many; further columns identify runs.
    rule:    "last", the last evaluated round, as in the papers; "best_val", the
             evaluated round with the best mean score over clients on their validation
             samples; "best_held_out_val", the one with the best score on the other
             held-out domains. The first of equal rounds.
    domain:  the held-out domain to report, or several, averaged; None: the last one
             that a run holds out, on which ``leave_two_domains_out`` tests. A run
             without held-out domains reports its test samples.
    metric:  a score, higher is better.

    Returns one row per run, with the columns of ``table``. Raises ValueError for an
    unknown rule, one that would choose the highest loss, or when a run has no rows that
    the rule needs.
    """
    import pandas as pd

    if rule != "last" and metric.endswith("loss"):
        raise ValueError(
            f"rule {rule!r} chooses the round with the highest value of a score, found "
            f"metric {metric!r}; choose by a score, or report the loss with rule='last'"
        )
    keys = [name for name in table.columns if name not in MEASURED]
    wanted = [domain] if isinstance(domain, str) else domain and list(domain)
    runs = [
        _reported(run, rule, wanted, metric) for _, run in table.groupby(keys, **GROUPS)
    ]
    return pd.concat(runs, ignore_index=True) if runs else table


def _reported(
    run: pd.DataFrame, rule: str, domains: list[str] | None, metric: str
) -> pd.DataFrame:
    """The row of one run."""
    domains = domains or [_last_held_out(run)]
    split = "test" if domains == [ALL_DOMAINS] else "held_out"
    whole = (run["split"] == split) & (run["client"] == ALL_CLIENTS)
    measured = run[whole & (run["metric"] == metric)]
    is_reported = measured["domain"].isin(domains)
    for each in domains:
        _by_round(measured[measured["domain"] == each], run, f"{metric} of {each!r}")
    numbers = measured[is_reported].groupby("round")["value"].mean()
    round = numbers.index[-1]
    if rule == "best_val":
        names = (metric, PERSONAL + metric)
        seen = run[(run["split"] == "val") & run["metric"].isin(names)]
        what = f"{metric} on val; Federation.build(…, val=0.1) sets samples aside"
    elif rule == "best_held_out_val":
        seen = measured[(measured["domain"] != ALL_DOMAINS) & ~is_reported]
        what = "a domain to choose on; leave_two_domains_out holds out a second one"
    if rule != "last":
        seen = seen[seen["round"].isin(numbers.index)]
        round = _by_round(seen, run, what).idxmax()
    shown = {"split": split, "domain": "+".join(domains), "value": numbers[round]}
    return measured[is_reported].iloc[-1:].assign(round=round, **shown)


def _last_held_out(run: pd.DataFrame) -> str:
    """The last domain that a run holds out; names may contain the "+" between them."""
    all_of_them = run["held_out"].iloc[0]
    names = run.loc[run["split"] == "held_out", "domain"].unique()
    ends = [name for name in names if f"+{all_of_them}".endswith(f"+{name}")]
    return max(ends, key=len, default=all_of_them.rpartition("+")[2])


def _by_round(rows: pd.DataFrame, run: pd.DataFrame, what: str) -> pd.Series:
    """Mean value of each evaluated round, ascending; ValueError without rows."""
    if rows.empty:
        raise ValueError(
            f"run {run['run'].iloc[0]!r} has no rows for {what}; found splits "
            f"{sorted(run['split'].unique())} and held-out domains "
            f"{run['held_out'].iloc[0]!r}"
        )
    values = rows.groupby("round")["value"]
    is_complete = values.count() == values.count().max()  # clients may be unreachable
    return values.mean()[is_complete]


def _without(data, held_out: tuple[str, ...], deal, val, seed) -> Federation:
    parts = deal(data, among=leave_out(data, held_out))
    return Federation.build(data, parts, held_out, val, seed)


def _refuse_few(data: DomainData, least: int) -> None:
    if len(data.domain_names) < least:
        raise ValueError(
            f"expected at least {least} domains, so that one is left to train on, "
            f"found {list(data.domain_names)} in {data.name}; rotated(data) makes "
            "domains out of writers"
        )
