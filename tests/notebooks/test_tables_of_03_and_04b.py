"""Chapters 03 and 04b: tables agree with the figures beside them."""

import pandas as pd
import pytest

from tests.paths import ROOT

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
    folder = ROOT / "figures" / "04b_fedfa_segmentation"
    dots = pd.read_csv(folder / "by_site.csv").pivot(
        index="name", columns="site", values="mean"
    )
    table = pd.read_csv(folder / "table4.csv").set_index("name").loc[dots.index]
    for site in dots:
        assert (table[f"{site}, mean"] - 100 * dots[site]).abs().max() < 0.06
    assert (table["mean, mean"] - 100 * dots.mean(axis=1)).abs().max() < 0.06
