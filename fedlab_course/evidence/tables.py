"""Tables of finished runs, paired comparisons, and verdicts on claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from fedlab_support.run.tune import validation_score

from ..client_types import types_of
from ..leaderboard.paired import Paired, holm, over_images, paired, verdict
from ..measures import cluster_accuracy
from .runs import Outcome, outcome, reported
from .study import Study, validation_of

COMMAND = "python -m fedlab_course.evidence train {}"
OWN = "own domains"
EACH = "each"
KEYS = ["paper", "table", "data", "claim"]
COMPARED = ["group", "method", "reference", *(f.name for f in fields(Paired))]
COMPARED += ["images_low", "images_high", "p_holm"]
MEASURED = ["mean", "low", "high", "num", "images_low", "images_high", "p_holm"]


class Kept:
    """Cached access to the finished runs of a study."""

    def __init__(self, study: Study, folder: Path):
        self.study, self.folder = study, folder
        self._found: dict[str, Outcome | None] = {}

    def __call__(self, cell: dict) -> Outcome | None:
        """The outcome of a cell, or None."""
        key = str(sorted(cell.items()))
        if key not in self._found:
            found = outcome(self.study, cell, self.folder, trains=False)
            self._found[key] = found
        return self._found[key]

    def rows(self, cells: Iterable[dict]) -> Iterator[tuple[dict, Outcome]]:
        """The finished cells with their outcomes, without repetition."""
        for cell in {str(sorted(c.items())): c for c in cells}.values():
            if (found := self(cell)) is not None:
                yield cell, found


# ---- one run ------------------------------------------------------------------------
def runs(kept: Kept, cells: Iterable[dict], chosen: Sequence[dict]) -> pd.DataFrame:
    """A row per kept run.

    is_chosen:        whether its cell is among ``chosen``, those of the chosen rates.
    validation:       the score by which rates are chosen.
    accuracy:         the mean over the test domains, also given one by one.
    sigma_type:       standard deviation over the clients' own domains, if several.
    active_first, …:  the mean of a logged value over round 1, and over the last rounds
                      since the evaluation before; likewise the others of
                      ``study.logged``.
    purity_first, …:  share of clients whose domain is the most common of their group.
    """
    rows = []
    for cell, found in kept.rows(cells):
        shares = {name: found.share(name) for name in found.domains}
        own = [shares[cell["test"]]] if cell["test"] else list(shares.values())
        table, where = found.history.table(), validation_of(found.federation)
        score = validation_score(table, found.federation, where)
        row = cell | {"is_chosen": cell in chosen, "validation": score}
        row |= {"accuracy": np.mean(own)}
        if not cell["test"] and len(found.domains) > 1:
            row["sigma_type"] = found.deviation()
        rows.append(row | shares | _mechanism(kept.study, found, table))
    return pd.DataFrame(rows)


def _mechanism(study: Study, found: Outcome, table: pd.DataFrame) -> dict[str, float]:
    logged = table[(table["split"] == "train") & table["metric"].isin(study.logged)]
    groups = table[(table["split"] == "server") & (table["metric"] == "group")]
    begin = study.rules.rounds - study.rules.every
    row = {}
    for name, low, high in (("first", 0, 1), ("last", begin, study.rules.rounds)):
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
    types = types_of(found.federation)[now["client"]]
    return cluster_accuracy(now["value"].to_numpy(), types)


# ---- two methods --------------------------------------------------------------------
Groups = Mapping[str, tuple[Sequence[dict], str]]
"""The runs of each comparison, and the domain on which it is made.

