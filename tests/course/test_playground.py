"""The playground: what its controls promise, without a browser."""

import re
import threading

import pandas as pd
import pytest

from fedlab_course import playground as play
from fedlab_course.figures.progress import Progress, progress_picture
from fedlab_course.playground import Outcome, Setting, comparison, offered, playground
from fedlab_course.plots.style import png
from fedlab_support import methods
from fedlab_support.methods import FedAvg
from tests.pace import processor_seconds, slowness
from tests.tiny import tiny_data, tiny_masks

MASKS = "prostate_phantoms"
pytestmark = pytest.mark.usefixtures("one_thread", "small_sets")


@pytest.fixture
def small_sets(monkeypatch):
    """Sets that train in milliseconds under the names of the built-in ones."""
    sets = {
        "digit_domains": tiny_data(240, size=12, owners=6),
        "digits": tiny_data(60, size=12),
        MASKS: tiny_masks(60, size=16, channels=3),
    }
    monkeypatch.setattr(play, "_load", sets.__getitem__)


@pytest.fixture
def board():
    return playground(rounds=3)


def nan_loss(self, model, batch, context):
    return sum(p.sum() for p in model.parameters()) * float("nan")


def start(board, **values):
    """Set controls, press Start, and wait for the end."""
    for name, value in values.items():
        board.controls[name].value = value
    board.start.click()
    board.worker.join(60)


@pytest.mark.slow
def test_nothing_is_trained_before_start_and_then_everything_grows(board):
    assert board.run is None
    empty = board.picture.value
    start(board)
    board.wait()
    assert board.run.server.round == 3
    assert board.picture.value != empty
    assert board.note.value == "finished after 3 rounds"
    assert board.bar.value == 3
    assert "run before" not in board.comparison.value
    assert sum(board.latest.progress.times_chosen) == 3 * 5


@pytest.mark.slow
def test_a_second_run_is_compared_with_the_first(board):
    start(board)
    first, before = board.latest, board.picture.value
    start(board, method="FedProx", skew="by class (Dirichlet)", concentration=5.0)
    assert board.before is first
    assert board.latest.setting.method == "FedProx"
    assert board.picture.value != before
    text = board.comparison.value
    assert re.search("<th[^>]*>FedProx</th>", text)  # bold: it differs
    assert re.search("<td[^>]*>10</td>", text)  # as many clients as before
    start(board)  # the same once more: now both columns say the same
    assert not re.search("<th[^>]*>FedProx</th>", board.comparison.value)


@pytest.mark.slow
def test_start_goes_on_after_stop_unless_a_control_has_changed(board):
    rounds = []
    inner = board.step

    def step(number):
        rounds.append(number)
        if len(rounds) in (1, 3):
            board.stop.click()
        return inner(number)

    board.step = step
    start(board)  # stopped in its first round, before anybody was visited
    assert board.note.value == "stopped after 0 rounds"
    assert board.run.server.round == 0
    start(board, lr=0.01)
    assert rounds[:3] == [0, 0, 1]
    assert board.note.value == "stopped after 1 round"
    start(board)
    assert rounds[3:] == [1, 2]
    assert board.run.server.round == 3


def test_stop_throws_half_a_round_away(board, monkeypatch):
    started, go = threading.Event(), threading.Event()
    visited = []

    def loss(self, model, batch, context):
        visited.append(context.client.id)
        started.set()
        assert go.wait(10)
        return context.task.loss(model(batch.x), batch.y)

    monkeypatch.setattr(FedAvg, "loss", loss)
    board.start.click()
    assert started.wait(10)
    board.stop.click()
    go.set()
    board.worker.join(10)
    assert board.note.value == "stopped after 0 rounds"
    assert board.run.server.round == 0
    assert 0 < len(set(visited)) < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -1.0}, "learning rate must be in 0…10, found -1.0"),
        ({"lr": float("nan")}, "learning rate must be in 0…10, found nan"),
        ({"concentration": 0.0}, "concentration must be in (0, 1000]"),
        ({"skew": "by owner"}, "has 6 owners to train on, found 10 clients"),
        (
            {"data": "prostate_phantoms", "skew": "by class (Dirichlet)"},
            "such as FedAvg(), iid or by_owner",
        ),
    ],
)
def test_values_out_of_range_are_named_in_the_banner_and_can_be_mended(
    board, values, message
):
    start(board, **values)
    assert "fl-error" in board.note.value
    assert message in board.note.value
    assert board.latest is None
    start(board, **{name: getattr(Setting(), name) for name in values})
    assert board.note.value == "finished after 3 rounds"


