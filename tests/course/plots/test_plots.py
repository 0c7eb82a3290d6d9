"""Figures: readable, nothing cut off, no global state, files that reruns reproduce."""

import json
from itertools import combinations, product

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.text import Text
from PIL import Image

from fedlab_course import figures, plots
from fedlab_course.figures.participation import draw_participation
from fedlab_course.measures import rehearse_falling
from fedlab_course.plots.curves import spread
from fedlab_course.plots.style import looks_for, style
from fedlab_course.plots.wire import PARTS, size_text
from fedlab_course.quadratics import QuadraticClients
from fedlab_course.redraw import redraw
from fedlab_support.core.history import History, concat, last, summarise
from fedlab_support.federation.selection import power_of_choice

METHODS = ("FedAvg", "FedProx", "FedAvgM", "FedSAM", "FedGCR")


def history(method: str = "FedAvg", seed: int = 0, **settings) -> pd.DataFrame:
    """Make almost equal curves, so that labels have reason to collide."""
    record = History(f"{method}-{seed}-{settings}", method, seed)
    for round in range(0, 31, 10):
        value = round / 50 + 0.002 * len(method) + 0.001 * seed
        record.add(round, "test", "accuracy", value)
        record.add(round, "test", "accuracy", value, domain="art")
        record.add(round, "test", "accuracy", value / 2, domain="photo")
    return record.table().assign(**settings)


def swept() -> pd.DataFrame:
    return concat(
        history(seed=seed, local_epochs=epochs, clients_per_round=clients)
        for epochs in (1, 5, 10)
        for clients in (5, 10)
        for seed in range(3)
    )


def grid() -> pd.DataFrame:
    table = swept()
    chosen = last(table[table["domain"] == ""])
    return summarise(chosen, by=["local_epochs", "clients_per_round"])


def traffic(num_clients: int = 4) -> pd.DataFrame:
    record = History("r", "FedAvg", 0)
    for client in range(num_clients):
        where, up = (2, client * 7), {"weights": 103_456, "upload": 500}
        record.add_wire(*where, "down", weights=103_456, shared=9_000)
        record.add_wire(*where, "up", **up, unheard_of=40_000, num_examples=8)
    return record.wire()


def asking() -> pd.DataFrame:
    """The wire of power of choice: three are asked, one of them trains."""
    record = History("r", "FedAvg", 0)
    for client in (3, 8, 9):
        record.add_wire(1, client, "down", loss_query=400_000)
        record.add_wire(1, client, "up", loss_query=4)
    record.add_wire(1, 8, "up", num_examples=8, weights=400_000)
    return record.wire()


def shares(names=("uniform", "by size"), num_clients=87, seeds=(0, 1, 2)):
    """Made-up participation; in every run the last three clients are never chosen."""
    rows = []
    for seed in seeds:
        generator = np.random.default_rng(seed)
        for name in names:
            times = np.zeros(num_clients, dtype=int)
            times[: num_clients - 3] = generator.integers(1, 20, num_clients - 3)
            share = {"client": range(num_clients), "share": times / 40}
            rows.append(pd.DataFrame({"name": name, "seed": seed} | share))
    return pd.concat(rows, ignore_index=True)


def two_groups(num_often: int = 8) -> pd.DataFrame:
    table = shares()
    table["there"] = np.where(table["client"] < num_often, "rarely", "often")
    return table


def each_client(names=METHODS, num_clients=87) -> pd.DataFrame:
    """Accuracies whose best clients all reach 100 %: ends of lines coincide."""
    values = np.random.default_rng(0).random((len(names), num_clients))
    values[:, 1] = 1.0
    rows = [
        {"name": name, "client": client, "mean": values[place, client], "num_seeds": 3}
        for place, name in enumerate(names)
        for client in range(num_clients)
    ]
    return pd.DataFrame(rows)


def unseen(domains=("mnist", "usps", "street numbers of houses"), names=METHODS):
    generator = np.random.default_rng(0)
    cells = [{"held_out": d, "name": n} for n in names for d in domains]
    table = pd.DataFrame(cells).assign(num_seeds=3)
    table["mean"], table["sd"] = generator.uniform(0.01, 0.9, (2, len(table)))
    return table


