"""What the papers print, and whether the order holds here."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import numpy as np

from .ranking import blocks

if TYPE_CHECKING:
    import pandas as pd


COPIED = ("paper", "table", "dataset", "method", "reference")


def printed() -> pd.DataFrame:
    """The papers' main tables, a row per method.

    ``value`` and ``reference_value``: the printed averages of a method and of what it
    is compared with, in per cent. ``protocols``: those of ours that ask the same, the
    papers' data set first, then stand-ins, separated by spaces.
    """
    import pandas as pd

    with (files(__package__) / "printed.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)


def orders(runs: pd.DataFrame) -> pd.DataFrame:
    """Method minus reference, in points: in the paper, and here with its spread.

    runs: a row per run, as in :class:`Board`. Returns a row per printed number and
    protocol of ours that has both methods: paper, table, dataset, protocol, method,
    reference, printed, ours, sd (over blocks; NaN for one), num_blocks, wins (blocks
    in which the method is ahead), and ``holds``: "yes" or "no" where the 95 % interval
    of ours (Student's t) leaves out zero, else "unclear", as from fewer than three
    blocks.
    """
    import pandas as pd

    table, rows = 100 * blocks(runs), []
    for line in printed().to_dict("records"):
        told = {name: line[name] for name in COPIED}
        for name in line["protocols"].split():
            ahead = _ahead(table, name, line["method"], line["reference"])
            if len(ahead):
                told |= {"protocol": name}
                told["printed"] = line["value"] - line["reference_value"]
                rows.append(told | _compared(ahead, told["printed"]))
    columns = ["paper", "table", "dataset", "protocol", "method", "reference"]
    columns += ["printed", "ours", "sd", "num_blocks", "wins", "holds"]
    return pd.DataFrame(rows, columns=columns)


def _ahead(table: pd.DataFrame, name: str, method: str, reference: str) -> np.ndarray:
    """Method minus reference in every block of a protocol that has both."""
    is_there = {method, reference} <= set(table.columns)
    if not is_there or name not in table.index.get_level_values("protocol"):
        return np.empty(0)
    mine = table.xs(name, level="protocol")
    return (mine[method] - mine[reference]).dropna().to_numpy()


def _compared(ahead: np.ndarray, printed: float) -> dict[str, object]:
    from scipy.stats import t

    ours, num = ahead.mean(), len(ahead)
    sd = ahead.std(ddof=1) if num > 1 else np.nan
    is_clear = num >= 3 and abs(ours) > t.ppf(0.975, num - 1) * sd / np.sqrt(num)
    agrees = "yes" if np.sign(ours) == np.sign(printed) else "no"
    found = {"ours": ours, "sd": sd, "num_blocks": num, "wins": int((ahead > 0).sum())}
    return found | {"holds": agrees if is_clear else "unclear"}
