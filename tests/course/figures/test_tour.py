"""Figures of the tour: the map is that of the classes, and columns hold one class."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

import fedlab_support as fl
from fedlab_course import figures
from fedlab_course.figures import hooks
from fedlab_course.plots import Picture
from fedlab_support.methods import HOOKS, catalogue
from tests.course.plots.test_plots import images


# ---- the map ------------------------------------------------------------------------
def test_the_words_of_the_map_are_those_of_the_hooks_that_classes_override():
    table = hooks.hook_table().set_index("method")
    assert {name[3:] for name in table.index} == catalogue().keys()
    assert list(table.index) == list(hooks.WORDS)
    for name, row in table.iterrows():
        changed = {column.split(": ")[1] for column in row.index[row != ""]}
        assert set(hooks.WORDS[name]) == changed, name


def test_every_hook_has_a_column():
    columns = [column for phase in hooks.COLUMNS.values() for column in phase]
    shown = [h for c in columns for h in hooks.HOOKS_OF.get(c, (c,))]
    assert sorted(shown) == sorted(HOOKS)


def test_a_new_method_stands_last_with_ticks(monkeypatch):
    @dataclass(frozen=True)
    class Mine(fl.FedAvg):
        def predict(self, model, x):
            return -model(x)

    monkeypatch.setattr(
        fl.methods, "catalogue", lambda: {"A": Mine, "FedAvg": fl.FedAvg}
    )
    table = hooks.hook_table().set_index("method")
    assert table.index.tolist() == ["01 FedAvg", "·· A"]
    assert (table.loc["01 FedAvg"] == "").all()
    ticks = table.loc["·· A"]
    assert ticks["after: evaluation"] == "✓" and (ticks == "").sum() == 10
    assert "✓" in figures.method_map(table.reset_index()).data.iloc[1].tolist()


# ---- pictures -----------------------------------------------------------------------
def luck(clients: int = 100) -> pd.DataFrame:
    mean = np.sort(np.random.default_rng(0).uniform(0.3, 1, clients))
    return pd.DataFrame({"writer": range(clients), "mean": mean, "luck": mean * 0.9})


def seen(rounds: int = 12) -> Picture:
    t = np.arange(1, 61)
    table = pd.DataFrame({"round": t, "seen": t / 60, "expected": 1 - 0.9**t})
    times = np.arange(100) % 5
    return figures.clients_seen(table, times, rounds, title="Some were never drawn")


PICTURES = {
    "one round, with a sheet": lambda: figures.one_round(
        images(20).reshape(4, 5, 6, 6), [3, 14, 15, 92], title="Weights travel"
    ),
    "luck": lambda: figures.accuracy_and_luck(luck(), title="Writer by writer"),
    "seen": seen,
    "seen after one round": lambda: seen(1),
}


def test_the_line_of_luck_crosses_the_bars_from_left_to_right():
    table = luck(4).sample(frac=1, random_state=0).sort_values("mean")
    line = figures.accuracy_and_luck(table[::-1]).axes[0].get_lines()[0]
    assert line.get_xdata().tolist() == [0, 1, 2, 3]


def test_a_column_of_the_sheet_holds_one_class_and_a_row_one_writer():
    data, writers = fl.load("characters"), [3, 7, 11]
    shown = figures.writers_sheet(data, writers, 12).drawn_by
    sheet, titles = shown.given["images"], shown.options["titles"]
    assert len(sheet) == 3 * len(titles) and 5 < len(titles) <= 12
    for place, image in enumerate(sheet):
        at = (data.images == image).all(axis=(1, 2, 3))
        assert writers[place // len(titles)] in data.owner[at]
        names = {data.class_names[label] for label in data.labels[at]}
        assert titles[place % len(titles)] in names


def test_writers_without_a_common_class_are_refused():
    data = fl.load("characters")
    digit, letter = data.labels < 10, data.labels >= 10
    rows = np.flatnonzero((digit & (data.owner == 3)) | (letter & (data.owner == 7)))
    few = data.select(rows)
    with pytest.raises(ValueError, match="class in common"):
        figures.writers_sheet(few, [3, 7], 12)
