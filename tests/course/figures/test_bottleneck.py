"""Figures of chapter 03: FedSR's network, and its bound above the information."""

import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import assert_readable, texts


def bounds():
    return pd.DataFrame({"tau": [0.5, 1.0, 1.5, 3.0], "bound": [2.0, 1.1, 1.0, 1.4]})


def test_the_network_names_its_sizes():
    figure = figures.fedsr_network("3 × 28 × 28", 128, 64, 10, title="FedSR")
    assert_readable(figure)
    shown = " ".join(text.get_text() for text in texts(figure))
    assert "3 × 28 × 28" in shown and "10 logits" in shown and "10 × 64 each" in shown


def test_the_bound_is_marked_where_it_is_tightest():
    figure = figures.bound_picture(bounds(), 0.9, title="A bound")
    assert_readable(figure)
    assert "tightest at τ = 1.5" in [text.get_text() for text in texts(figure)]
    assert figure.data.equals(bounds())
    table = pd.concat([bounds()[2:], bounds()[:3]]).assign(other=1)  # an index twice
    assert figures.bound_picture(table, 0.9).axes[0].lines[2].get_xdata() == [1.5]


def test_a_bound_without_numbers_is_refused():
    with pytest.raises(ValueError, match="information must be a finite number"):
        figures.bound_picture(bounds(), float("nan"))