def restyled(*shape: int, half_width: int = 2, mixing: float = 0.7):
    """Two random pictures, and the first with low amplitudes of both."""
    own, foreign = np.random.default_rng(0).random((2, *shape))
    waves = [np.fft.fft2(picture, axes=(0, 1)) for picture in (own, foreign)]
    size = [np.abs(wave) for wave in waves]
    frequencies = (np.abs(np.fft.fftfreq(n) * n) <= half_width for n in shape[:2])
    window = np.logical_and.outer(*frequencies)
    size[0][window] = ((1 - mixing) * size[0] + mixing * size[1])[window]
    mixed = size[0] * np.exp(1j * np.angle(waves[0]))
    mixed = np.fft.ifft2(mixed, axes=(0, 1)).real
    return tuple(np.round(255 * a, 2) / 255 for a in (own, foreign, mixed))


def hooks() -> pd.DataFrame:
    rows = {
        "FedAvg": ["", "", "", ""],
        "FedGCR, a rather long name": ["prompts on a frozen ViT", "✓", "its", "✎"],
        "FPL": ["", "client representation", "✓", ""],
    }
    names = [
        "once: adapt",
        "once: client_setup, server_setup",
        "after: evaluation",
        "on the server: aggregate",
    ]
    table = pd.DataFrame.from_dict(rows, orient="index", columns=names)
    return table.rename_axis("method").reset_index()


def counts(num_clients: int, num_classes: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    share = generator.dirichlet([0.3] * num_clients, num_classes)
    return np.round(share * 100).astype(int).T


def images(number: int, channels: int = 1) -> np.ndarray:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (number, channels, 6, 6), dtype=np.uint8)


def paths() -> list[np.ndarray]:
    steps = np.linspace(0, 1, 5)[:, None] ** 0.7
    return [steps * end for end in np.array([[3, 1.5], [2, -2], [3, 1.2], [1, 2.5]])]


def many() -> pd.DataFrame:
    return concat(history(method, seed) for method in METHODS for seed in range(3))


def partition(num_clients: int, num_classes: int) -> plots.Picture:
    names = [f"class {i}" for i in range(num_classes)]
    return plots.clients_by_classes(counts(num_clients, num_classes), names, "Skewed")


def drift() -> plots.Picture:
    average = np.mean([path[-1] for path in paths()], axis=0)
    best = np.array([1.6, 0.3])
    return figures.drift_picture(paths(), np.zeros(2), average, best, title="Apart")


def falling(round: int = 3) -> plots.Picture:
    losses, worst = np.linspace(3, 1, 8), power_of_choice(2, 4)
    table = rehearse_falling(worst, [5] * 8, losses[::-1], falls=0.5, rounds=3)
    return figures.falling_losses(table, round, title="Losses fall")


def rounds(moments: list[int]) -> plots.Picture:
    clients = QuadraticClients.dirichlet(0.1)
    table = clients.fedavg(0.5, steps=20, rounds=6)
    return figures.rounds_picture(clients, table, moments, title="Beside the optimum")


PICTURES = {
    "curves": lambda: plots.learning_curves(many(), ours="FedGCR", title="All " * 40),
    "curves, narrow": lambda: plots.learning_curves(
        history(), title="One seed", size=plots.SINGLE
    ),
    "curves by domain": lambda: plots.learning_curves(history(), by="domain"),
    "curves in panels": lambda: plots.learning_curves(
        swept(), by="local_epochs", panels="clients_per_round", title="Panels"
    ),
    "grid": lambda: figures.grid_heatmap(grid(), "local_epochs", "clients_per_round"),
    "few clients": lambda: partition(10, 10),
    "many clients": lambda: partition(100, 62),
    "sheet": lambda: plots.contact_sheet(
        images(6), 3, list("abc"), ["client 0", "client 17"], title="Two writers"
    ),
    "sheet of pairs": lambda: plots.contact_sheet(
        images(5, 3), 2, ["a very long title indeed"] * 2, width=3.35
    ),
    "three clients": lambda: plots.wire_picture(traffic(3), title="Up and down"),
    "ten clients": lambda: plots.wire_picture(traffic(10)),
    "a question": lambda: plots.wire_picture(asking()),
    "participation": lambda: figures.participation_picture(
        shares(["uniform", "by size, but with quite a long name", *"cdef"]), title="Six"
    ),
    "participation, small": lambda: draw_participation(
        figures.participation_picture(shares(["uniform"])).data,
        *("name", None, "One", plots.SINGLE),
    ),
    "participation in groups": lambda: figures.participation_picture(
        two_groups(), group="there", title="Groups"
    ),
    "clients in order": lambda: figures.accuracy_by_client(
        each_client(), title="Served"
    ),
    "domains": lambda: plots.accuracy_by_domain(
        unseen([f"rotated by {angle}°" for angle in range(0, 90, 15)]), title="Six"
    ),
    "domains, long names": lambda: plots.accuracy_by_domain(
        unseen(names=[f"{name} with a suffix" for name in METHODS])
    ),
    "restyled": lambda: figures.restyle_picture(*restyled(28, 28), 2, title="Borrowed"),
    "restyled, in colour": lambda: figures.restyle_picture(*restyled(32, 32, 3), 2),
    "densities": lambda: figures.gaussian_picture(0.8, 0.4, 0.0, 1.0, title="Apart"),
    "densities, far out": lambda: figures.gaussian_picture(-9.0, 3.0, 4.0, 0.05),
    "drift": drift,
    "drift over rounds": lambda: rounds([10]),
    "drift over rounds, a strip": lambda: rounds([2, 5, 18]),
    "losses that follow": falling,
    "map": lambda: figures.method_map(hooks(), title="Differences"),
}


