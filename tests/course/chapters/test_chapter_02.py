"""Chapter 02: data sets that it refuses, and tables that agree with their figures."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest

from fedlab_support.data.builtin import BUILT_IN
from tests.paths import ROOT

CHAPTER = "02_client_selection"
FIGURES = ROOT / "figures" / CHAPTER


def cells_of(chapter: str) -> list:
    return nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4).cells


def text_of(chapter: str) -> str:
    """All text of a chapter."""
    return "\n".join(c.source for c in cells_of(chapter) if c.cell_type == "markdown")


def started(chapter: str, dataset: str) -> dict:
    """A chapter's names after its first two code cells, with another data set."""
    cells = cells_of(chapter)
    parameters, setup = [cell for cell in cells if cell.cell_type == "code"][:2]
    names = {}
    exec(parameters.source, names)
    names["dataset"] = dataset
    exec(setup.source, names)
    return names


@pytest.mark.parametrize("dataset", BUILT_IN)
def test_every_built_in_set_works_or_is_refused_in_the_first_cell(dataset):
    if dataset == "characters":
        assert started(CHAPTER, dataset)["chapter"].parameters["dataset"] == dataset
        return
    with pytest.raises(ValueError, match=r"must be out of \['characters', 'femnist'\]"):
        started(CHAPTER, dataset)


def end_of(curves: pd.DataFrame, by: list[str], evaluations: int) -> pd.Series:
    """The mean of the last evaluations of every line of a figure, as shares."""
    newest = curves.sort_values("round").groupby(by).tail(evaluations)
    return newest.groupby(by)["mean"].mean() / 100


@pytest.mark.parametrize(
    ("folder", "evaluations"),
    [(FIGURES, 2), (FIGURES / "real", 5)],
    ids=["laptop", "real"],
)
@pytest.mark.parametrize(
    ("figure", "table", "by"),
    [
        ("learning_curves", "accuracy_by_strategy", ["partition", "name"]),
        ("wrong_labels", "wrong_labels_end", ["setting", "labels"]),
        ("asking", "asking_and_its_price", ["partition", "setting"]),
    ],
)
def test_tables_agree_with_the_ends_of_the_figures_above_them(
    folder: Path, evaluations: int, figure: str, table: str, by: list[str]
):
    ends = pd.read_csv(folder / f"{table}.csv")
    if "what" in ends:
        ends = ends[ends["what"] == "all rounds"]
        ends = ends.assign(setting=ends["d"].map("d = {}".format))
    shown = end_of(pd.read_csv(folder / f"{figure}.csv"), by, evaluations)
    written = ends.set_index(by)["mean"]
    pd.testing.assert_series_equal(
        written.sort_index(), shown.sort_index(), check_names=False, atol=1e-9
    )


def test_the_text_of_the_chapter_has_the_numbers_of_its_tables():
    text = text_of(CHAPTER)
    for folder in (FIGURES, FIGURES / "real"):
        for table in ("accuracy_by_strategy", "wrong_labels_end"):
            for row in pd.read_csv(folder / f"{table}.csv").itertuples():
                assert f"{100 * row.mean:.1f} ± {100 * row.sd:.1f}" in text