def test_sliders_stay_within_their_ranges(board):
    board.controls["clients"].value = 1000
    assert board.controls["clients"].value == play.MOST_CLIENTS
    board.controls["cohort"].value = 30
    board.controls["clients"].value = 4
    assert board.controls["cohort"].value == board.controls["cohort"].max == 4
    with pytest.raises(ValueError, match="clients per round must be at most the 4"):
        Setting(clients=4, cohort=5)
    with pytest.raises(Exception, match="Invalid selection"):
        board.controls["method"].value = "FedNothing"
    with pytest.raises(ValueError, match="method must be one of"):
        Setting(method="FedNothing")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round .* is left out")
def test_who_diverges_is_left_out_and_named(board, monkeypatch):
    monkeypatch.setattr(FedAvg, "loss", nan_loss)
    start(board)
    assert board.latest.left_out == 3 * 5
    assert "lower the learning rate" in board.comparison.value


@pytest.mark.slow
def test_masks_bring_their_network_and_measure(board):
    start(board, data=MASKS, skew="none (iid)", clients=2, cohort=2)
    board.wait()
    assert board.latest.progress.metric == "dice"
    assert "dice" in board.comparison.value


@pytest.mark.parametrize("skew", play.SKEWS)
def test_every_skew_deals_as_many_clients_as_asked(skew):
    for clients in (3, 5):  # of two domains, and six owners
        run = Setting(skew=skew, clients=clients, cohort=2).run()
        assert len(run.federation) == clients
        assert run.federation.sizes.max() <= play.MOST_PICTURES


@pytest.mark.slow
def test_methods_are_offered_by_a_rule_and_new_ones_appear(tmp_path, monkeypatch):
    source = "from fedlab_support.methods import FedAvg\nclass FedNew(FedAvg):\n    ..."
    (tmp_path / "fednew.py").write_text(source)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    labels = offered()
    assert {"FedAvg", "FedNew", "FedProx", "FISC", "FedDG-GA"} <= set(labels)
    assert not {"VPT", "FedGCR"} & set(labels)  # they need a transformer
    start(board := playground(1), method="FedNew")
    assert board.latest.setting.method == "FedNew"


def progress(num_domains=3, num_rounds=4) -> Progress:
    rows = [
        {"split": "test", "metric": metric, "client": -1, "round": r, "domain": domain}
        for r in range(num_rounds)
        for domain in ("", *(f"d{i}" for i in range(num_domains)))
        for metric in ("loss", "accuracy")
    ]
    table = pd.DataFrame(rows).assign(value=lambda t: 0.02 * t.index % 1)
    return Progress("FedAvg on a test", table, (2, 0, 1))


def test_the_picture_shows_both_runs_and_keeps_its_promise_of_time():
    now, before = progress(50), progress(2, 9)
    figure = progress_picture(now, before)
    curves, domains, cohort = figure.axes
    assert [len(line.get_xdata()) for line in curves.lines] == [9, 1, 4, 1]
    assert domains.get_title(loc="left") == "The 10 worst of 50 domains"
    assert len(cohort.patches) == 2
    assert "previous run, FedAvg on a test" in figure.get_supxlabel()
    seconds = processor_seconds(lambda: png(progress_picture(now, before)), 3)
    assert seconds / slowness() < 0.5


def test_the_comparison_escapes_what_it_shows():
    outcome = Outcome(Setting(), progress(), 12.0, 1, "<b>boom</b>")
    assert "<b>" not in comparison(outcome)
    assert "worst domain" in comparison(outcome, outcome)
