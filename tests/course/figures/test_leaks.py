"""Curves of what leaks: readable, and what they show is what they were given."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import assert_readable, texts

MEASURES = (
    "Own picture found (%)",
    "PSNR (dB)",
    "Look guessed (%)",
    "Class guessed (%)",
)
NOISES = (0.0, 0.05, 0.2, 1.0)


def table(measures=MEASURES, lines=("one picture", "eight pictures"), seeds=3):
    rows = [
        {
            "noise": noise,
            "name": name,
            "measure": measure,
            "mean": 50 - 20 * k - 10 * i,
            "sd": 1.5 if seeds > 1 else np.nan,
            "num_seeds": seeds,
            "chance": np.nan if "dB" in measure else 5.0,
        }
        for measure in measures
        for k, name in enumerate(lines)
        for i, noise in enumerate(NOISES)
    ]
    return pd.DataFrame(rows)


def curves(num: int):
    return figures.leak_curves(table(MEASURES[:num]), "noise", title="Noise hides")


PICTURES = {f"{num} measures": partial(curves, num) for num in (1, 2, 3, 4)}


@pytest.mark.slow
@pytest.mark.parametrize("num", [1, 2, 3, 4])
def test_every_measure_has_a_panel(num):
    figure = curves(num)
    assert len(figure.axes) == num
    assert len(figure.data) == num * 8


@pytest.mark.slow
def test_points_stand_at_equal_distances_with_their_numbers_below():
    figure = figures.leak_curves(table(), "noise")
    for axis, measure in zip(figure.axes, MEASURES, strict=True):
        assert axis.get_title(loc="left") == measure
        lines = [line for line in axis.lines if line.get_label()[0] != "_"]
        assert [line.get_label() for line in lines] == ["one picture", "eight pictures"]
        assert list(lines[0].get_xdata()) == [0, 1, 2, 3]
        assert list(lines[0].get_ydata()) == [50, 40, 30, 20]
        words = [label.get_text() for label in axis.get_xticklabels()]
        assert words == ["0", "0.05", "0.2", "1"]
        guides = [line for line in axis.lines if line.get_linestyle() == ":"]
        wanted = [] if "dB" in measure else [5, 5, 5, 5]
        assert [list(guide.get_ydata()) for guide in guides] == [wanted]
    assert any("3 seeds. Dotted: guessing." in t.get_text() for t in texts(figure))


def test_a_line_that_the_named_panel_lacks_is_named_too():
    few = table(MEASURES[:2])[:12]
    figure = figures.leak_curves(few.replace({"mean": {0: 5000}}), "noise")
    assert_readable(figure)
    labels = figure.axes[1].texts
    assert {"one picture", "eight pictures"} <= {t.get_text() for t in labels}


def test_what_cannot_be_shown_is_refused():
    with pytest.raises(ValueError, match="one row per"):
        figures.leak_curves(pd.concat([table(), table()]), "noise")
    with pytest.raises(ValueError, match="chance"):
        figures.leak_curves(table().drop(columns="chance"), "noise")