def texts(figure) -> list[Text]:
    found = figure.findobj(Text)
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def assert_readable(figure) -> None:
    """Texts are large enough and no formulas; everything lies inside the picture."""
    assert isinstance(figure, plots.Picture)
    with style():  # that of texts which drawing makes
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox()
    assert min(text.get_fontsize() for text in texts(figure)) >= 8
    assert not any(text.get_parse_math() for text in texts(figure))
    width, height = figure.get_size_inches()
    assert drawn.x0 >= -0.01
    assert drawn.y0 >= -0.01
    assert drawn.x1 <= width + 0.01
    assert drawn.y1 <= height + 0.01


def test_labels_of_almost_equal_lines_do_not_touch():
    figure = plots.learning_curves(many(), ours="FedGCR")
    figure.draw_without_rendering()
    labels = [text for text in texts(figure) if text.get_text() in METHODS]
    assert len(labels) == 5
    boxes = [Text.get_window_extent(label) for label in labels]
    assert all(
        not one.overlaps(other)
        for place, one in enumerate(boxes)
        for other in boxes[:place]
    )


def test_places_are_moved_apart_in_order_and_stay_inside():
    moved = spread([0.5, 0.51, 0.1, 0.99, 1.0], gap=0.1)
    assert moved == pytest.approx([0.455, 0.555, 0.1, 0.9, 1.0])
    assert list(spread([0.3, 0.8], gap=0.1)) == [0.3, 0.8]
    assert list(spread([], gap=0.1)) == []


def test_curves_show_the_mean_over_seeds_in_per_cent():
    figure = plots.learning_curves(many(), ours="FedGCR")
    end = figure.data[figure.data["round"] == 30].set_index("method").loc["FedAvg"]
    assert end["mean"] == pytest.approx(61.3)
    assert end["num_seeds"] == 3
    notes = [text.get_text() for text in texts(figure)]
    assert "Line: mean, band: ± s.d., 3 seeds." in notes
    assert "Accuracy (%)" in notes
    lone = [text.get_text() for text in texts(plots.learning_curves(history()))]
    assert "One seed: no spread is known." in lone


def test_a_run_that_diverges_is_drawn_and_named_where_it_leaves_off():
    table = concat([history(), history("FedProx"), history("FedSAM")])
    is_late = table["round"] > 10
    table.loc[is_late & (table["method"] == "FedProx"), "value"] = np.nan
    table.loc[is_late & (table["method"] == "FedSAM"), "value"] = np.inf
    figure = plots.learning_curves(table)
    assert_readable(figure)
    names = {t.get_text(): t.xy[0] for t in figure.axes[0].texts if t.get_text()}
    assert names == {"FedAvg": 30, "FedProx": 10, "FedSAM": 10}
    assert figure.get_supxlabel() == "One seed: no spread is known."
    nothing = plots.learning_curves(history().assign(value=np.nan))
    assert "FedAvg" not in [text.get_text() for text in texts(nothing)]


def test_a_line_of_a_single_panel_has_a_name():
    table = concat([history(data="a"), history("FedProx", data="a"), history(data="b")])
    figure = plots.learning_curves(table, panels="data")
    assert_readable(figure)
    colours = {text.get_text(): text.get_color() for text in figure.axes[1].texts}
    assert colours["FedProx"] == figure.axes[0].get_lines()[2].get_color()
    assert colours["FedAvg"] == "#000000"


def test_a_level_is_a_dashed_line_with_a_name_in_every_panel():
    table = concat([history(data="a"), history(data="b")])
    figure = plots.learning_curves(table, panels="data", levels={"all data": 0.9})
    assert_readable(figure)
    for axis in figure.axes:
        (level,) = (x for x in axis.get_lines() if x.get_label() == "all data")
        assert level.get_ydata() == pytest.approx([90, 90])
    assert "all data" in [text.get_text() for text in figure.axes[1].texts]


