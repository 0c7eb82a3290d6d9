"""Explorers of hyper-parameters: stored runs at once, one more on request."""

import shutil

import pandas as pd
import pytest

from fedlab_course import explored
from fedlab_course.chapter import Chapter
from fedlab_course.exploration import (
    AVERAGE,
    LOSS,
    Axis,
    Exploration,
    Finished,
    name_of,
    of_method,
    of_training,
    scores,
    value_of,
)
from fedlab_course.explored import EXPLORED, sheet
from fedlab_course.figures.exploration import Shown, exploration_picture
from fedlab_course.frames import CONTROLS, draw
from fedlab_course.protocols import Protocol
from fedlab_course.run_explorer import RunExplorer, explore_runs
from fedlab_course.settings import method_of
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import iid
from fedlab_support.models import small_cnn
from fedlab_support.training.settings import LocalTraining
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")
STORED = [
    name for name in EXPLORED if explored.place(name).with_suffix(".zip").exists()
]


def deal(dataset, held_out, val):
    data = tiny_data(60, size=12)
    return Federation.build(data, iid(data, 3, 0), val=val)


@pytest.fixture(scope="module")
def small():
    training = LocalTraining(0.1, 1, 8)
    rules = Protocol("", "", deal, small_cnn, training, 4, 2, None, (0, 1))
    axes = {
        "E": Axis("local epochs E", of_training("epochs"), (1, 2)),
        "mu": Axis("μ", of_method("FedProx", "mu"), (0.0, 1.0), 1.0),
    }
    return Exploration("three tiny clients", rules, axes)


@pytest.fixture(scope="module")
def stored(small, one_thread, tmp_path_factory):
    """The finished runs of E, which tests only read."""
    folder = tmp_path_factory.mktemp("stored")
    small.study("E", folder)
    return folder


@pytest.fixture
def explorer(small, stored, tmp_path):
    return RunExplorer(Finished(small, tmp_path / "own", stored))


@pytest.mark.slow
def test_stored_runs_are_shown_at_once_and_others_keep_their_place(explorer):
    table = explorer.finished.table("E")
    assert set(zip(table["name"], table["seed"], strict=True)) == {
        (name, seed) for name in ("1", "2") for seed in (0, 1)
    }
    assert explorer.draw("E").data["round"].max() == 4
    picture = explorer.image.value
    explorer.controls["axis"].value = "mu"  # nothing was run there
    assert explorer.image.value != picture and not explorer.banner.value
    assert explorer.draw("mu").data.empty
    labels = [t.get_text() for t in explorer.draw("mu").axes[0].get_xticklabels()]
    assert labels == ["0", "1\n(authors)"]


@pytest.mark.slow
def test_a_measure_is_a_share_in_per_cent_or_the_loss(explorer):
    table = explorer.finished.table("E")
    whole = scores(table, AVERAGE)
    assert len(whole) == 2 * 2 * 3 and whole["value"].between(0, 100).all()
    assert whole["value"].max() > 1
    assert (scores(table, LOSS)["value"] > 0).all()


@pytest.mark.slow
def test_one_more_run_grows_in_the_figure_and_is_kept(
    explorer, small, stored, tmp_path
):
    training = explorer.training
    training.seed.value = 7
    assert training.seed.value == 2, "the first that is not stored"
    assert "about" in training.start.description
    training.value.value = "3"  # a value of one's own
    assert training.seed.value == 0
    picture = explorer.image.value
    training.start.click()
    training.wait()
    assert training.note.value == "finished after 4 rounds"
    assert training.seed.value == 1, "the next one"
    assert explorer.image.value != picture
    shown = explorer.draw("E").axes[0].get_xticklabels()
    assert [label.get_text() for label in shown] == ["1", "2", "3"], "in order"
    assert list(explorer.finished.table("E")["name"].unique()) == ["1", "2", "3"]
    again = RunExplorer(Finished(small.with_value("E", 3), tmp_path / "own", stored))
    assert "3" in set(again.finished.table("E")["name"])


@pytest.mark.slow
def test_it_is_the_same_run_that_a_study_trains(explorer, small, tmp_path):
    explorer.training.start.click()  # E = 2, seed 2
    explorer.training.wait()
    mine = explorer.finished.find("E", 2, 2).table()
    theirs = small.run("E", 2, 2).fit(4, progress=False).table()
    for table in (mine, theirs):
        table.drop(table[table["metric"] == "seconds"].index, inplace=True)
    assert mine.equals(theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axis", "text", "said"),
    [
        ("E", "two", "a whole number"),
        ("E", "0", "local epochs E must be a whole number ≥ 1, found 0"),
        ("mu", "-1", "μ must be ≥ 0"),
    ],
)
def test_a_wrong_value_is_answered_beside_the_button(explorer, axis, text, said):
    explorer.controls["axis"].value = axis
    explorer.training.value.value = text
    explorer.training.start.click()
    explorer.training.worker.join(60)
    assert said in explorer.training.note.value
    assert "fl-error" in explorer.training.note.value
    explorer.training.value.value = "1"  # and the next one is trained
    explorer.training.start.click()
    explorer.training.wait()


