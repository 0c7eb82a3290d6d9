"""Figures of chapter 04b: outlines where the masks end, and readable numbers."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import texts


def slices(count=6, side=32):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, side, side), dtype=np.uint8)
    masks = np.zeros((count, side, side), np.uint8)
    masks[1:, 8:20, 10:24] = 1  # the first has no organ
    return images, masks


def sheet(**changes):
    images, masks = slices()
    look = {"columns": 3, "titles": ["a", "b", "c"], "row_labels": ["one", "two"]}
    look |= {"title": "Outlines"}
    return figures.outline_sheet(images, masks, masks[::-1], **look | changes)


def brightness(num_sites=6):
    images, masks = slices(2 * num_sites)
    names = [f"site_{n}" for n in range(num_sites)]
    domain = np.repeat(np.arange(num_sites), 2)
    return figures.brightness_by_site(images, masks, domain, names, title="Sites")


def threshold(level=0.5):
    images, masks = slices()
    probability = np.clip(masks[1] * 0.9 + 0.05, 0, 1)
    return figures.threshold_picture(images[1, 1], masks[1], probability, level, "Cut")


def amounts(methods=("FedAvg", "FedFA+"), seeds=3):
    rows = [(n, s, 0.7 + 0.01 * n, 0.02, seeds) for n in (5, 11, 22) for s in methods]
    columns = ["slices", "name", "mean", "sd", "num_seeds"]
    return pd.DataFrame(rows, columns=columns)


PICTURES = {
    "sheet": sheet,
    "sheet, true only": lambda: figures.outline_sheet(*slices(), columns=6, title="T"),
    "brightness": brightness,
    "four sites": lambda: brightness(4),
    "threshold": threshold,
    "amounts": lambda: figures.score_by_amount(amounts(), title="Amounts"),
    "one seed": lambda: figures.score_by_amount(amounts(seeds=1)),
}


def test_outlines_lie_where_the_masks_end():
    images, masks = slices(1, 32)
    masks[0, 8:20, 10:24] = 1
    axis = figures.outline_sheet(images, masks, columns=1).axes[0]
    left, right, bottom, top = axis.get_images()[0].get_extent()
    (line,) = axis.collections
    box = line.get_paths()[0].get_extents()
    pixel = (right - left) / 32
    expected = [left + 10 * pixel, left + 24 * pixel, top + 8 * pixel, top + 20 * pixel]
    found = [box.x0, box.x1, box.y0, box.y1]
    assert np.allclose(found, expected, atol=pixel / 50)
    assert bottom > top


def test_an_empty_mask_has_no_outline_and_a_full_one_has():
    images, masks = slices(2)
    masks[1] = 1
    axis = figures.outline_sheet(images, masks, columns=2).axes[0]
    assert len(axis.collections) == 1


def test_an_amount_stands_once():
    with pytest.raises(ValueError, match="one row per"):
        figures.score_by_amount(pd.concat([amounts(), amounts()]))


def test_shares_of_each_site_and_part_sum_to_one():
    table = brightness().data
    sums = table.groupby(["site", "part"])["share"].sum()
    assert len(sums) == 12
    assert np.allclose(sums, 1)


def test_the_threshold_picture_says_the_dice_of_its_cut():
    assert any("Dice 100.0 % at 0.5" in t.get_text() for t in texts(threshold()))
    covered = threshold(0.0)  # everything is above 0: 2 * 168 / (168 + 1024)
    assert any("Dice 28.2 %" in t.get_text() for t in texts(covered))
    curve = covered.data.set_index("threshold")["dice"]
    assert curve[1.0] == 0
    assert curve[0.5] == 1
