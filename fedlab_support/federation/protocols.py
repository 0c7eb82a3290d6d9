"""Which domains nobody trains on, and which round's number is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ..core.history import ALL_CLIENTS, ALL_DOMAINS, GROUPS, MEASURED, PERSONAL
from ..data import DomainData
from .federation import Federation
from .partition import Parts, by_owner, leave_out

if TYPE_CHECKING:
    import pandas as pd

VALIDATED_BY = (1, 3, 0, 2)
"""Of four domains in the order of their names: which one validates for each.

On PACS: cartoon for art, sketch for cartoon, art for photo, photo for sketch; on
Office-Home: Clipart for Art, Real World for Clipart, Art for Product, Product for Real
World. Source: Bai et al., ICLR 2024, and Table 1 of FISC.
"""

RULES = ("last", "best_val", "best_held_out_val")
"""How the reported round may be chosen."""


def leave_one_domain_out(
    data: DomainData,
    deal: Callable[..., Parts] = by_owner,
    val: float = 0.0,
    seed: int = 0,
) -> dict[str, Federation]:
    """One federation per domain, each without that domain: its name → federation.

    deal:       a partition that takes ``among``, e.g. ``by_owner`` or
                ``partial(heterogeneous, clients=100, lam=0.1)``.
    val, seed:  as for ``Federation.build``; validation samples come from clients, so
                never from the domain that is left out.

    What is set aside for testing in the other domains is ``federation.test``; the whole
    domain that is left out is ``federation.held_out``. Raises ValueError when there is
    only one domain.
    """
    _refuse_few(data, 2, "two")
    return {
        name: _without(data, (name,), deal, val, seed) for name in data.domain_names
    }


def leave_two_domains_out(
    data: DomainData,
    deal: Callable[..., Parts] = by_owner,
    val: float = 0.0,
    seed: int = 0,
    validated_by: Mapping[str, str] | None = None,
) -> dict[str, Federation]:
    """One federation per test domain, without it and without a second one to validate.

    validated_by:     test domain → the domain on which its rounds or settings may be
                      chosen; None: each domain is tested once, with four domains as on
                      PACS and Office-Home (``VALIDATED_BY``), else with the one before
                      it in name order.
    deal, val, seed:  as for ``leave_one_domain_out``.

    Test domain → federation, whose ``held_out_domains`` are (validation, test): the
    history measures both, domain by domain, and ``reported`` keeps them apart.
    Raises ValueError for fewer than three domains, an unknown one, or one that is to
    validate for itself.
    """
    _refuse_few(data, 3, "three")
    pairs = _usual_pairs(data) if validated_by is None else dict(validated_by)
    if same := [test for test, chosen in pairs.items() if test == chosen]:
        raise ValueError(
            f"expected another domain to validate for {same[0]!r}, found itself; "
            "choosing on the test domain would make its number an oracle's"
        )
    return {
        test: _without(data, (chosen, test), deal, val, seed)
        for test, chosen in pairs.items()
    }


def reported(
    table: pd.DataFrame,
    rule: str = "last",
    domain: str | Iterable[str] | None = None,
    metric: str = "accuracy",
) -> pd.DataFrame:
    """The one number that each run reports, by a rule that is fixed beforehand.

    table:   tidy, of one run or many; further columns tell runs apart.
    rule:    "last", the papers' (they report what training ends with); "best_val", the
             evaluated round at which clients score best on what they keep back, each
             counting once; "best_held_out_val", that at which the other held-out
             domains score best. Of equal rounds the first.
    domain:  the held-out domain that is reported, or several, averaged; None: the last
             that a run holds out, which ``leave_two_domains_out`` tests on. A run that
             holds out none reports its test samples.
    metric:  a score, of which more is better.

    Returns one row per run, with the columns of ``table``. Raises ValueError for
    another rule, or where a run has no rows that the rule looks at.
    """
    if rule not in RULES:
        raise ValueError(f"rule must be one of {RULES}, found {rule!r}")
    import pandas as pd

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
    domains = domains or [run["held_out"].iloc[0].rpartition("+")[2]]
    split = "test" if domains == [ALL_DOMAINS] else "held_out"
    whole = (run["split"] == split) & (run["client"] == ALL_CLIENTS)
    measured = run[whole & (run["metric"] == metric)]
    is_reported = measured["domain"].isin(domains)
    numbers = _by_round(measured[is_reported], run, f"{metric} of {domains}")
    round = numbers.index[-1]
    if rule == "best_val":
        names = (metric, PERSONAL + metric)
        seen = run[(run["split"] == "val") & run["metric"].isin(names)]
        what = f"{metric} on val; Federation.build(…, val=0.1) keeps samples back"
    elif rule == "best_held_out_val":
        seen = measured[(measured["domain"] != ALL_DOMAINS) & ~is_reported]
        what = "a domain to choose on; leave_two_domains_out holds out a second one"
    if rule != "last":
        seen = seen[seen["round"].isin(numbers.index)]
        round = _by_round(seen, run, what).idxmax()
    shown = {"split": split, "domain": "+".join(domains), "value": numbers[round]}
    return measured[is_reported].iloc[-1:].assign(round=round, **shown)


def _by_round(rows: pd.DataFrame, run: pd.DataFrame, what: str) -> pd.Series:
    """Mean value of each evaluated round, ascending; ValueError if there is none."""
    if rows.empty:
        raise ValueError(
            f"run {run['run'].iloc[0]!r} has no rows for {what}; found splits "
            f"{sorted(run['split'].unique())} and held-out domains "
            f"{run['held_out'].iloc[0]!r}"
        )
    return rows.groupby("round")["value"].mean()


def _without(data, held_out: tuple[str, ...], deal, val, seed) -> Federation:
    parts = deal(data, among=leave_out(data, held_out))
    return Federation.build(data, parts, held_out, val, seed)


def _usual_pairs(data: DomainData) -> dict[str, str]:
    names = sorted(data.domain_names)
    before = VALIDATED_BY if len(names) == 4 else range(-1, len(names) - 1)
    return {test: names[chosen] for test, chosen in zip(names, before, strict=True)}


def _refuse_few(data: DomainData, least: int, in_words: str) -> None:
    if len(data.domain_names) < least:
        raise ValueError(
            f"expected at least {in_words} domains, so that one is left to train on, "
            f"found {list(data.domain_names)} in {data.name}; rotated(data) makes "
            "domains out of writers"
        )