def test_runs_without_a_value_of_a_setting_are_not_left_out():
    table = concat([history(clip=None), history(clip=1.0)])
    assert len(plots.learning_curves(table, panels="clip").axes) == 2
    with pytest.raises(ValueError, match=r"found .*try column\.map\(str\)"):
        plots.learning_curves(table, by="clip")
    named = table.assign(clip=table["clip"].map(str))
    assert len(plots.learning_curves(named, by="clip").data["clip"].unique()) == 2


def test_curves_refuse_what_they_cannot_show():
    with pytest.raises(ValueError, match="metrics \\['accuracy'\\]"):
        plots.learning_curves(history(), metric="dice")
    six = concat([many(), history("SixthMethod")])
    with pytest.raises(ValueError, match="at most five lines"):
        plots.learning_curves(six)


def colours_of(names, **roles):
    return {name: look["color"] for name, look in looks_for(names, **roles).items()}


def test_colours_follow_roles():
    colours = colours_of(["FedProx", "FedAvg", "FedSR"], ours="FedSR")
    assert colours["FedAvg"] == "#000000"
    assert colours["FedSR"] == "#0072B2"
    assert colours["FedProx"] == "#D55E00"
    assert colours_of([1, 5])[1] == "#0072B2"
    assert len(set(colours_of("abcde").values())) == 5
    assert len(set(colours_of("abcdef", are_points=True).values())) == 6


def test_a_grid_prints_its_numbers_and_refuses_repeated_cells():
    table = grid()
    figure = figures.grid_heatmap(table, "local_epochs", "clients_per_round")
    cells = [text.get_text() for text in figure.axes[0].texts]
    assert len(cells) == 6
    assert cells[0] == "61.3\n± 0.1"
    with pytest.raises(ValueError, match="one row per"):
        figures.grid_heatmap(
            concat([table, table]), "local_epochs", "clients_per_round"
        )


def test_seaborn_draws_into_the_figure_and_leaves_no_state_behind():
    import matplotlib.pyplot  # which seaborn imports, too

    before = dict(matplotlib.rcParams)
    figure = figures.grid_heatmap(grid(), "local_epochs", "clients_per_round")
    assert isinstance(figure, plots.Picture) and len(figure.axes) == 2
    assert matplotlib.pyplot.get_fignums() == []
    assert dict(matplotlib.rcParams) == before


def test_wrong_shapes_are_refused_with_the_cure():
    with pytest.raises(ValueError, match="class_names must be 10"):
        plots.clients_by_classes(counts(3, 10), ["a", "b"])
    with pytest.raises(ValueError, match="not normalised"):
        plots.contact_sheet(images(4).astype(float), 2)
    with pytest.raises(ValueError, match="row_labels must be 2"):
        plots.contact_sheet(images(4), 2, row_labels=["a"])
    with pytest.raises(ValueError, match="titles"):
        plots.contact_sheet(images(4), 2, titles=["a", "b", "c"])


def test_a_moment_of_drift_shows_the_steps_so_far_and_no_later_ones():
    def walked(moment):
        lines = rounds([moment]).axes[0].get_lines()
        blue = [x for x in lines if x.get_marker() == "." and len(x.get_xdata())]
        server = next(x for x in lines if x.get_marker() == "o")
        return [len(line.get_xdata()) for line in blue], len(server.get_xdata())

    assert walked(0) == ([1] * 4, 1)
    assert walked(1) == ([11] * 4, 1)
    assert walked(2) == ([21] * 4, 1)
    assert walked(4) == ([21, 11] * 4, 2)
    assert walked(18) == ([21] * 24, 7)


def test_clients_whose_losses_fall_stand_in_the_order_of_their_first_losses():
    figure = falling(1)
    bars = {
        container.get_label(): [bar.get_height() for bar in container]
        for container in figure.axes[0].containers
    }
    assert [len(bars[name]) for name in ("trains", "queried")] == [2, 2]
    assert len(bars["not queried"]) == 4
    assert min(bars["trains"]) > max(bars["queried"])
    (line,) = figure.axes[0].get_lines()
    assert line.get_ydata().tolist() == np.linspace(3, 1, 8).tolist()
    times = [bar.get_height() for bar in falling(3).axes[1].patches]
    assert sum(times) == 6


