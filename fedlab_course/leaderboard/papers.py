"""The papers' published numbers, and whether our runs confirm their order."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .paired import LEVEL, holm, paired
from .ranking import blocks

if TYPE_CHECKING:
    import pandas as pd


COPIED = ("paper", "table", "dataset", "method", "reference")


def printed() -> pd.DataFrame:
    """The papers' main tables, a row per method.

    value, reference_value: the published averages of a method and of the method it is
               compared with, in per cent.
    protocols: our protocols for the same question, separated by spaces: the papers'
               data set first, then stand-ins.
    """
    import pandas as pd

    with (files(__package__) / "printed.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


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
    import pandas as pd

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
    found["holds"] = np.where(found["p_holm"] < 1 - LEVEL, clear, "unclear")
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
