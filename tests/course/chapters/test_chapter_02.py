"""Chapter 02: tables that agree with their figures, and with the text."""

from pathlib import Path

import nbformat
import pandas as pd
import pytest

from tests.paths import ROOT

CHAPTER = "02_client_selection"
FIGURES = ROOT / "figures" / CHAPTER


def text_of(chapter: str) -> str:
    """All text of a chapter."""
    cells = nbformat.read(ROOT / "notebooks" / f"{chapter}.ipynb", as_version=4).cells
    return "\n".join(c.source for c in cells if c.cell_type == "markdown")


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
