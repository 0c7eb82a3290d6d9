"""Chapter 04: refused protocols, tables that agree with figures, one picture."""

from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from fedlab_support.data.builtin import BUILT_IN
from tests.paths import ROOT

CHAPTER = "04_fedfa"
FIGURES = ROOT / "figures" / CHAPTER


def started(protocol: str) -> dict:
    """The chapter's names after its first cells, under another protocol."""
    cells = nbformat.read(ROOT / "notebooks" / f"{CHAPTER}.ipynb", as_version=4).cells
    parameters, imports, setup = [c for c in cells if c.cell_type == "code"][:3]
    names = {}
    exec(parameters.source, names)
    names["protocol"] = protocol
    exec(imports.source, names)
    exec(setup.source, names)
    return names


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_set_works_or_is_refused_in_the_first_cell(name):
    if name == "digit_domains":
        assert started(name)["chapter"].parameters["protocol"] == name
        return
    with pytest.raises(ValueError, match=r"must be among \['digit_domains', "):
        started(name)


@pytest.mark.parametrize("folder", [FIGURES, FIGURES / "real"], ids=["laptop", "real"])
def test_tables_agree_with_the_figures_beside_them(folder: Path):
    table = pd.read_csv(folder / "main_by_domain.csv").set_index("name")
    bars = pd.read_csv(folder / "main.csv").rename(columns=str.lower)
    drawn = bars.pivot(index="name", columns="domain", values="mean")
    for name, row in drawn.iterrows():
        expected = 100 * row if row.max() <= 1 else row
        assert np.allclose(expected, table.loc[name, expected.index], atol=0.05)
    assert len(drawn) == 5
    domains = table.drop(columns=["average", "± s.d."])
    assert np.allclose(domains.mean(axis=1), table["average"], atol=1e-6)


@pytest.mark.parametrize("folder", [FIGURES, FIGURES / "real"], ids=["laptop", "real"])
def test_leads_are_differences_of_the_averages(folder: Path):
    average = pd.read_csv(folder / "main_by_domain.csv").set_index("name")["average"]
    lead = pd.read_csv(folder / "ahead_of_fedavg.csv").set_index("name")["mean"]
    assert np.allclose(lead, average[lead.index] - average["FedAvg"], atol=1e-6)


def test_the_picture_of_three_methods_has_three_panels():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (3, 3, 8, 8), dtype=np.uint8)
    columns = ["mean", "deviation", "moved_mean", "moved_deviation"]
    table = pd.DataFrame(rng.random((3, 4)), columns=columns).assign(client=list("abc"))
    drawn = figures.where_methods_act(table, images, images, rng.random((3, 5)))
    assert len(drawn.axes) == 3
