"""Pictures of the leaderboard: a row per method, and quarters of equal sign."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from fedlab_course.figures import (
    grid_heatmap,
    rank_picture,
    tuning_picture,
    verdicts_picture,
)
from fedlab_course.plots import COLOURS
from fedlab_course.plots.style import png

RANKS = pd.DataFrame(
    {
        "method": ["FedFA", "FPL", "FedAvg"],
        "beats": [0.9, 0.5, 0.1],
        "low": [0.7, 0.2, 0.0],
        "high": [1.0, 0.8, 0.3],
        "num_protocols": [2, 3, 3],
    }
)


def test_ranks_stand_in_per_cent_from_the_first_to_the_last():
    ranks = RANKS.assign(num_protocols=3)
    figure = rank_picture(ranks, title="Who beats whom")
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [*RANKS["method"]]
    assert axis.yaxis_inverted()
    dots = [line for line in axis.get_lines() if line.get_marker() == "o"]
    assert [line.get_xdata()[0] for line in dots] == pytest.approx([90, 50, 10])
    assert [to_hex(line.get_color()) for line in dots] == [
        COLOURS[role].lower() for role in ("ours", "quiet", "baseline")
    ]
    texts = [text.get_text() for text in axis.texts]
    assert texts == ["90   on 3", "50   on 3", "10   on 3"]
    assert figure.data is ranks
    assert png(figure)


def test_methods_that_miss_data_sets_have_a_panel_of_their_own():
    few = RANKS.assign(low=[np.nan, 0.2, 0.0], high=[np.nan, 0.8, 0.3])
    whole, partial = rank_picture(few).axes
    names = [
        [label.get_text() for label in axis.get_yticklabels()]
        for axis in (whole, partial)
    ]
    assert names == [["FPL", "FedAvg"], ["FedFA"]]
    assert [text.get_text() for text in partial.texts] == ["90   on 2"]
    assert partial.get_title(loc="left") == "Methods that miss data sets"
    bars = [
        line.get_xdata() for line in partial.get_lines() if len(line.get_xdata()) > 1
    ]
    assert np.isnan(bars[-1]).all(), "no interval is drawn"


def test_no_ranks_give_an_empty_picture_and_a_method_stands_once():
    assert png(rank_picture(RANKS[:0], title="There is none"))
    with pytest.raises(ValueError, match="one row per"):
        rank_picture(pd.concat([RANKS, RANKS]))


TUNING = pd.DataFrame(
    {
        "method": ["FedFA", "FPL", "AFL", "FedFA", "FPL"],
        "rates": ["default", "default", "default", "tuned", "tuned"],
        "mean": [-40.0, 1.0, 2.0, 0.5, 3.0],
        "low": [-41.0, 0.0, 1.0, -0.5, np.nan],
        "high": [-39.0, 2.0, 3.0, 1.5, np.nan],
    }
)


def test_tuned_methods_stand_by_their_lead_with_the_default_beside_it():
    figure = tuning_picture(TUNING, title="Before and after")
    (axis,) = figure.axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["FPL", "FedFA"] and axis.yaxis_inverted()
    dots = [line for line in axis.get_lines() if line.get_marker() == "o"]
    is_hollow = [line.get_markerfacecolor() == "white" for line in dots]
    places = [(line.get_xdata()[0], line.get_ydata()[0]) for line in dots]
    assert is_hollow == [False, True] * 2
    assert places == [(3, 0), (1, 0), (0.5, 1), (-40, 1)]
    bars = [line.get_xdata() for line in axis.get_lines() if len(line.get_xdata()) > 1]
    assert list(bars[-1]) == [-0.5, 1.5] and np.isnan(bars[1]).all()
    low, high = axis.get_xlim()
    assert low < -41 and high > 3 and figure.data is TUNING
    assert png(figure)


def test_a_lead_that_tuning_leaves_as_it_is_stands_once():
    same = TUNING.assign(mean=[0.5, 3.0, 2.0, 0.5, 3.0])
    assert len(tuning_picture(same).axes[0].get_lines()) == 1 + 2 * 2


def test_nothing_tuned_gives_an_empty_picture_and_a_pair_stands_once():
    assert not tuning_picture(TUNING[:0]).axes[0].get_yticklabels()
    with pytest.raises(ValueError, match="one row per method and rates"):
        tuning_picture(pd.concat([TUNING, TUNING]))


CLAIMS = pd.DataFrame(
    {
        "paper": ["FISC", "FISC", "FedGCR", "FedGCR"],
        "claim": ["FISC ahead", "the contrast helps", "FedGCR ahead", "FedGC ahead"],
        "data": ["PACS, sketch", "PACS, photo", "digits", "PACS"],
        "printed": [6.0, 7.0, 22.0, 5.0],
        "mean": [-10.0, 1.0, np.nan, 2.0],
        "low": [-18.0, -5.0, np.nan, -1.0],
        "high": [-2.0, 2.5, np.nan, 5.5],
        "verdict": [
            "refuted",
            "not this size",
            "not run fairly yet",
            "undecided (would need 11 seeds)",
        ],
    }
)


def test_claims_stand_by_paper_with_the_printed_difference_and_the_verdict():
    figure = verdicts_picture(CLAIMS, title="Claims")
    fisc, fedgcr = figure.axes
    assert (fisc.get_title("left"), fedgcr.get_title("left")) == ("FISC", "FedGCR")
    named = [[label.get_text() for label in a.get_yticklabels()] for a in figure.axes]
    assert named[0] == ["FISC ahead\nPACS, sketch", "the contrast helps\nPACS, photo"]
    assert named[1] == ["FedGC ahead\nPACS"]
    words = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert words == [["refuted", "not this size"], ["undecided"]]
    (_, bar, dot, diamond) = fedgcr.get_lines()
    assert list(bar.get_xdata()) == [-1, 5.5] and dot.get_xdata()[0] == 2
    assert diamond.get_xdata()[0] == 5 and diamond.get_marker() == "D"
    assert to_hex(dot.get_color()) == COLOURS["quiet"].lower()
    assert fisc.get_xlim() == fedgcr.get_xlim() and png(figure)


def test_untested_claims_give_an_empty_picture():
    (axis,) = verdicts_picture(CLAIMS[2:3]).axes
    assert not axis.get_yticklabels() and not axis.texts
    with pytest.raises(ValueError, match="one row per paper, claim and data"):
        verdicts_picture(pd.concat([CLAIMS, CLAIMS]))


def test_one_far_cell_does_not_bleach_a_map_and_numbers_need_room():
    cells = [(f"m{i}", f"data set {j}") for i in range(6) for j in range(5)]
    table = pd.DataFrame(cells, columns=["method", "data"])
    table = table.assign(mean=0.01, sd=0.001, num_seeds=3)
    table.loc[7, "mean"] = -0.4
    table.loc[8, "mean"] = -0.0001
    image, bar = grid_heatmap(table, "data", "method").axes
    assert image.collections[0].norm(1.0) == pytest.approx(1)
    assert bar._colorbar.extend == "min"
    found = {text.get_text() for text in image.texts}
    assert found == {"1.0\n± 0.1", "\N{MINUS SIGN}40.0\n± 0.1", "0.0\n± 0.1"}
    low = grid_heatmap(table, "data", "method", size=(4.6, 2.0))
    found = {text.get_text() for text in low.axes[0].texts}
    assert found == {"1.0", "\N{MINUS SIGN}40.0", "0.0"}
    assert low.get_supxlabel() == "Mean, 3 seeds."
    narrow = grid_heatmap(table, "data", "method", size=(2, 4))
    assert not narrow.axes[0].texts and narrow.get_supxlabel() == "Mean, 3 seeds."


def test_a_map_without_rows_is_empty():
    table = pd.DataFrame(columns=["method", "data", "mean", "sd", "num_seeds"])
    look = {"orders": {"method": [], "data": ["a", "b"]}}
    figure = grid_heatmap(table.astype({"mean": float}), "data", "method", **look)
    assert not figure.axes[0].texts


def test_a_map_keeps_a_given_order_and_greys_gaps():
    table = pd.DataFrame(
        {
            "method": ["FPL", "FedBN", "FPL"],
            "data": ["z", "z", "a"],
            "mean": [0.01, 0.02, -0.03],
            "sd": [0.001, np.nan, 0.002],
            "num_seeds": [3, 1, 3],
        }
    )
    look = {"orders": {"data": ["z", "a"]}}
    look["orders"]["method"] = ["FedBN", "FPL"]
    axis = grid_heatmap(table, "data", "method", **look).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["z", "a"]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["FedBN", "FPL"]
    found = {text.get_position(): text.get_text() for text in axis.texts}
    minus = "\N{MINUS SIGN}"
    assert found == {
        (0.5, 1.5): "1.0\n± 0.1",
        (0.5, 0.5): "2.0",
        (1.5, 1.5): f"{minus}3.0\n± 0.2",
        (1.5, 0.5): "–",
    }
    assert np.ma.masked_invalid(axis.collections[0].get_array()).mask.sum() == 1
    assert to_hex(axis.get_facecolor()) == COLOURS["pale"].lower()