def test_the_end_of_a_new_run_is_measured_as_that_of_stored_ones():
    rows = [("a", seed, r, 10.0 * r) for seed in (0, 1, 2) for r in range(5)]
    table = pd.DataFrame(rows, columns=["name", "seed", "round", "value"])
    new, stored = table[table["seed"] == 2], table[table["seed"] < 2]
    figure = exploration_picture(Shown(stored, ["a"], new), "x", "Loss", rounds=4)
    ends = {line.get_marker(): line.get_ydata()[0] for line in figure.axes[0].lines}
    assert ends["*"] == ends["o"] == 35.0
    assert len(figure.data) == 15, "the new run is in the table, too"


def test_a_value_may_be_typed_in_any_way(small, tmp_path):
    explorer = RunExplorer(Finished(small, tmp_path))
    explorer.controls["axis"].value = "mu"
    stored = pd.DataFrame({"name": "1", "seed": [0, 1], "metric": "seconds"})
    explorer.finished.table = lambda axis: stored.assign(value=9.0)
    for typed, seed in (("0.5", 0), ("1.0", 2), ("one", 0), (" 1e0", 2), ("1", 2)):
        explorer.training.value.value = typed
        assert explorer.training.seed.value == seed, typed


def test_values_have_names_that_can_be_typed():
    stages = Axis("stages", of_method("FedFA", "stages"), ((), (1,), None))
    assert [name_of(v) for v in stages.values] == ["none", "1", "all"]
    assert [value_of(name_of(v), stages) for v in stages.values] == [(), (1,), None]
    with pytest.raises(ValueError, match="stages is one of none, 1, all"):
        value_of("3", stages)


def test_values_are_sorted_and_stand_once(small):
    grown = small.with_value("mu", 0.5)
    assert grown.axes["mu"].values == (0.0, 0.5, 1.0)
    assert grown.with_value("mu", 1.0) is grown


@pytest.mark.slow
def test_pages_without_a_kernel_have_every_axis(explorer, tmp_path):
    draw(explorer, tmp_path / "frames")
    measures = explorer.controls["measure"].options
    assert len(list((tmp_path / "frames").glob("*.webp"))) == 2 * len(measures)
    assert "local epochs E" in (tmp_path / "frames" / CONTROLS).read_text()


@pytest.mark.slow
def test_a_sheet_shows_the_end_of_every_axis_and_the_papers_values(
    small, stored, tmp_path
):
    home = shutil.copytree(stored, tmp_path / "runs")
    small.study("mu", home)
    figure = sheet(small, home)
    assert [axis.get_xlabel() for axis in figure.axes] == ["local epochs E", "μ"]
    texts = [[t.get_text() for t in a.get_xticklabels()] for a in figure.axes]
    assert texts == [["1", "2"], ["0", "1\n(authors)"]]
    assert (figure.data["num_seeds"] == 2).all()


@pytest.mark.parametrize("chapter", EXPLORED)
def test_the_values_of_every_axis_are_settings_that_methods_take(chapter):
    exploration = EXPLORED[chapter]()
    for axis in exploration.axes.values():
        made = [axis.setting(value) for value in axis.values]
        rules = [setting.change(exploration.rules) for setting in made]
        assert (
            len({repr(m) for m in map(method_of, made, rules)} | set(map(repr, rules)))
            >= 2
        )
        assert axis.paper == "" or axis.paper in axis.values


@pytest.mark.slow
@pytest.mark.parametrize("chapter", STORED)
def test_every_stored_value_is_found_under_its_settings(chapter):
    exploration = EXPLORED[chapter]()
    finished = Finished(exploration, explored.place(chapter))
    for axis, known in exploration.axes.items():
        names = list(finished.table(axis)["name"].unique())
        assert names == list(map(name_of, known.values)), axis
        seeds = finished.table(axis).groupby("name")["seed"].nunique()
        assert (seeds == len(exploration.rules.seeds)).all(), axis


@pytest.mark.slow
def test_a_chapter_makes_its_explorer_in_one_call(tmp_path):
    given = {"runs_dir": str(tmp_path), "__annotations__": {"runs_dir": str}}
    made = explore_runs(Chapter("02_client_selection", given))
    assert isinstance(made, RunExplorer)