"" stands for the clients' own domains, EACH for the test domain of each run; the mean
over several domains is compared.
"""


def groups(name: str, kept: Kept) -> Groups:
    """The cells and the test domain of comparisons, by name.

    At the default rate nothing has been chosen on the validation domain, so methods are
    compared on it, too. A tuned method is compared once all its runs are there, and on
    the mean over the test domains once it is compared on each.
    """
    study, first = kept.study, kept.study.tests[0]
    domains = study.deal(first, study.seeds[0]).held_out_domains if first else ("",)
    found = {f"{name}: {d or OWN}, default": (study.default(), d) for d in domains}
    tuned = []
    for test in study.tests:
        trials = {method: study.trials(test, [method]) for method in study.tuned}
        if ready := [
            method for method in study.tuned if all(map(kept, trials[method]))
        ]:
            cells = reported(study, test, kept.folder, ready)
            missing = {cell["method"] for cell in cells if kept(cell) is None}
            cells = [cell for cell in cells if cell["method"] not in missing]
            found[f"{name}: {test or OWN}, tuned"] = cells, test
            tuned.append(cells)
    if len(tuned) == len(study.tests) > 1:
        on_all = set.intersection(*({c["method"] for c in cells} for cells in tuned))
        cells = [cell for cell in chain(*tuned) if cell["method"] in on_all]
        found[f"{name}: mean of {len(tuned)} domains, tuned"] = cells, EACH
    return found


def comparisons(kept: Kept, by_group: Groups) -> pd.DataFrame:
    """Method minus reference in points, paired by seed; a row per pair of a group.

    Columns group, method, reference, those of ``Paired``, images_low and images_high
    (``over_images``; NaN if seeds have different test samples), and p_holm. Accuracy is
    compared, and on several domains of the clients' own also the standard deviation
    between them, in groups named "…, deviation". p_holm is p, adjusted for all rows of
    one measure.
    """
    rows = []
    for group, (cells, test) in by_group.items():
        found = _by_method(kept, cells, test)
        for method, reference in kept.study.against:
            mine, other = found.get(method, {}), found.get(reference, {})
            if seeds := sorted(set(mine) & set(other)):
                names = {"method": method, "reference": reference}
                pair = [[of[seed] for seed in seeds] for of in (mine, other)]
                rows.append({"group": group} | names | _accuracy(*pair))
                if not test and len(pair[0][0]) > 1:
                    even = f"{group}, deviation"
                    rows.append({"group": even} | names | _deviation(*pair))
    table = pd.DataFrame(rows, columns=COMPARED[:-1])
    measure = table["group"].str.endswith(", deviation")
    adjusted = table["p"].astype(float).groupby(measure).transform(holm)
    return table.assign(p_holm=adjusted).sort_values("group", kind="stable")


Parts = list[tuple[Outcome, str]]
"""Runs of one method and seed, each with a domain on which it is compared."""


def _by_method(
    kept: Kept, cells: Iterable[dict], test: str
) -> dict[str, dict[int, Parts]]:
    """What is compared by method and seed; ``test`` as in ``Groups``."""
    found: dict[str, dict[int, Parts]] = {}
    for cell, one in kept.rows(cells):
        domains = [cell["test"] if test == EACH else test] if test else one.domains
        parts = found.setdefault(cell["method"], {}).setdefault(cell["seed"], [])
        parts += [(one, name) for name in domains]
    return found


def _accuracy(mine: Sequence[Parts], other: Sequence[Parts]) -> dict[str, float]:
    a, b = ([_credit(parts) for parts in of] for of in (mine, other))
    ahead = [100 * (x.sum() - y.sum()) for (_, x), (_, y) in zip(a, b, strict=True)]
    row = vars(paired(ahead)) | {"images_low": np.nan, "images_high": np.nan}
    images = a[0][0]
    if all(np.array_equal(images, own) for own, _ in [*a, *b]):
        credits = (
            np.stack([len(images) * credit for _, credit in of]) for of in (a, b)
        )
        low, high = over_images(*credits)
        row |= {"images_low": 100 * low, "images_high": 100 * high}
    return row


def _credit(parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """All images of the domains, and what each adds to the mean of their accuracies."""
    rows, credit = [], []
    for found, name in parts:
        mine = found.domain == name
        rows.append(found.rows[mine])
        credit.append(found.correct[mine] / mine.sum() / len(parts))
    return np.concatenate(rows), np.concatenate(credit)


def _deviation(mine: Sequence[Parts], other: Sequence[Parts]) -> dict[str, float]:
    a, b = ([parts[0][0].deviation() for parts in of] for of in (mine, other))
    return vars(paired(100 * (np.array(a) - b)))


# ---- what the papers claim ----------------------------------------------------------
def claims() -> pd.DataFrame:
    """The papers' main claims.

    ``group``, ``ours`` and ``ours_reference`` name the comparison that tests one, and
    are empty where there is none.
    """
    with (files("fedlab_course.leaderboard") / "claims.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False)


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """The papers' main claims, one per row, with the verdict of our comparisons.

    table: of ``comparisons``. Returns the claim; printed, the difference in the paper;
    the columns ``MEASURED`` of our comparison, with p_holm over the claims that have
    one; verdict, as in the function of that name, or "not run fairly yet"; differs,
    from the paper; and command, empty if no study tests the claim.
    """
    known = claims()
    pair = {"ours": "method", "ours_reference": "reference"}
    ours = known[["group", *pair]].rename(columns=pair)
    ours = ours.merge(table, how="left", on=list(ours.columns), validate="m:1")
    ours["p_holm"] = holm(ours["p"])
    known["printed"] = known["value"] - known["reference_value"]
    known["command"] = [
        COMMAND.format(group.partition(":")[0]) if group else ""
        for group in ours["group"]
    ]
    pairs = zip(known["printed"], ours.to_dict("records"), strict=True)
    known["verdict"] = [_worded(printed, row) for printed, row in pairs]
    found = pd.concat([known[[*KEYS, "printed"]], ours[MEASURED]], axis=1)
    return found.join(known[["verdict", "differs", "command"]])


def _worded(printed: float, ours: Mapping[str, float]) -> str:
    if np.isnan(ours["mean"]):
        return "not run fairly yet"
    found = {f.name: ours[f.name] for f in fields(Paired)}
    found = Paired(**found | {"num": int(ours["num"])})  # a float beside NaN
    return verdict(printed, found, ours["p_holm"])


# ---- files --------------------------------------------------------------------------
def _short(number: float) -> str:
    """Four significant digits; a rounding error around zero becomes 0."""
    return f"{round(number, 12) + 0:.4g}"


WRITTEN = {"float_format": _short, "index": False, "lineterminator": "\n"}


def tables(name: str, study: Study, folder: Path) -> None:
    """Write ``runs.csv`` and ``comparisons.csv`` of a study's kept runs.

    Raises FileNotFoundError if there are none.
    """
    kept = Kept(study, folder)
    by_group = groups(name, kept)
    tuned = {test: cells for n, (cells, test) in by_group.items() if "tuned" in n}
    tuned.pop(EACH, None)  # all of them once more
    cells = chain(*(cells for cells, _ in by_group.values()))
    cells = chain(cells, *(study.trials(test, study.tuned) for test in tuned))
    table = runs(kept, cells, chosen=list(chain(*tuned.values())))
    if table.empty:
        raise FileNotFoundError(
            f"expected finished runs in {folder}, found none; to train them, "
            + COMMAND.format(name)
        )
    table.to_csv(folder / "runs.csv", **WRITTEN)
    comparisons(kept, by_group).to_csv(folder / "comparisons.csv", **WRITTEN)


def compared(folders: Iterable[Path]) -> pd.DataFrame:
    """The comparisons that ``tables`` wrote into these folders."""
    files = [file for f in folders if (file := f / "comparisons.csv").exists()]
    found = [table for table in map(pd.read_csv, files) if len(table)]
    return pd.concat(found) if found else pd.DataFrame(columns=COMPARED)
