"""The numbers that the papers print, under this course's names."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pandas as pd

SHORT_OF = {
    "office10": "office_caltech10",
    "cifar10": "cifar10, 0.3",
    "picture_styles": "pacs",
}
"""Protocols smaller than a paper's, and the data set whose numbers they get."""

PART_OF = ("digits5_types",)
"""Protocols on a part of the paper's data only, beside which no number belongs."""


def beside(
    ours: pd.DataFrame, numbers: pd.DataFrame, columns: str = "column"
) -> pd.DataFrame:
    """A table with a row per setting, by name, and the papers' numbers beside it.

    numbers: from ``printed``; each value of their column ``columns`` gets a column,
             such as "paper: average". The table stays as it is if there are none.
    """
    theirs = numbers.pivot(index="name", columns=columns, values="value")
    return ours.join(theirs[numbers[columns].unique()].add_prefix("paper: "))


def matched(
    ours: pd.DataFrame, numbers: pd.DataFrame, *same: str, **named: str
) -> pd.DataFrame:
    """A table with several rows per setting, and the papers' numbers as "paper".

    same, named: columns that tell rows apart; ``named`` if those of the numbers have
                 other names, as in ``held_out="column"``.
    The table stays as it is if there are no numbers.
    """
    if numbers.empty:
        return ours
    columns = {name: name for name in same} | named
    theirs = numbers[[*columns.values(), "value"]].set_axis([*columns, "paper"], axis=1)
    return ours.merge(theirs.drop_duplicates(list(columns)), how="left")


@cache
def everything() -> pd.DataFrame:
    """Every number of the papers' tables.

    paper, table:  where it is printed; "text" is the running text.
    data, network: the data set; the network, if it is not the paper's usual one.
    question:      what the table compares, by its name in the chapter's settings, or
                   main, pairs, one left out, unseen, cameras, seconds.
    name:          of the setting.
    column:        a domain, which is the held-out one where one is; or average.
    split, imbalance, metric: as in our tables; imbalance is FedGCR's DIF.
    value, sd:     as printed, in per cent.
    doubtful:      "yes" for a number that is probably a misprint.
    """
    texts = ("network", "imbalance", "doubtful")
    with (files(__package__) / "printed.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=dict.fromkeys(texts, str))


def printed(protocol: str, question: str = "main", **kept: object) -> pd.DataFrame:
    """The printed numbers for a protocol, such as "paper: domainnet10 on resnet50".

    kept: values that other columns must have, such as ``split="held_out"``.
    Returns rows of ``everything``; none where the papers have no number.
    """
    if protocol in PART_OF:
        return everything().iloc[:0]
    data, _, network = protocol.removeprefix("paper: ").partition(" on ")
    wanted = {"data": SHORT_OF.get(data, data), "network": network}
    found = everything().fillna({"network": "", "imbalance": ""})
    for column, value in (wanted | {"question": question} | kept).items():
        found = found[found[column].astype(str) == str(value)]
    return found
