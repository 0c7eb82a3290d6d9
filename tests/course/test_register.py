"""Rows of the register of experiments run at smoke size on tiny official files."""

import os

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from fedlab_course.printed import SHORT_OF, everything
from fedlab_course.site.experiments import experiments
from tests import official
from tests.register import needed, rehearsals, rehearse

ALL = rehearsals()
CHOSEN = needed(ALL)
MATCHED = {"left_out", "held_out", "λ"}
"""Columns of our tables that are the papers' columns, with a row for each."""


@pytest.fixture(scope="session")
def official_files(tmp_path_factory):
    """The folder with all sets, written once for all workers."""
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    with FileLock(folder / "official.lock"):
        if not (folder / "official" / "femnist").exists():
            official.write_all(folder / "official")
    return folder / "official"


def test_every_command_writes_a_table_and_every_row_that_has_one_is_rehearsed():
    with_command = {(r["paper"], r["item"]) for r in experiments() if r["command"]}
    assert {row for one in CHOSEN for row in one.tables} == with_command
    for row in experiments():
        named = {t for t in row["writes"].split("; ") if t}
        key = row["paper"], row["item"]
        found = {t for one in ALL for t in one.tables.get(key, ())}
        assert named == found
    assert all(tables for one in ALL for tables in one.tables.values())


def printed_for(paper: str, item: str, data: str, name: str) -> pd.DataFrame:
    """The numbers for a data set of a table of a paper, or of its text for ours."""
    found = everything().fillna({"network": "", "imbalance": ""})
    base, _, network = data.removeprefix("paper: ").partition(" on ")
    number = item.removeprefix("Table ") if "Table" in item else "text"
    found = found[(found["paper"] == paper) & (found["table"] == number)]
    found = found[found["data"] == SHORT_OF.get(base, base)]
    if number == "text":
        question = name.removesuffix("_measured").replace("_", " ")
        found = found[found["question"] == question]
    return found[found["network"] == network]


DATA = {"01_fedavg": "femnist", "table4": "mini_prostate", "unseen_site": "prostate"}
DATA["table9"] = "pacs"
"""The papers' data set behind a chapter or a table that names no protocol."""


def data_of(table: str, one) -> str:
    """The protocol behind a table, or the papers' name of the data set."""
    if table.startswith("elsewhere_"):
        entries = [entry[0] for entry in one.params["elsewhere"]]
        plain = {"elsewhere_" + "".join(c if c.isalnum() else "_" for c in e): e
                 for e in entries}  # fmt: skip
        plain = {"_".join(filter(None, n.split("_"))): e for n, e in plain.items()}
        return plain[table]
    if table.startswith("question_"):
        return "mini_prostate"
    if table == "cameras":
        return one.params["camera_protocol"]
    where = DATA.get(table) or DATA.get(one.chapter.stem)
    return where or one.params.get("protocol", "")


def compared(table: pd.DataFrame, printed: pd.DataFrame, one) -> pd.DataFrame:
    """The printed numbers that belong beside the rows of a table of ours."""
    first = "name" if "name" in table else table.columns[0]
    found = printed[printed["name"].isin(table[first])]
    for column in MATCHED & set(table):
        rows = set(zip(table[first], table[column].astype(str), strict=True))
        pairs = zip(found["name"], found["column"], strict=True)
        found = found[np.array([pair in rows for pair in pairs], bool)]
    ratios = table.get("imbalance", one.params.get("imbalance", 10))
    rows = set(
        table.assign(imbalance=ratios)[[first, "imbalance"]].itertuples(False, None)
    )
    pairs = zip(found["name"], found["imbalance"], strict=True)
    here = [not dif or (name, int(dif)) in rows for name, dif in pairs]
    found = found[np.array(here, bool)]
    if one.params.get("question_test") and "where" not in table:
        is_of_two = table.columns[0] != "left_out" and found["question"].isin(ASKED)
        asked = found["column"] == one.params["question_test"]
        found = found[asked | ~is_of_two]
    return found


ASKED = {"components", "mixtures", "clients", "style noise"}


@pytest.mark.slow
@pytest.mark.parametrize("one", CHOSEN, ids=[one.label for one in CHOSEN])
def test_rows_run_on_official_files_beside_the_papers_numbers(
    one, official_files, tmp_path
):
    found = rehearse(one, official_files, tmp_path)
    for (paper, item), tables in one.tables.items():
        for name in tables:
            assert name in found
            printed = printed_for(paper, item, data_of(name, one), name)
            if found[name].exists() and len(printed):
                check(pd.read_csv(found[name]), printed, one)


def check(table: pd.DataFrame, printed: pd.DataFrame, one) -> None:
    """Beside ours stand all numbers of the paper's table, and no others."""
    columns = [c for c in table if c.startswith("paper")]
    beside = {round(v, 2) for v in table[columns].to_numpy(float).ravel() if v == v}
    wanted = compared(table, printed, one)["value"].round(2)
    missing = sorted(set(wanted) - beside)
    assert not missing, f"{missing[:5]} of {list(table)}"
    assert len(wanted) or not beside