def test_legends_of_clients_name_only_what_is_drawn():
    losses = falling(1).drawn_by.given["table"].assign(is_asked=True)
    shown = figures.falling_losses(losses, 1).legends[0].get_texts()
    assert "not asked" not in [text.get_text() for text in shown]
    for share, names in ((0.1, ["took part"]), (0.0, ["never"])):
        table = pd.DataFrame({"samples": [3, 9], "share": share})
        legend = figures.absent_clients(table, 5).axes[0].get_legend()
        assert [text.get_text() for text in legend.get_texts()] == names


def test_thousands_of_clients_can_be_shown():
    shown = plots.clients_by_classes(np.ones((1500, 2), int), ["a", "b"])
    assert shown.axes[0].get_xticks().tolist() == list(range(0, 1500, 200))


def test_the_wire_picture_draws_one_round_of_one_run():
    wire = traffic(12)
    later = wire.assign(round=5)
    figure = plots.wire_picture(concat([wire, later]), round=2)
    pd.testing.assert_frame_equal(figure.data, wire)
    assert any("first 10 of 12" in text.get_text() for text in texts(figure))
    with pytest.raises(ValueError, match=r"round 3, found none.*\[2\]"):
        plots.wire_picture(wire, round=3)
    with pytest.raises(ValueError, match="one run"):
        plots.wire_picture(concat([wire, wire.assign(run="other")]))
    assert [size_text(n) for n in (8, 103_456, 26_415_608)] == [
        "8 B",
        "103.5 kB",
        "26.42 MB",
    ]


def test_a_question_for_the_loss_has_a_look_of_its_own():
    looks = [PARTS[part] for part in PARTS]
    assert len(set(looks)) == len(looks)
    figure = plots.wire_picture(asking())
    found = [text.get_text() for text in texts(figure)]
    assert found.count("400.0 kB") == 4  # three questions down, one answer up
    assert found.count("4 B") == 2  # of those who were asked and not chosen
    assert "loss_query\n1.20 MB in all" in found
    asked = [
        strip
        for strip in figure.axes[0].patches
        if isinstance(strip, Rectangle) and strip.get_hatch() == PARTS["loss_query"][1]
    ]
    assert len(asked) == 7  # six strips, one field of the legend


def test_participation_is_sorted_within_seeds_and_then_averaged():
    table = shares(num_clients=12)
    figure = figures.participation_picture(table.sample(frac=1.0, random_state=0))
    for axis, name in zip(figure.axes, figure.data["name"].unique(), strict=True):
        runs = table[table["name"] == name]
        each = [
            sorted(runs[runs["seed"] == s]["share"], reverse=True) for s in (0, 1, 2)
        ]
        expected = 100 * np.mean(each, axis=0)
        part = figure.data[figure.data["name"] == name]
        assert part["percent_of_rounds"].tolist() == pytest.approx(expected.tolist())
        assert part["place"].tolist() == list(range(1, 13))
        (bars,) = (p for p in axis.patches if isinstance(p, StepPatch))
        assert bars.get_data().values.tolist() == pytest.approx(expected.tolist())
        assert bars.get_data().baseline == 0
        assert axis.get_ylim() == figure.axes[0].get_ylim()
        (dashed,) = axis.get_lines()
        assert dashed.get_ydata()[0] == pytest.approx(100 * runs["share"].mean())
        assert axis.get_title(loc="left") == name
        assert "3 of 12 never selected" in [text.get_text() for text in axis.texts]
    assert "3 seeds" in figure.get_supxlabel()


def test_participation_says_once_what_equal_shares_would_be():
    def said(table):
        found = [
            text.get_text() for text in texts(figures.participation_picture(table))
        ]
        return [text for text in found if text.startswith("equal")]

    level = shares(num_clients=5, names=["a", "b"]).assign(share=0.2)
    assert said(level) == ["equal\nshares:\n20 %"]
    level.loc[level["name"] == "b", "share"] = 1.0
    assert said(level) == ["equal\nshares"]


def test_the_mean_number_of_clients_never_chosen_may_be_broken():
    table = shares(num_clients=6, names=["a"])
    table.loc[(table["seed"] == 1) & (table["client"] == 0), "share"] = 0.0
    found = [text.get_text() for text in texts(figures.participation_picture(table))]
    assert "3.3 of 6 never selected" in found


