"""Figures of chapter 05: the loss over a plane of weights."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import assert_readable, texts

TICKS = np.linspace(-1, 1, 5)


def planes(*names: str) -> pd.DataFrame:
    rows = [
        {"network": name, "x": x, "y": y, "loss": x**2 + 2 * y**2 + k}
        for k, name in enumerate(names)
        for x in TICKS
        for y in TICKS
    ]
    return pd.DataFrame(rows)


def marks(*names: str, what: str = "client") -> pd.DataFrame:
    rows = [
        {"network": name, "x": x, "y": -x, "what": kind}
        for name in names
        for x, kind in ((-0.5, what), (0.4, what), (0.0, "mean"))
    ]
    return pd.DataFrame(rows)


@pytest.mark.slow
def test_each_network_has_its_plane_and_its_marks():
    names = ("FedAvg", "FISC")
    figure = figures.loss_planes(planes(*names), marks(*names), title="Valleys")
    assert_readable(figure)
    shown = {text.get_text() for text in texts(figure)}
    assert {"FedAvg", "FISC", "client", "mean", "Loss"} <= shown
    stood = [len(c.get_offsets()) for c in figure.axes[0].collections[-2:]]
    assert stood == [2, 1]
    assert figure.data is not None and len(figure.data) == 50


def test_a_flat_loss_can_be_drawn():
    table = planes("FedAvg").assign(loss=1.0)
    assert_readable(figures.loss_planes(table, marks("FedAvg")))


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="loss"):
        figures.loss_planes(planes("FedAvg").drop(columns="loss"), marks("FedAvg"))
