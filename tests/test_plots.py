"""Figures: readable, nothing cut off, no global state, files that reruns reproduce."""

import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from PIL import Image

from fedlab_support import plots
from fedlab_support.history import History, compare, concat, last, summarise
from fedlab_support.plots.curves import spread
from fedlab_support.plots.style import colours_for
from fedlab_support.plots.wire import size_text

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
        for direction, part, num_bytes in (
            ("down", "weights", 103_456),
            ("down", "shared", 9_000),
            ("up", "weights", 103_456),
            ("up", "report", 500),
            ("up", "unheard_of", 40_000),
            ("up", "num_examples", 8),
        ):
            record.add_wire(2, client * 7, direction, part, num_bytes)
    return record.wire()


def hooks() -> pd.DataFrame:
    rows = {
        "FedAvg": ["", "", False, ""],
        "FedGCR, a rather long name": ["prompts on a frozen ViT", True, "its", "✎"],
        "FPL": ["", "client representation", True, ""],
    }
    names = ["adapt", "introduce, pool, welcome", "evaluation", "aggregate"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=names)


def comparison() -> pd.DataFrame:
    ours = pd.DataFrame({"method": METHODS, "mean": 0.8, "sd": 0.02, "num_seeds": 3})
    paper = pd.DataFrame({"method": METHODS[:4], "value": [77.3, 81.9, 80.0, 79.0]})
    return compare(ours, paper, on=["method"])


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
    return plots.drift_picture(paths(), np.zeros(2), average, best, title="Apart")


PICTURES = {
    "curves": lambda: plots.learning_curves(many(), ours="FedGCR", title="All " * 40),
    "curves, narrow": lambda: plots.learning_curves(
        history(), title="One seed", size=plots.SINGLE
    ),
    "curves by domain": lambda: plots.learning_curves(history(), by="domain"),
    "curves in panels": lambda: plots.learning_curves(
        swept(), by="local_epochs", panels="clients_per_round", title="Panels"
    ),
    "grid": lambda: plots.grid_heatmap(grid(), "local_epochs", "clients_per_round"),
    "bars": lambda: plots.compare_bars(comparison(), title="Near the report"),
    "few clients": lambda: partition(10, 10),
    "many clients": lambda: partition(100, 62),
    "sheet": lambda: plots.contact_sheet(
        images(6), 3, list("abc"), ["client 0", "client 17"], title="Two writers"
    ),
    "sheet of pairs": lambda: plots.contact_sheet(
        images(5, 3), 2, ["a very long title indeed"] * 5, width=3.35
    ),
    "three clients": lambda: plots.wire_picture(traffic(3), title="Up and down"),
    "ten clients": lambda: plots.wire_picture(traffic(10)),
    "drift": drift,
    "map": lambda: plots.method_map(hooks(), title="Differences"),
    "narrow map": lambda: plots.method_map(hooks().map(bool), width=3.35),
}


