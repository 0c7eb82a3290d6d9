"""Tables of what is kept: runs, comparisons in pairs, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlab_support.core.metrics import cluster_accuracy

from ..leaderboard.paired import Paired, holm, over_images, paired, verdict
from .runs import Outcome, outcome, reported
from .studies import Study

if TYPE_CHECKING:
    import pandas as pd

COMMAND = "python -m fedlab_course.evidence train {}"
OWN = "own domains"
KEYS = ["paper", "table", "data", "claim"]
MEASURED = ["mean", "low", "high", "num", "images_low", "images_high", "p_holm"]


# ---- one run ------------------------------------------------------------------------
def tested_domains(cell: dict, found: Outcome) -> list[str]:
    """The test domain of a run, or the clients' own."""
    return [cell["test"]] if cell["test"] else sorted(set(found.domain))


def runs(study: Study, cells: Sequence[dict], folder: Path) -> pd.DataFrame:
    """A row per kept run.

    accuracy:         the mean over the test domains, also given one by one.
    sigma_type:       standard deviation over the clients' own domains.
    active_first, …:  the mean of a logged value over round 1, and over the last rounds
                      since the evaluation before; likewise the others of
                      ``study.logged``.
    purity_first, …:  share of clients whose domain is the most common of their group.
    """
    import pandas as pd

    rows = []
    for cell in cells:
        if (found := outcome(study, cell, folder, trains=False)) is not None:
            shares = {name: found.share(name) for name in sorted(set(found.domain))}
            own = [shares[name] for name in tested_domains(cell, found)]
            row = cell | {"accuracy": np.mean(own)}
            row |= {} if cell["test"] else {"sigma_type": np.std(own)}
            rows.append(row | shares | _mechanism(study, found))
    return pd.DataFrame(rows)


def _mechanism(study: Study, found: Outcome) -> dict[str, float]:
    table = found.history.table()
    logged = table[(table["split"] == "train") & table["metric"].isin(study.logged)]
    groups = table[(table["split"] == "server") & (table["metric"] == "group")]
    begin = study.rounds - study.every
    row = {}
    for name, low, high in (("first", 0, 1), ("last", begin, study.rounds)):
        now = logged[logged["round"].between(low, high, inclusive="right")]
        for metric, value in now.groupby("metric")["value"].mean().items():
            row[f"{metric}_{name}"] = value
        if len(groups):
            row[f"purity_{name}"] = _purity(groups, found)
            groups = groups[groups["round"] == groups["round"].max()]
    return row


def _purity(groups: pd.DataFrame, found: Outcome) -> float:
    """The cluster accuracy of the first round in the table."""
    now = groups[groups["round"] == groups["round"].min()]
    held = [found.federation.client(i).train.domain for i in now["client"]]
    types = np.array([np.bincount(domain).argmax() for domain in held])
    return cluster_accuracy(now["value"].to_numpy(), types)


# ---- two methods --------------------------------------------------------------------
def groups(name: str, study: Study, folder: Path) -> dict[str, list[dict]]:
    """The cells of comparisons: at the default rate, and tuned where all is trained."""
    found = {f"{name}: {study.tests[0] or OWN}, default": study.default()}
    for test in study.tests if study.tuned else ():
        read = partial(outcome, study, folder=folder, trains=False)
        if all(read(cell) is not None for cell in study.trials(test)):
            found[f"{name}: {test or OWN}, tuned"] = reported(study, test, folder)
    return found


def comparisons(
    study: Study, by_group: Mapping[str, Sequence[dict]], folder: Path
) -> pd.DataFrame:
    """Method minus reference in points, paired by seed; a row per pair of a group.

    Columns group, method, reference, those of ``Paired``, images_low and images_high
    (``over_images``; NaN if seeds have different test samples), and p_holm, p adjusted
    for all rows.
    """
    import pandas as pd

    rows = []
    for group, cells in by_group.items():
        kept = _by_method(study, cells, folder)
        for method, reference in study.against:
            mine, other = kept.get(method, {}), kept.get(reference, {})
            if seeds := sorted(set(mine) & set(other)):
                row = {"group": group, "method": method, "reference": reference}
                pair = [[of[seed] for seed in seeds] for of in (mine, other)]
                rows.append(row | _compared(*pair))
    table = pd.DataFrame(rows)
    return table.assign(p_holm=holm(table["p"])) if rows else table


