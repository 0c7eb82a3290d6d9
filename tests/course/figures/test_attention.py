"""The attention of chapter 06, drawn over images."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import assert_readable, texts

GRID = (2, 3)  # patches of an image of 8x12 pixels


def attention(names=("scanned", "street"), networks=("before", "after")):
    rows = [
        {"image": name, "network": network, "patch": patch}
        for network in networks
        for name in names
        for patch in range(6)
    ]
    table = pd.DataFrame(rows)
    table["attention"] = np.arange(len(table)) / 100
    return table.assign(prompts=np.where(table["network"] == "after", 0.25, 0.04))


def images(num: int = 2, channels: int = 3) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (num, channels, 8, 12), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_lie_where_they_are_in_the_image(channels):
    given, shuffled = images(2, channels), attention().sample(frac=1, random_state=0)
    order = shuffled["image"].unique().tolist()
    figure = figures.attention_picture(shuffled, given, title="Attention")
    assert_readable(figure)
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == order
    networks = shuffled["network"].unique().tolist()
    after = figure.axes[1 + networks.index("after")].images
    grey, patches = after[order.index("street")], after[2 + order.index("street")]
    values = np.arange(18, 24).reshape(GRID)  # per cent
    np.testing.assert_allclose(patches.get_array(), values)
    assert patches.get_extent() == pytest.approx(grey.get_extent())
    assert patches.get_clim() == (0, 23), "all patches share one scale"


def test_the_share_of_the_prompts_is_written_below():
    shown = [
        t.get_text() for t in texts(figures.attention_picture(attention(), images()))
    ]
    assert shown.count("prompts 4 %") == shown.count("prompts 25 %") == 2


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="prompts"):
        figures.attention_picture(attention().drop(columns="prompts"), images())