def test_groups_of_clients_stand_side_by_side():
    table = two_groups(num_often=8)
    table.loc[table["there"] == "often", "share"] += 0.5
    figure = figures.participation_picture(table, group="there")
    part = figure.data[figure.data["name"] == "uniform"]
    assert part["there"].tolist() == ["often"] * 79 + ["rarely"] * 8
    for _, shown in part.groupby("there"):
        assert shown["percent_of_rounds"].is_monotonic_decreasing
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["often", "rarely"]
    table.loc[(table["seed"] == 1) & (table["client"] == 8), "there"] = "rarely"
    with pytest.raises(
        ValueError, match=r"'uniform', there 'often', found \[79, 78, 79"
    ):
        figures.participation_picture(table, group="there")


def test_participation_refuses_what_it_cannot_show():
    table = shares(num_clients=5)
    with pytest.raises(ValueError, match="no 'share'"):
        figures.participation_picture(table.drop(columns="share"))
    with pytest.raises(ValueError, match="one row per name, seed and client"):
        figures.participation_picture(pd.concat([table, table]))
    with pytest.raises(ValueError, match=r"every seed of 'uniform', found \[5, 4, 5\]"):
        figures.participation_picture(table.drop(index=10))
    with pytest.raises(ValueError, match="at most 3 groups, found 5"):
        figures.participation_picture(table, group="client")


def test_clients_stand_from_worst_to_best():
    table = each_client(["FedAvg", "FedSR"], num_clients=4)
    figure = figures.accuracy_by_client(table)
    for line, name in zip(figure.axes[0].get_lines(), ["FedAvg", "FedSR"], strict=True):
        expected = sorted(100 * table[table["name"] == name]["mean"])
        assert line.get_ydata().tolist() == pytest.approx(expected)
        assert line.get_xdata().tolist() == [12.5, 37.5, 62.5, 87.5]
    found = [text.get_text() for text in texts(figure)]
    assert "● FedAvg" in found and "■ FedSR" in found
    assert "Each client's mean, 3 seeds." in found
    with pytest.raises(ValueError, match=r"several.*measures\.by_client"):
        figures.accuracy_by_client(pd.concat([table, table]))
    with pytest.raises(ValueError, match="at most five lines"):
        figures.accuracy_by_client(each_client(list("abcdef")))


def test_a_single_client_has_a_mark():
    line = figures.accuracy_by_client(each_client(["FedAvg"], 2)[:1]).axes[0].lines[0]
    assert line.get_marker() == "o" and line.get_markevery() is None


def test_labels_of_lines_that_all_end_at_the_top_do_not_touch():
    figure = figures.accuracy_by_client(each_client())
    figure.draw_without_rendering()
    labels = [t for t in texts(figure) if t.get_text().endswith(METHODS)]
    boxes = [Text.get_window_extent(label) for label in labels]
    assert len(boxes) == 5
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_domains_show_mean_and_spread_side_by_side():
    table = unseen(["c", "a", "b"], ["FedAvg", "FedSR"]).drop(index=4)  # no FedSR on a
    figure = plots.accuracy_by_domain(table, order=["a", "b", "c"])
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["a", "b", "c"]
    drawn = {}
    for bars, name in zip(axis.containers, ["FedAvg", "FedSR"], strict=True):
        assert bars.get_label() == name
        dots, _, (spreads,) = bars.lines
        segments = [s for s in spreads.get_segments() if len(s)]
        for domain, x, y in zip("abc", *dots.get_data(), strict=True):
            if not np.isnan(y):
                (spread,) = (s for s in segments if s[0, 0] == x)
                assert round(x) == "abc".index(domain)
                drawn[domain, name] = (x, y, np.ptp(spread[:, 1]) / 2)
    assert len(drawn) == len(table) == 5
    assert len({x for x, *_ in drawn.values()}) == 5
    for row in table.to_dict("records"):
        _, y, half = drawn[row["held_out"], row["name"]]
        assert (y, half) == pytest.approx((100 * row["mean"], 100 * row["sd"]))
    colours = {bars.lines[0].get_color() for bars in axis.containers}
    markers = {bars.lines[0].get_marker() for bars in axis.containers}
    assert len(colours) == len(markers) == 2


def test_domains_keep_their_legend_above_the_dots_and_their_unit():
    figure = plots.accuracy_by_domain(unseen(), unit="Loss")
    figure.draw_without_rendering()
    axis = figure.axes[0]
    assert axis.get_legend().get_window_extent().y0 >= axis.get_window_extent().y1 - 1
    assert figure.data["mean"].tolist() == unseen()["mean"].tolist()
    found = [text.get_text() for text in texts(figure)]
    assert {"Loss", "Held-out domain", "Dot: mean, bar: ± s.d., 3 seeds."} <= set(found)
    lone = plots.accuracy_by_domain(unseen().assign(num_seeds=1, sd=np.nan))
    assert "One seed: no spread is known." in [text.get_text() for text in texts(lone)]


