"""Tables by client: who participated, and how evenly they score."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from fedlab_support.core.checks import COUNT, checked
from fedlab_support.core.history import (
    ALL_CLIENTS,
    ALL_DOMAINS,
    GROUPS,
    MEASURED,
    PERSONAL,
    columns_of,
    last,
)


def as_participants(table: pd.DataFrame) -> pd.DataFrame:
    """The same table, with the test scores of participating clients.

    Where a run has ``personal_…`` rows on test samples, because clients predict with
    personal layers, they replace the rows of a client that never participated.
    """
    is_own = (table["split"] == "test") & table["metric"].str.startswith(PERSONAL)
    plain = table["metric"].str.removeprefix(PERSONAL)
    named = table.assign(metric=table["metric"].mask(is_own, plain))
    keys = pd.MultiIndex.from_frame(named.drop(columns="value"))
    return named[is_own | ~keys.isin(keys[is_own])]


@checked(num_clients=COUNT)
def participation(
    table: pd.DataFrame, num_clients: int, by: str | Sequence[str] = ("name", "seed")
) -> pd.DataFrame:
    """How often each client participated in each run.

    table:        tidy and complete: the number of rounds is that of the last one, and
                  there is one training row (split "train", metric "loss") per round and
                  client whose message was accepted.
    num_clients:  of the federation; clients that were never chosen get a row too.
    by:           columns that identify a run.
    Returns ``by``, client (0…num_clients - 1), times_chosen and share (of the rounds).
    Raises ValueError when a run has no training rows, a client number is too large, or
    ``by`` does not separate the runs.
    """
    by = columns_of(table, by)
    trained = (table["split"] == "train") & (table["metric"] == "loss")
    visits = table[trained & (table["client"] != ALL_CLIENTS)]
    runs = table.groupby(by, **GROUPS)["round"].max().rename("rounds").reset_index()
    merged = runs.merge(visits[by].drop_duplicates(), how="left", indicator=True)
    untrained = merged[merged["_merge"] != "both"]
    if len(untrained) or visits.empty:
        raise ValueError(
            "expected rows with split 'train' and metric 'loss' in every run, found "
            f"none in {untrained[by].values.tolist()[:3]}; keep them when filtering"
        )
    if (largest := visits["client"].max()) >= num_clients:
        raise ValueError(
            f"expected clients 0…{num_clients - 1}, found client {largest}; "
            "num_clients counts all clients: len(federation)"
        )
    _refuse_several_runs(visits, [*by, "round", "client"], by)
    times = visits.groupby([*by, "client"], **GROUPS).size().reset_index(name="times")
    clients = pd.DataFrame({"client": range(num_clients)}, dtype="int64")
    everyone = runs.merge(clients, how="cross")
    counted = everyone.merge(times, on=[*by, "client"], how="left")
    counted["times_chosen"] = counted["times"].fillna(0).astype("int64")
    counted["share"] = counted["times_chosen"] / counted["rounds"]
    return counted[[*by, "client", "times_chosen", "share"]]


@checked(rounds=COUNT)
def across_clients(
    table: pd.DataFrame,
    by: str | Sequence[str] = ("name", "seed"),
    metric: str = "accuracy",
    split: str = "val",
    rounds: int = 5,
) -> pd.DataFrame:
    """Spread over clients of the mean of each client's last ``rounds`` evaluations.

    Every client counts once, whatever its size.
    Returns per run: ``by``, mean, sd (n in the denominator) and worst_tenth (mean over
    the lowest tenth of the clients, rounded down, at least one client).
    Source: Li et al., ICLR 2020 (q-FFL), table 1.
    """
    by = columns_of(table, by)
    each = _each_client(table, by, metric, split, rounds)
    clients = each.groupby(by, **GROUPS)["value"]
    return clients.agg(
        mean="mean",
        sd=lambda values: values.std(ddof=0),
        worst_tenth=lambda values: values.nsmallest(_tenth(values)).mean(),
    ).reset_index()


@checked(rounds=COUNT)
def by_client(
    table: pd.DataFrame,
    by: str | Sequence[str] = ("name",),
    metric: str = "accuracy",
    split: str = "val",
    rounds: int = 5,
) -> pd.DataFrame:
    """Final score of each client: its last ``rounds`` evaluations, mean over seeds.

    Returns ``by``, client, mean and num_seeds. Raises ValueError as ``across_clients``.
    """
    by = columns_of(table, by)
    each = _each_client(table, [*by, "seed"], metric, split, rounds)
    values = each.groupby([*by, "client"], **GROUPS)["value"]
    return values.agg(mean="mean", num_seeds="count").reset_index()


def _each_client(
    table: pd.DataFrame, runs: list[str], metric: str, split: str, rounds: int
) -> pd.DataFrame:
    """One row per run and client: the mean of its last ``rounds`` evaluations."""
    runs = columns_of(table, dict.fromkeys(runs))
    single = (table["client"] != ALL_CLIENTS) & (table["domain"] == ALL_DOMAINS)
    chosen = table[single & (table["split"] == split)]
    if metric not in (found := set(chosen["metric"])):
        raise ValueError(
            f"expected rows of single clients with metric {metric!r} and split "
            f"{split!r}, found metrics {sorted(found)}; Federation.build(…, val=0.2) "
            "sets validation samples aside to measure on"
        )
    chosen = chosen[chosen["metric"] == metric]
    each = last(chosen, rounds).sort_values("client", kind="stable")
    _refuse_several_runs(each, [*runs, "client"], runs)
    return chosen[runs].drop_duplicates().merge(each, on=runs)  # in the table's order


def _tenth(values: pd.Series) -> int:
    return max(1, len(values) // 10)


def _refuse_several_runs(table: pd.DataFrame, keys: list[str], by: list[str]) -> None:
    if table.duplicated(keys).any():
        rest = [n for n in table.columns if n not in (*keys, *MEASURED, "run")]
        varied = [name for name in rest if table[name].nunique() > 1]
        raise ValueError(
            f"expected one row per {', '.join(keys)}, found several; {by} does not "
            f"separate the runs: add one of {varied or ['run']}"
        )
