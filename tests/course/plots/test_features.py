"""Figures of chapter 04: readable, and what they show is what they were given."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from fedlab_course import figures
from tests.course.plots.test_plots import texts

CLIENTS = ("mnist", "mnistm", "usps", "svhn", "synthetic digits")
SETTINGS = ("FedAvg", "FedFA", "FedFA+", "FedFA, a setting with a long name")


def statistics(channels=("channel 3", "channel 5", "channel 7")) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = [
        {"mean": m, "deviation": s, "client": client, "channel": channel, "digit": k}
        for channel in channels
        for client in CLIENTS
        for k, (m, s) in enumerate(rng.normal(size=(9, 2)))
    ]
    return pd.DataFrame(rows)


def drawn(channels=("channel 3",), **how):
    names = {"x": "mean", "y": "deviation", "by": "client", "panels": "channel"}
    return figures.scatter_panels(statistics(channels), **names, **how)


def bins(count=8):
    places = np.linspace(-0.1, 1.1, 50)
    shares = np.full(count, 1 / count)
    numbers = np.arange(1, count + 1)
    table = pd.DataFrame({"bin": numbers, "soft": shares, "hard": shares})
    memberships = np.full((count, 50), 1 / count)
    return figures.bins_picture(places, memberships, table, title="Soft bins")


def outcomes(names=SETTINGS, seeds=3) -> pd.DataFrame:
    means = np.linspace(0.8, 0.83, len(names))
    sd = 0.02 if seeds > 1 else np.nan
    return pd.DataFrame({"name": names, "mean": means, "sd": sd, "num_seeds": seeds})


PICTURES = {
    "statistics": lambda: drawn(("a", "b", "c"), title="Who the client is"),
    "digits": lambda: drawn(text="digit"),
    "a cloud": lambda: drawn(cloud=statistics().query("client == 'usps'")),
    "bins": bins,
    "many bins": lambda: bins(64),
    "two bins": lambda: bins(2),
    "settings": lambda: figures.accuracy_by_setting(outcomes(), title="Parts"),
    "two settings": lambda: figures.accuracy_by_setting(outcomes(SETTINGS[:2], 1)),
    "fifteen": lambda: figures.accuracy_by_setting(outcomes([*"abcdefghijklmno"])),
}


def test_every_point_stands_in_its_panel_in_the_colour_of_its_client():
    table = statistics(("one", "two"))
    figure = drawn(("one", "two"))
    for axis, channel in zip(figure.axes, ("one", "two"), strict=True):
        assert axis.get_title(loc="left") == channel
        part = table[table["channel"] == channel]
        for dots, client in zip(axis.collections, CLIENTS, strict=True):
            wanted = part.loc[part["client"] == client, ["mean", "deviation"]]
            assert np.allclose(dots.get_offsets(), wanted)
        colours = {tuple(dots.get_facecolor()[0]) for dots in axis.collections}
        assert len(colours) == len(CLIENTS)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == list(CLIENTS)


def test_letters_stand_where_the_points_are():
    (axis,) = drawn(text="digit").axes
    letters = [text for text in axis.texts if text.get_text().isdigit()]
    table = statistics(("channel 3",))
    assert [int(text.get_text()) for text in letters] == table["digit"].tolist()
    places = [Text.get_position(text) for text in letters]
    assert np.allclose(places, table[["mean", "deviation"]])


def test_the_picture_of_bins_shows_the_shares():
    left, right = bins(6).axes
    heights = [bar.get_height() for bar in right.patches]
    assert heights == pytest.approx([100 / 6] * 12)  # hard and soft
    lines = [line for line in left.lines if len(line.get_xdata()) == 50]
    assert len(lines) == 6


def test_settings_show_mean_spread_and_yardstick():
    figure = figures.accuracy_by_setting(outcomes(), yardsticks=("FedAvg", "FedFA"))
    (axis,) = figure.axes
    dots = [bars.lines[0].get_xdata()[0] for bars in axis.containers]
    assert dots == pytest.approx([80, 81, 82, 83])
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == list(SETTINGS)
    guides = [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":"]
    assert guides == pytest.approx([80, 81])
    words = [text.get_text() for text in texts(figure)]
    assert "82.0 ± 2.0" in words
    assert any("3 seeds" in text for text in words)


def test_what_has_one_seed_is_said():
    mixed = pd.concat([outcomes(SETTINGS[:2]), outcomes(SETTINGS[2:], 1)])
    note = figures.accuracy_by_setting(mixed).get_supxlabel()
    assert "without a bar is one seed" in note
    alone = figures.accuracy_by_setting(outcomes(seeds=1)).get_supxlabel()
    assert alone.startswith("One seed")


def test_what_cannot_be_shown_is_refused():
    twice = pd.concat([outcomes(), outcomes()])
    with pytest.raises(ValueError, match="one row per"):
        figures.accuracy_by_setting(twice)


def test_small_differences_do_not_fill_the_axis():
    (axis,) = figures.accuracy_by_setting(outcomes(SETTINGS[:2], 1)).axes
    low, high = axis.get_xlim()
    assert high - low >= 6
