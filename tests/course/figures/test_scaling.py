"""Figures of chapter 08: readable at every size, and what they say is in the table."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import texts

ENGINES = ("local, 1 worker", "local, 2 workers", "stacked")


def timed(seconds, **columns) -> dict:
    times = {"seconds": seconds, "quartile_1": 0.9 * seconds, "quartile_3": seconds}
    return times | columns


def engines(jobs=("linear, 50 clients", "small_cnn, 10 clients")) -> pd.DataFrame:
    rows = [
        timed(0.001 * 7**place, job=job, engine=engine)
        for job in jobs
        for place, engine in enumerate(ENGINES)
    ]
    return pd.DataFrame(rows)


def costs(sizes=(5, 10, 20, 40, 80), crowds=(100, 1000, 10_000)) -> pd.DataFrame:
    rows = [
        timed(0.001 * size, what="Clients that take part", size=size, engine=engine)
        for size in sizes
        for engine in ENGINES[::2]
    ]
    rows += [
        timed(0.01, what="Clients that exist", size=size, engine=engine)
        for size in crowds
        for engine in ENGINES[::2]
    ]
    return pd.DataFrame(rows)


def budget(low=0.01, high=500.0) -> pd.DataFrame:
    ends = {"server": (high / 10, high), "models": (low, low * 20)}
    return pd.DataFrame(
        [
            {"observer": name, "rounds": rounds, "epsilon": epsilon}
            for name, epsilons in ends.items()
            for rounds, epsilon in zip((1, 100), epsilons, strict=True)
        ]
    )


def price(noises=(0.0, 0.1, 0.3, 1.0, 3.0), seeds=3) -> pd.DataFrame:
    table = pd.DataFrame({"noise": noises, "mean": 0.7, "sd": 0.02, "num_seeds": seeds})
    with np.errstate(divide="ignore"):
        table["server"] = 20 / table["noise"] ** 2
    return table.assign(models=table["server"] / 100)


PICTURES = {
    "engines": lambda: figures.seconds_by_engine(engines(), title="Engines"),
    "one job": lambda: figures.seconds_by_engine(engines(["a job"])),
    "costs": lambda: figures.cost_curves(costs(), title="Costs"),
    "few sizes": lambda: figures.cost_curves(costs((5, 10), (100, 200))),
    "budget": lambda: figures.budget_picture(budget(), title="Spent", budget=1.0),
    "narrow budget": lambda: figures.budget_picture(budget(3, 7)),
    "price": lambda: figures.price_of_privacy(price(), title="Price"),
    "price, one seed": lambda: figures.price_of_privacy(price((0.0, 1.0), 1)),
}


def test_bars_start_at_zero_and_print_their_seconds():
    figure = figures.seconds_by_engine(engines())
    assert [axis.get_xlim()[0] for axis in figure.axes] == [0, 0]
    assert all(bar.get_x() == 0 for axis in figure.axes for bar in axis.patches)
    said = [text.get_text() for text in texts(figure)]
    assert said.count("0.049") == 2
    assert all(engine in said for engine in ENGINES)


def test_an_engine_without_a_job_leaves_a_gap():
    figure = figures.seconds_by_engine(engines().drop(index=5))
    assert len(figure.axes[1].texts) == 2
    assert "nan" not in [text.get_text() for text in texts(figure)]


def test_costs_name_sizes_and_engines_in_plain_numbers():
    figure = figures.cost_curves(costs())
    figure.draw_without_rendering()
    said = [text.get_text() for text in texts(figure)]
    ticks = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert {"80", "10,000", "stacked", "Seconds per round"} <= set(said)
    assert "0.05" in ticks
    assert not any("10^" in text for text in said)


def test_an_engine_without_points_in_the_last_panel_has_a_name():
    last = costs()["what"].iloc[-1]
    table = costs()[lambda t: (t["what"] != last) | (t["engine"] != "stacked")]
    assert "stacked" in [
        t.get_text() for t in figures.cost_curves(table).axes[-1].texts
    ]


def test_infinite_epsilons_are_left_out_and_said_so():
    figure = figures.price_of_privacy(price())
    lines = figure.axes[1].get_lines()
    assert [len(line.get_xdata()) for line in lines] == [4, 4]
    notes = [text.get_text() for text in texts(figure)]
    assert any("Without noise epsilon is infinite" in note for note in notes)
    assert any("3 seeds" in note for note in notes)
    lost = figures.budget_picture(budget().assign(epsilon=np.inf))
    *lines, level = lost.axes[0].get_lines()
    assert lines and all(len(line.get_xdata()) == 0 for line in lines)
    assert level.get_ydata() == [1, 1]


@pytest.mark.parametrize(
    ("draw", "table", "words"),
    [
        (figures.seconds_by_engine, engines(), r"column is missing \(seconds\)"),
        (figures.cost_curves, costs(), r"column is missing \(seconds\)"),
        (figures.budget_picture, budget(), "found no 'observer'"),
        (figures.price_of_privacy, price(), "found no 'noise'"),
    ],
)
def test_repeated_rows_and_missing_columns_are_refused(draw, table, words):
    with pytest.raises(ValueError, match="one row per"):
        draw(pd.concat([table, table]))
    with pytest.raises(ValueError, match=words):
        draw(table.iloc[:, 1:])
