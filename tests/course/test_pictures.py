"""Every picture that a test draws: readable, nothing cut off, no global state."""

import matplotlib
import pytest

from tests.course.figures import (
    test_groups,
    test_leaks,
    test_scaling,
    test_segmentation,
    test_tour,
)
from tests.course.plots import test_features, test_plots
from tests.course.plots.test_plots import assert_readable

DRAWN_IN = {
    "plots": test_plots,
    "features": test_features,
    "groups": test_groups,
    "leaks": test_leaks,
    "scaling": test_scaling,
    "segmentation": test_segmentation,
    "tour": test_tour,
}
PICTURES = {
    f"{file}: {name}": draw
    for file, module in DRAWN_IN.items()
    for name, draw in module.PICTURES.items()
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_readable_and_nothing_is_cut_off(name):
    before = dict(matplotlib.rcParams)
    figure = PICTURES[name]()
    assert dict(matplotlib.rcParams) == before
    assert_readable(figure)
    assert figure.data is not None or "sheet" in name
