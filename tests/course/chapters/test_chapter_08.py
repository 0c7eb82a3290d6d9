"""Chapter 08: tables that agree with their figures, and with the text."""

import pandas as pd

from tests.course.chapters.test_chapter_02 import end_of, text_of
from tests.paths import ROOT

CHAPTER = "08_scaling_out"
FIGURES = ROOT / "figures" / CHAPTER
LAST = 2  # evaluations that the laptop's numbers average


def test_the_table_of_faults_agrees_with_the_ends_of_its_figure():
    written = pd.read_csv(FIGURES / "faults_end.csv").set_index("kind")["mean"]
    shown = end_of(pd.read_csv(FIGURES / "faults.csv"), ["kind"], LAST)
    pd.testing.assert_series_equal(
        written.sort_index(), shown.sort_index(), check_names=False, atol=1e-9
    )


def test_the_text_of_the_chapter_has_the_numbers_of_its_tables():
    text = text_of(CHAPTER)
    for table in ("faults_end", "privacy_price"):
        for row in pd.read_csv(FIGURES / f"{table}.csv").itertuples():
            assert f"{100 * row.mean:.1f} ± {100 * row.sd:.1f}" in text
    grown = pd.read_csv(FIGURES / "goals.csv").set_index("what")["value"]
    names = ("seconds per round", "memory")
    time, memory = (grown[f"{name}, 100,000 over 100 clients"] - 1 for name in names)
    assert (
        f"time grows by {time:.0%} and memory by {memory:.0%}".replace("%", " %")
        in text
    )