Credit = tuple[np.ndarray, np.ndarray]
"""Images, and what each adds to the accuracy: 0 for a wrong answer."""


def _by_method(study, cells, folder: Path) -> dict[str, dict[int, Credit]]:
    """Credits by method and seed, of the runs that are kept."""
    kept: dict[str, dict[int, Credit]] = {}
    for cell in cells:
        if (found := outcome(study, cell, folder, trains=False)) is not None:
            domains = tested_domains(cell, found)
            credit = np.zeros(len(found.correct))
            for name in domains:
                mine = found.domain == name
                credit[mine] = found.correct[mine] / mine.sum() / len(domains)
            is_tested = np.isin(found.domain, domains)
            pair = found.rows[is_tested], credit[is_tested]
            kept.setdefault(cell["method"], {})[cell["seed"]] = pair
    return kept


def _compared(mine: Sequence[Credit], other: Sequence[Credit]) -> dict[str, float]:
    ahead = [
        100 * (a.sum() - b.sum()) for (_, a), (_, b) in zip(mine, other, strict=True)
    ]
    row = vars(paired(ahead)) | {"images_low": np.nan, "images_high": np.nan}
    images = mine[0][0]
    if all(np.array_equal(images, own) for own, _ in [*mine, *other]):
        a, b = (np.stack([len(images) * c for _, c in of]) for of in (mine, other))
        low, high = over_images(a, b)
        row |= {"images_low": 100 * low, "images_high": 100 * high}
    return row


# ---- what the papers claim ----------------------------------------------------------
def claims() -> pd.DataFrame:
    """The papers' main claims.

    ``group``, ``ours`` and ``ours_reference`` name the comparison that tests one, and
    are empty where there is none.
    """
    import pandas as pd

    with (files("fedlab_course.leaderboard") / "claims.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False)


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """The papers' main claims, a row each, and what our comparisons say of them.

    table: of ``comparisons``. Returns the claim; printed, the difference in the paper;
    the columns ``MEASURED`` of our comparison, with p_holm over the claims that have
    one; verdict, as in the function of that name, or "not run fairly yet"; differs,
    from the paper; and command.
    """
    import pandas as pd

    known = claims()
    pair = {"ours": "method", "ours_reference": "reference"}
    ours = known[["group", *pair]].rename(columns=pair)
    if len(table):
        ours = ours.merge(table, how="left", on=list(ours.columns), validate="m:1")
    ours = ours.reindex(columns=[*ours.columns[:3], *MEASURED, "sd", "p"])
    ours["p_holm"] = holm(ours["p"])
    known["printed"] = known["value"] - known["reference_value"]
    is_run = ours["mean"].notna()
    known["command"] = [
        COMMAND.format(group.partition(":")[0]) if group else ""
        for group in ours["group"]
    ]
    pairs = zip(known["printed"], ours.to_dict("records"), strict=True)
    known["verdict"] = [_worded(printed, row) for printed, row in pairs]
    found = pd.concat([known[[*KEYS, "printed"]], ours[MEASURED]], axis=1)
    return found.join(known["verdict"]).join(
        known[["differs", "command"]].where(is_run)
    )


def _worded(printed: float, ours: Mapping[str, float]) -> str:
    if np.isnan(ours["mean"]):
        return "not run fairly yet"
    found = Paired(**{f.name: ours[f.name] for f in fields(Paired)})
    return verdict(printed, found, ours["p_holm"])


# ---- files --------------------------------------------------------------------------
def tables(studies: Mapping[str, tuple[Study, Path]], to: Path) -> None:
    """Write ``runs.csv`` and ``comparisons.csv`` of each study, and all verdicts.

    studies: name → study and its folder; one without runs is left out.
    """
    import pandas as pd

    written = {"float_format": "%.4g", "index": False, "lineterminator": "\n"}
    found = {}
    for name, (study, folder) in studies.items():
        by_group = groups(name, study, folder)
        cells = chain(*by_group.values(), *map(study.trials, study.tests))
        rows = runs(
            study, list({str(sorted(c.items())): c for c in cells}.values()), folder
        )
        if len(rows):
            rows.to_csv(folder / "runs.csv", **written)
            found[folder] = comparisons(study, by_group, folder)
    for folder, own in found.items():
        own.to_csv(folder / "comparisons.csv", **written)
    every = pd.concat(found.values()) if found else pd.DataFrame()
    verdicts(every).to_csv(to, **written)
