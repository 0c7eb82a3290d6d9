"""The triplet microscope of chapter 05."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import assert_readable, texts

NEAR, FAR = [0.1, 0.2, 0.5, 1.7], [0.3, 0.6, 0.9, 1.8]  # margin 0.3: A and D are active


def triplets(*networks: str) -> pd.DataFrame:
    one = pd.DataFrame({"triplet": range(4), "near": NEAR, "far": FAR})
    return pd.concat([one.assign(network=name) for name in networks])


def sheet(num: int, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (num, 3, channels, 6, 4), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_titles_count_what_lies_on_the_active_side(channels):
    table, images = triplets("before", "after"), sheet(2, channels)
    figure = figures.triplet_microscope(table, images, [3, 0], 0.3, title="Triplets")
    assert_readable(figure)
    left, _, rows = figure.axes
    assert left.get_title(loc="left") == "before\n50 % active"
    rings = [ring.get_offsets()[0].tolist() for ring in left.collections[-2:]]
    assert rings == [[1.7, 1.8], [0.1, 0.3]], "the chosen ones, in order"
    assert left.get_ylim()[1] > 1.8, "all dots are within the axes"
    pixels = rows.images[0].get_array()
    assert pixels.shape == (2 * 6, 3 * 4, 3)
    assert (pixels[6:, 4:8, 0] == images[1, 1, 0]).all(), "row B, the copy"


def test_a_margin_moves_the_line():
    for margin, active in ((0.0, 0), (0.3, 50), (0.5, 100)):
        figure = figures.triplet_microscope(triplets("net"), sheet(1), [0], margin)
        assert f"net\n{active} % active" in {t.get_text() for t in texts(figure)}