def test_domains_refuse_what_they_cannot_show():
    table = unseen(["a", "b"])
    with pytest.raises(ValueError, match="summarise first"):
        plots.accuracy_by_domain(pd.concat([table, table]))
    for order in (["a"], ["a", "b", "c"], ["a", "b", "b"]):
        with pytest.raises(ValueError, match=r"an order of \['a', 'b'\]"):
            plots.accuracy_by_domain(table, order=order)
    with pytest.raises(ValueError, match="no 'domain'"):
        plots.accuracy_by_domain(table, x="domain")
    with pytest.raises(ValueError, match="at most five"):
        plots.accuracy_by_domain(unseen(names=list("abcdef")))


@pytest.mark.parametrize("shape", [(28, 28), (31, 20), (32, 32, 3)])
def test_restyled_pictures_show_spectrum_window_and_change(shape):
    own, foreign, mixed = restyled(*shape)
    figure = figures.restyle_picture(own, foreign, mixed, 2)
    shown = [axis.get_images()[0].get_array() for axis in figure.axes[:5]]
    assert np.array_equal(shown[0], own) and np.array_equal(shown[1], foreign)
    assert np.array_equal(shown[3], mixed.clip(0, 1))
    height, width = shape[:2]
    (box,) = figure.axes[2].patches
    left, bottom = round(box.get_x() + 0.5), round(box.get_y() + 0.5)
    rows, columns = slice(bottom, bottom + 5), slice(left, left + 5)
    assert (box.get_width(), box.get_height()) == (5, 5)
    channels = own.reshape(height, width, -1)
    for u, v in product(range(-2, 3), repeat=2):  # by its definition, slowly
        wave = np.exp(
            -2j
            * np.pi
            * np.add.outer(u * np.arange(height) / height, v * np.arange(width) / width)
        )
        size = [
            np.abs((channels[..., c] * wave).sum()) for c in range(channels.shape[2])
        ]
        assert shown[2][rows, columns][u + 2, v + 2] == pytest.approx(
            np.log(1 + np.array(size)).mean()
        )
    change = mixed - own
    change = change.mean(axis=2) if change.ndim == 3 else change
    assert np.array(shown[4]) == pytest.approx(change)
    norm = figure.axes[4].get_images()[0].norm
    assert norm.vmax == -norm.vmin == pytest.approx(np.abs(change).max())
    mean = f"mean {change.mean():+.3f}".replace("-", "−")
    assert mean in [text.get_text() for text in texts(figure)]
    assert len(figure.data) == height * width
    red = "_red" if len(shape) == 3 else ""
    first = (mixed.reshape(height, width, -1) - channels)[..., 0]
    told = figure.data["restyled" + red] - figure.data["own" + red]
    assert told.to_numpy() / 255 == pytest.approx(first.ravel())


def test_nothing_is_shown_as_no_change():
    own = images(1)[0, 0] / 255
    figure = figures.restyle_picture(own, own, own + 1e-9, 0)
    norm = figure.axes[4].get_images()[0].norm
    assert norm.vmax == -norm.vmin == 0.02  # rounding does not turn red
    assert "mean +0.000" in [text.get_text() for text in texts(figure)]


@pytest.mark.parametrize("four", [(0.8, 0.4, 0.0, 1.0), (0, 1, 0, 1), (-3, 2, 1, 0.7)])
def test_the_divergence_of_two_densities_is_their_integral(four):
    mu, sigma, m, tau = four
    z = np.linspace(mu - 12 * sigma, mu + 12 * sigma, 20_001)
    log_p = -np.log(sigma) - (z - mu) ** 2 / (2 * sigma**2)
    log_r = -np.log(tau) - (z - m) ** 2 / (2 * tau**2)
    p = np.exp(log_p) / np.sqrt(2 * np.pi)
    nats = float(((log_p - log_r) * p).sum() * (z[1] - z[0]))
    figure = figures.gaussian_picture(*four)
    assert f"KL(p ‖ r) = {abs(nats):.2f} nats" in [t.get_text() for t in texts(figure)]
    width = figure.data["z"].diff().mean()
    areas = figure.data[["posterior", "reference"]].sum() * width
    assert areas.tolist() == pytest.approx([1, 1], abs=5e-3)
    peak = figure.data["z"][figure.data["posterior"].idxmax()]
    assert peak == pytest.approx(mu, abs=width)
    names = [line.get_label() for line in figure.axes[0].get_lines()]
    assert names == ["posterior p(z | x)", "class reference r(z | y)"]