def texts(figure) -> list[Text]:
    found = figure.findobj(Text)
    return [text for text in found if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_readable_and_nothing_is_cut_off(name):
    before = dict(matplotlib.rcParams)
    figure = PICTURES[name]()
    assert dict(matplotlib.rcParams) == before
    assert isinstance(figure, plots.Picture)
    assert min(text.get_fontsize() for text in texts(figure)) >= 8
    figure.draw_without_rendering()
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert drawn.x0 >= -0.01
    assert drawn.y0 >= -0.01
    assert drawn.x1 <= width + 0.01
    assert drawn.y1 <= height + 0.01
    assert figure.data is not None or "sheet" in name


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
    assert spread([0.3, 0.8], gap=0.1) == [0.3, 0.8]
    assert spread([], gap=0.1) == []


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


def test_curves_refuse_what_they_cannot_show():
    with pytest.raises(ValueError, match="metrics \\['accuracy'\\]"):
        plots.learning_curves(history(), metric="dice")
    six = concat([many(), history("SixthMethod")])
    with pytest.raises(ValueError, match="at most five lines"):
        plots.learning_curves(six)


def test_colours_follow_roles():
    colours = colours_for(["FedProx", "FedAvg", "FedSR"], ours="FedSR")
    assert colours["FedAvg"] == "#000000"
    assert colours["FedSR"] == "#0072B2"
    assert colours["FedProx"] == "#D55E00"
    assert colours_for([1, 5])[1] == "#0072B2"
    assert len(set(colours_for(list("abcde")).values())) == 5


def test_bars_start_at_zero_and_name_a_missing_number():
    figure = plots.compare_bars(comparison())
    assert figure.axes[0].get_xlim()[0] == 0
    assert all(bar.get_x() == 0 for bar in figure.axes[0].patches)
    assert "paper: no number" in [text.get_text() for text in texts(figure)]


def test_a_grid_prints_its_numbers_and_refuses_repeated_cells():
    table = grid()
    figure = plots.grid_heatmap(table, "local_epochs", "clients_per_round")
    cells = [text.get_text() for text in figure.axes[0].texts]
    assert len(cells) == 6
    assert cells[0] == "61.3\n± 0.1"
    with pytest.raises(ValueError, match="one row per"):
        plots.grid_heatmap(concat([table, table]), "local_epochs", "clients_per_round")


def test_wrong_shapes_are_refused_with_the_cure():
    with pytest.raises(ValueError, match="10 class names"):
        plots.clients_by_classes(counts(3, 10), ["a", "b"])
    with pytest.raises(ValueError, match="not normalised"):
        plots.contact_sheet(images(4).astype(float), 2)
    with pytest.raises(ValueError, match="2 row labels"):
        plots.contact_sheet(images(4), 2, row_labels=["a"])
    with pytest.raises(ValueError, match="titles"):
        plots.contact_sheet(images(4), 2, titles=["a", "b", "c"])


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


def test_saved_figures_are_complete_and_reproducible(tmp_path):
    parameters = {
        "seeds": [0, 1],
        "lr": np.float32(0.5),
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
    files = sorted(path.parent.iterdir())
    assert [file.suffix for file in files] == [".csv", ".json", ".pdf", ".png", ".svg"]
    for file in files:
        twin = tmp_path / "one" / "01_fedavg" / file.name
        assert file.read_bytes() == twin.read_bytes()
        assert str(tmp_path).encode() not in file.read_bytes()
    record = json.loads(path.with_suffix(".json").read_text())
    assert record["parameters"] == parameters | {"lr": 0.5, "root": "femnist"}
    assert record["description"] == "Accuracy rises."
    assert record["versions"]["matplotlib"] == matplotlib.__version__
    with Image.open(path) as image:
        assert image.text["Description"] == "Accuracy rises."
        assert image.size == (2070, 840)
    assert b"<text" in path.with_suffix(".svg").read_bytes()
    assert b"/FontFile2" in path.with_suffix(".pdf").read_bytes()
    assert len(pd.read_csv(path.with_suffix(".csv"))) == 4


def test_file_names_are_checked_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="01_accuracy_by_round"):
        plots.save_table(grid(), "My Figure.png", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_tables_are_saved_to_compute_with_and_to_read(tmp_path):
    table = pd.DataFrame({"method": ["a|b"], "mean": [1 / 3], "sd": [np.nan]})
    path = plots.save_table(table, "01_grid", tmp_path)
    assert pd.read_csv(path)["mean"][0] == 1 / 3
    assert path.with_suffix(".md").read_text() == (
        "| method | mean | sd |\n| --- | ---: | ---: |\n| a\\|b | 0.3333 | – |\n"
    )


def test_a_picture_shows_itself_with_its_alternative_text():
    figure = plots.learning_curves(history(), title="Finding", size=plots.SINGLE)
    image, about = figure._repr_png_()
    assert image.startswith(b"\x89PNG")
    assert about == {"width": 368, "height": 264, "alt": "Finding"}


def test_neither_torch_nor_pyplot_is_imported():
    code = (
        "import sys, types\n"
        "package = sys.modules['fedlab_support'] = types.ModuleType('fedlab_support')\n"
        f"package.__path__ = [{str(Path(plots.__file__).parents[1])!r}]\n"
        "import fedlab_support.history, fedlab_support.plots, fedlab_support.widgets\n"
        "print('torch' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]
