"""Chapter 05b: which data sets it takes, and that its tables agree with its figures."""

import nbformat
import pandas as pd
import pytest

from fedlab_course.printed import printed
from fedlab_course.runner import NOTEBOOKS
from fedlab_support.data.builtin import BUILT_IN
from tests.paths import ROOT

NOTEBOOK = NOTEBOOKS / "05b_style_attack.ipynb"
FIGURES = ROOT / "figures" / "05b_style_attack"
WORLDS = {"picture_styles": "digit_domains", "digit_domains": "picture_styles"}
"""The built-in sets that work, and an other world for each."""


def set_up(**changed: object) -> None:
    """Run the cells of parameters and of set-up with other values."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    parameters, imports = [c.source for c in cells if c.cell_type == "code"][:2]
    space = {}
    exec(parameters, space)
    exec(imports, space | changed)


@pytest.mark.parametrize("dataset", BUILT_IN)
def test_built_in_data_works_or_is_refused_with_what_works(dataset):
    if dataset in WORLDS:
        set_up(dataset=dataset, other_world=WORLDS[dataset])
        with pytest.raises(ValueError, match=r"other_world must be among \['"):
            set_up(dataset=dataset, other_world=dataset)
    else:
        with pytest.raises(ValueError, match=r"among \['picture_styles', 'digit_d"):
            set_up(dataset=dataset)


def test_the_table_of_sets_agrees_with_its_figure():
    drawn = pd.read_csv(FIGURES / "sets.csv").set_index(["name", "domain"])["mean"]
    table = pd.read_csv(FIGURES / "table9.csv", index_col="images")
    for (name, domain), mean in drawn.items():
        assert table.loc[name, f"Fréchet, {domain}"] == pytest.approx(mean)
    assert (table.filter(like="class score").stack().dropna() >= 1).all()


def test_the_papers_attackers_have_a_row_of_their_own():
    table = pd.read_csv(FIGURES / "table9.csv", index_col="images")
    rows = set(printed("pacs", "inversion")["name"]) - {"GAN on real images"}
    assert rows == {"true images", "other world", "other world, perceptual"}
    assert rows <= set(table.index)


def test_a_group_of_one_is_found_about_as_often_as_a_single_image():
    """The first point of the figure of groups is a sample of the table's images."""
    single = pd.read_csv(FIGURES / "single.csv", index_col="attacker")["found (%)"]
    groups = pd.read_csv(FIGURES / "groups.csv").set_index("name")
    groups = groups[groups["images behind the style"] == 1]
    for name, mean in groups["mean"].items():
        assert mean == pytest.approx(float(single[name].split()[0]), abs=4)


@pytest.mark.parametrize("name", ["single", "cost"])
def test_the_texts_tables_have_the_numbers_of_the_committed_run(name):
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    text = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    lines = text.replace("−", "-").replace("+", "").split("\n")
    written = [{part.strip() for part in line.split("|")} for line in lines]
    table = pd.read_csv(FIGURES / f"{name}.csv", index_col=0)
    for row, numbers in table.drop(
        "control: the mean style", errors="ignore"
    ).iterrows():
        numbers = {number.removesuffix(" ± –") for number in numbers}
        if row == 0.0:  # the difference of no noise from itself
            numbers.remove("0.0 ± 0.0")
        assert any(numbers <= parts for parts in written), (row, numbers)