@pytest.mark.slow
def test_saved_figures_are_complete_and_reproducible(tmp_path):
    parameters = {
        "seeds": [0, 1],
        "lr": np.float32(0.5),
        "shares": np.array([0.25, 0.75]),
        "root": "/srv/someone/data/femnist",
        "note": "a, b",
    }
    for folder in ("one", "two"):
        path = plots.save_figure(
            plots.learning_curves(history(), title="Finding"),
            "01_accuracy_by_round",
            tmp_path / folder / "01_fedavg",
            parameters=parameters,
            description="Accuracy rises.",
        )
        assert redraw(path.with_suffix(""), formats=["pdf", "svg"])
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        *(f"{path.stem}.{ending}" for ending in ("csv", "pdf", "png", "svg")),
        "figures.json",
    ]
    for file in files:
        twin = tmp_path / "one" / "01_fedavg" / file.name
        assert file.read_bytes() == twin.read_bytes()
        assert str(tmp_path).encode() not in file.read_bytes()
    record = json.loads((path.parent / "figures.json").read_text())[path.stem]
    assert record["parameters"] == parameters | {
        "lr": 0.5,
        "shares": [0.25, 0.75],
        "root": "femnist",
    }
    assert record["description"] == "Accuracy rises."
    assert record["versions"]["matplotlib"] == matplotlib.__version__
    with Image.open(path) as image:
        assert image.text["Description"] == "Accuracy rises."
        assert image.size == (2070, 840)
    assert b"<text" in path.with_suffix(".svg").read_bytes()
    assert b"/FontFile2" in path.with_suffix(".pdf").read_bytes()
    assert len(pd.read_csv(path.with_suffix(".csv"))) == 4


@pytest.mark.slow
def test_only_what_cannot_be_drawn_again_is_saved_for_print_at_once(tmp_path):
    by_hand, by_package = Figure(), plots.learning_curves(history(), title="Finding")
    for figure, endings in ((by_hand, ["pdf", "png", "svg"]), (by_package, ["png"])):
        path = plots.save_figure(figure, "curve", tmp_path / str(len(endings)))
        files = [f.suffix[1:] for f in sorted(path.parent.glob("curve.*"))]
        assert [ending for ending in files if ending != "csv"] == endings


def test_file_names_are_checked_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="01_accuracy_by_round"):
        plots.save_table(grid(), "My Figure.png", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_tables_are_saved_to_compute_with_and_to_read(tmp_path):
    table = pd.DataFrame({"method": ["a|b"], "mean": [1 / 3], "sd": [np.nan]})
    path = plots.save_table(table, "01_grid", tmp_path)
    assert pd.read_csv(path)["mean"][0] == 1 / 3
    assert list(tmp_path.iterdir()) == [path]
    path = plots.save_table(table, "01_grid", tmp_path, ["csv", "md", "tex"])
    assert path.suffix == ".csv"
    assert path.with_suffix(".md").read_text() == (
        "| method | mean | sd |\n| --- | ---: | ---: |\n| a\\|b | 0.3333 | – |\n"
    )
    assert "0.3333 & -- \\\\" in path.with_suffix(".tex").read_text()
    plots.save_table(table.set_index("method"), "02_named", tmp_path)
    assert (tmp_path / "02_named.csv").read_text() == path.read_text()


@pytest.mark.parametrize("formats", ["csv", [], ["csv", "html"]])
def test_other_formats_of_tables_are_refused(tmp_path, formats):
    with pytest.raises(ValueError, match=r"formats must be"):
        plots.save_table(grid(), "grid", tmp_path, formats)
    assert list(tmp_path.iterdir()) == []


def test_a_picture_shows_itself_with_its_alternative_text():
    figure = plots.learning_curves(history(), title="Finding", size=plots.SINGLE)
    image, about = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    assert about == {"width": 368, "height": 264, "alt": "Finding"}


@pytest.mark.parametrize(
    ("draw", "columns"),
    [
        (plots.accuracy_by_domain, ["held_out", "name", "mean", "sd", "num_seeds"]),
        (figures.seconds_by_engine, ["job", "engine"]),
    ],
)
def test_an_empty_table_is_named(draw, columns):
    with pytest.raises(ValueError, match="expected rows to draw, found an empty"):
        draw(pd.DataFrame(columns=columns))


def test_rows_of_a_partition_are_classes_or_domains():
    with pytest.raises(ValueError, match="kind must be 'class' or 'domain'"):
        plots.clients_by_classes(np.ones((2, 2), int), ["a", "b"], kind="label")
