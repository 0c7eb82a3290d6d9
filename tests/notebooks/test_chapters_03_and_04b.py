"""Chapters 03 and 04b: the data they accept, and tables that agree with figures."""

import nbformat
import pandas as pd
import pytest
from matplotlib_inline import backend_inline

from fedlab_course.runner import NOTEBOOKS
from fedlab_support.data.builtin import BUILT_IN
from tests.paths import ROOT

SEGMENTATION = "04b_fedfa_segmentation"
WORKS = {"03_fedsr_feddg": "characters", SEGMENTATION: "prostate_phantoms"}


def first_cells(chapter, **changed):
    """Run a chapter's parameters, with some changed, and its set-up."""
    cells = nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code[0].metadata.tags == ["parameters"]
    variables = {}
    exec(code[0].source, variables)
    variables.update(changed)
    exec(code[1].source, variables)
    return variables


@pytest.mark.parametrize("chapter", WORKS)
@pytest.mark.parametrize("dataset", sorted(BUILT_IN))
def test_every_built_in_set_works_or_is_refused_in_the_first_cell(
    chapter, dataset, monkeypatch
):
    monkeypatch.setattr(backend_inline, "set_matplotlib_formats", lambda *_: None)
    if dataset == WORKS[chapter]:
        assert first_cells(chapter, dataset=dataset)["dataset"] == dataset
        return
    with pytest.raises(ValueError, match=f"dataset must be.*{WORKS[chapter]}") as said:
        first_cells(chapter, dataset=dataset)
    assert dataset in str(said.value) and "\n" not in str(said.value)


FOLDER = ROOT / "figures" / "03_fedsr_feddg"


@pytest.mark.parametrize(
    ("figure", "table"),
    [
        (FOLDER / "unseen_domains.csv", FOLDER / "summary.csv"),
        (FOLDER / "unseen_styles.csv", FOLDER / "style_summary.csv"),
        (FOLDER / "real" / "unseen_domains.csv", FOLDER / "real" / "summary.csv"),
    ],
    ids=["rotated", "styles", "real"],
)
def test_the_summary_is_the_mean_of_the_figures_dots(figure, table):
    dots = pd.read_csv(figure).groupby("name")["mean"].mean() * 100
    summary = pd.read_csv(table).set_index("name")
    column = next(name for name in summary if name.startswith("held out"))
    assert set(dots.index) == set(summary.index)
    assert (summary[column] - dots).abs().max() < 0.06  # it may be rounded


def test_the_table_of_sites_is_the_figure_of_sites():
    folder = ROOT / "figures" / SEGMENTATION
    dots = pd.read_csv(folder / "by_site.csv").pivot(
        index="name", columns="site", values="mean"
    )
    table = pd.read_csv(folder / "table4.csv").set_index("name").loc[dots.index]
    for site in dots:
        assert (table[f"{site}, mean"] - 100 * dots[site]).abs().max() < 0.06
    assert (table["mean, mean"] - 100 * dots.mean(axis=1)).abs().max() < 0.06
