"""A table of end values is the end of the curves in the figure beside it."""

import json

import numpy as np
import pandas as pd
import pytest

from tests.paths import ROOT

PAIRS = [  # chapter, table, figure, number of last evaluations, columns in common
    ("01_fedavg", "accuracy_by_epochs", "learning_curves", ["partition", "epochs"]),
    ("01_fedavg", "grid", "grid_curves", ["partition", "epochs"]),
    ("01_fedavg", "methods_end", "methods", ["name", "epochs"]),
    (
        "01_fedavg/real",
        "accuracy_by_epochs",
        "learning_curves",
        ["partition", "epochs"],
    ),
    ("01_fedavg/real", "grid", "grid_curves", ["partition", "epochs"]),
]


@pytest.mark.parametrize(("folder", "table", "figure", "by"), PAIRS)
def test_a_table_holds_the_mean_of_the_last_rounds_of_its_figure(
    folder, table, figure, by
):
    home = ROOT / "figures" / folder
    ends = pd.read_csv(home / f"{table}.csv")
    curves = pd.read_csv(home / f"{figure}.csv")
    record = json.loads((home / "figures.json").read_text(encoding="utf-8"))[figure]
    last = record["parameters"]["last_rounds"]
    curves["epochs"] = curves["setting"].str.removeprefix("E = ").astype(int)
    newest = curves.sort_values("round").groupby(by).tail(last)
    drawn = newest.groupby(by)["mean"].mean()
    if "clients" in ends:  # the figure shows the fewest
        ends = ends[ends["clients"] == ends["clients"].min()]
    shown = ends.set_index(by)["mean"].reindex(drawn.index)
    assert len(drawn) >= 2 and shown.notna().all()
    np.testing.assert_allclose(100 * shown, drawn, atol=1e-6)
