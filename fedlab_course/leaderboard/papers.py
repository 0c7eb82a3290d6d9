"""The papers' published numbers, and whether our runs confirm their order."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..printed import printed as numbers
from .paired import ALPHA, holm, paired
from .ranking import blocks

COPIED = ("paper", "table", "dataset", "method", "reference")


ACCURACY = {"column": "average"}
FAIREST = {"imbalance": "10", "metric": "avg_type"}
TABLES = (
    ("CIFAR-10", "cifar10, 0.3", "main", ACCURACY, "cifar10 digits_skewed"),
    ("FEMNIST", "femnist", "main", ACCURACY, "femnist characters"),
    (
        *("Office-Caltech10", "office_caltech10", "main", ACCURACY),
        "office10 digits5 digit_domains",
    ),
    ("mini-ProstateMRI", "mini_prostate", "main", ACCURACY, "prostate_phantoms"),
    ("PACS", "pacs", "one left out", {"column": "sketch"}, "pacs picture_styles"),
    ("Digit-Five", "digits5_types", "main", FAIREST, "digits5_types digit_types"),
    ("PACS", "pacs_types", "main", FAIREST, "pacs_types"),
)
"""Data set; its name, question and columns in ``fedlab_course.printed``; protocols."""


def printed() -> pd.DataFrame:
    """The papers' main tables, a row per method.

    value, reference_value: the published averages of a method and of the method it is
               compared with, in per cent: FedAvg, or FPL where a table has no FedAvg.
    protocols: our protocols for the same question, separated by spaces: the papers'
               data set first, then stand-ins.
    """
    rows = []
    for dataset, data, question, kept, protocols in TABLES:
        found = numbers(f"paper: {data}", question, **kept)
        found = found[found["paper"] != "report"]
        if (found["paper"] == "FedFA+").all():  # FedFA is in another of its tables
            more = numbers(f"paper: {data}", "components", **kept)
            found = pd.concat([found, more[more["name"] == "FedFA"]])
        value = found.set_index("name")
        reference = "FedAvg" if "FedAvg" in value.index else "FPL"
        row = {"dataset": dataset, "reference": reference, "protocols": protocols}
        row |= {"reference_value": value.loc[reference, "value"]}
        for method, line in value.drop(reference).iterrows():
            about = line[["paper", "table", "value"]].to_dict()
            rows.append(row | about | {"method": method})
    return pd.DataFrame(rows)


def orders(runs: pd.DataFrame) -> pd.DataFrame:
    """Method minus reference in points, in the paper and in our runs.

    runs: a row per run, as in ``Board``.
    Returns a row per published number, on the first of its protocols that has both
    methods here: paper, table, dataset, protocol, method, reference, printed, ours, sd
    (over blocks; NaN for one), num_blocks, wins (blocks in which the method is ahead),
    p_holm, and holds: "yes" or "no" if our difference is clear, otherwise "unclear".
    Clear means a paired t-test at 5 %, corrected for all rows (Holm); fewer than three
    blocks are never clear.
    """
    table, rows = 100 * blocks(runs), []
    for line in printed().to_dict("records"):
        row = {name: line[name] for name in COPIED}
        for name in line["protocols"].split():
            ahead = _ahead(table, name, line["method"], line["reference"])
            if len(ahead):
                row |= {"protocol": name}
                row["printed"] = line["value"] - line["reference_value"]
                rows.append(row | _compared(ahead))
                break
    columns = ["paper", "table", "dataset", "protocol", "method", "reference"]
    columns += ["printed", "ours", "sd", "num_blocks", "wins", "p_holm", "holds"]
    found = pd.DataFrame(rows, columns=columns)
    found["p_holm"] = holm(found["p_holm"])
    agrees = np.sign(found["ours"]) == np.sign(found["printed"])
    clear = np.where(agrees, "yes", "no")
    found["holds"] = np.where(found["p_holm"] < ALPHA, clear, "unclear")
    return found


def _ahead(table: pd.DataFrame, name: str, method: str, reference: str) -> np.ndarray:
    """Method minus reference in every block of a protocol that has both."""
    is_there = {method, reference} <= set(table.columns)
    if not is_there or name not in table.index.get_level_values("protocol"):
        return np.empty(0)
    mine = table.xs(name, level="protocol")
    return (mine[method] - mine[reference]).dropna().to_numpy()


def _compared(ahead: np.ndarray) -> dict[str, object]:
    found = paired(ahead)
    row = {"ours": found.mean, "sd": found.sd, "num_blocks": found.num}
    return row | {"wins": int((ahead > 0).sum()), "p_holm": found.p}
