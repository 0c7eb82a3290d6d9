"""The playground: what its controls promise, without a browser."""

import math
import re
import threading
from dataclasses import dataclass

import pandas as pd
import pytest

from fedlab_course import played
from fedlab_course.chapters.fedavg import comparison as is_fair
from fedlab_course.declared import declared
from fedlab_course.figures.progress import (
    GROUPS,
    MOST_RUNS,
    Progress,
    progress_picture,
)
from fedlab_course.played import Outcome, Setting, offered
from fedlab_course.playground import comparison, playground
from fedlab_course.plots.style import png
from fedlab_support import methods
from fedlab_support.core.checks import setting
from fedlab_support.methods import FISC, FedAvg, FedFA
from tests.device import NAME
from tests.pace import quiet_seconds
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
    monkeypatch.setattr(played, "_load", sets.__getitem__)


@pytest.fixture
def board():
    return playground(rounds=1)


def nan_loss(self, model, batch, context):
    return sum(p.sum() for p in model.parameters()) * float("nan")


def start(board, **values):
    """Set controls, press Start, and wait for the end."""
    for name, value in values.items():
        board.controls[name].value = value
    board.start.click()
    board.worker.join(60)


@pytest.mark.slow
def test_nothing_is_trained_before_start_and_then_everything_grows():
    board = playground(rounds=3)
    assert board.runs == []
    empty = board.picture.value
    start(board)
    board.wait()
    assert board.runs[-1].server.round == 3
    assert board.picture.value != empty
    assert board.note.value == "finished after 3 rounds"
    assert board.bar.value == 3
    assert board.comparison.value.count("<th ") == 1, "one column"
    assert sum(board.latest.progress.times_chosen) == 3 * 5


@pytest.mark.slow
def test_a_second_run_is_compared_with_the_first(board):
    start(board)
    first, before = board.latest, board.picture.value
    start(board, method="FedProx", skew="by class (Dirichlet)", concentration=5.0)
    assert [entry.outcome for entry in board.entries] == [first, board.latest]
    assert [entry.name.value for entry in board.entries] == ["FedAvg", "FedProx"]
    assert board.latest.setting.method == "FedProx"
    assert board.picture.value != before
    text = board.comparison.value
    assert re.search("<th[^>]*>FedProx</th>", text)  # bold: it differs
    assert re.search("<td[^>]*>10</td>", text)  # as many clients as before
    start(board)  # the same once more: now both columns say the same
    assert [entry.name.value for entry in board.entries] == ["FedProx", "FedProx (2)"]
    text = board.comparison.value.replace("FedProx (2)", "").split("</tr>", 1)[1]
    assert not re.search("<th[^>]*>FedProx</th>", text)


@pytest.mark.slow
def test_pinned_runs_stay_and_become_a_table_of_ones_own():
    board = playground(rounds=1, clients=4, cohort=2, epochs=1)
    for rate, seeds in ((0.05, 3), (0.02, 1), (0.01, 3)):  # the second is removed
        start(board, lr=rate, seeds=seeds)
        board.entries[-1].pin.value = True
    board.entries[0].name.value = "FedAvg (3)"
    assert board.entries[0].name.value == "FedAvg (3) (2)", "no run hides another"
    board.entries[0].name.value = "quick"
    names = [entry.name.value for entry in board.entries]
    assert names == ["quick", "FedAvg (2)", "FedAvg (3)"]
    assert "quick" in board.comparison.value and "±" in board.comparison.value
    board.entries[1].remove.click()
    graded = is_fair.grade(board.table("name"), setting="name", known=["FedAvg"])
    assert graded.passed is True, graded
    assert len({e.outcome.progress.place for e in board.entries}) == 2
    for _ in range(MOST_RUNS - 2):
        start(board, seeds=1)
        board.entries[-1].pin.value = True
    start(board)  # one too many
    assert "at most 5 runs in the list; remove one" in board.note.value
    assert len(board.entries) == MOST_RUNS
    board.entries[0].remove.click()
    start(board)
    assert board.note.value == "finished after 1 round"


@pytest.mark.slow
def test_a_methods_settings_come_from_its_declaration():
    board = playground(rounds=2)  # statistics come with the second
    board.controls["method"].value = "FedFA"
    assert {"p", "alpha", "fusion", "noise"} <= set(board.own)
    known, share = board.own["p"]
    assert known.about == "chance a layer acts; 0: FedAvg (in 0…1)"
    assert board.own["fusion"][1].options[0] == "adaptive"
    share.value = 1.0
    start(board)
    assert board.latest.setting.own == {"p": 1.0}
    assert "gamma spread" in board.comparison.value
    assert "gamma_spread" in board.measure.options
    picture = board.picture.value
    board.measure.value = "gamma_spread"
    assert board.picture.value != picture
    share.value = 2.0
    start(board)
    assert "p must be in 0…1, found 2.0" in board.note.value
    board.controls["method"].value = "FISC"
    board.own["contrast_weight"][1].value = -1.0
    start(board)
    assert "contrast weight must be ≥ 0" in board.note.value


@pytest.mark.slow
def test_every_kind_of_setting_has_a_control_that_gives_its_default_back():
    for kind in offered().values():
        for name, known in declared(kind).items():
            assert known.read(known.control()) == known.default, (kind, name)
    count = declared(methods.CCST)["num_styles"]
    control = count.control()
    for text, value in (("None", None), (" 3 ", 3)):
        control.value = text
        assert count.read(control) == value
    control.value = "three"
    with pytest.raises(ValueError, match="num styles must be None or a whole number"):
        count.read(control)
    assert declared(FISC)["without"].control().options[0] == "nothing"
    assert "network" not in declared(FISC), "a path has no control"
    assert declared(FedFA)["p"].meaning.startswith("chance a layer acts")


@dataclass(frozen=True)
class Mine(FedAvg):
    """A reader's method."""

    half: float = setting(0.5, at_least=0, at_most=1)  # of the loss

    def loss(self, model, batch, context):
        return self.half * super().loss(model, batch, context)


@pytest.mark.slow
def test_a_method_of_ones_own_can_be_chosen_and_a_preset_is_chosen_at_first():
    board = playground(2, [Mine], method=Mine().label, clients=4, cohort=2, seeds=2)
    assert board.own["half"][0].about == "of the loss (in 0…1)"
    start(board)
    board.wait()
    assert board.note.value == "finished after 4 rounds"
    assert board.latest.progress.num_seeds == 2
    assert len(board.latest.progress.times_chosen) == 4
    with pytest.raises(ValueError, match=r"found \['colour'\]"):
        playground(colour="red")


@pytest.mark.slow
def test_a_preset_of_the_methods_own_settings_is_shown_and_used():
    board = playground(method="FedProx", own={"mu": 0.5}, clients=3, cohort=2)
    assert board.settings.selected_index == 0, "the settings are open"
    board.asked = board.wanted()
    assert board._setting().own == {"mu": 0.5}
    board.controls["method"].value = "FedFA"
    board.asked = board.wanted()
    assert board._setting().own == {}, "it belongs to its method"
    styles = playground(method="CCST", own={"num_styles": 3}).own["num_styles"]
    assert styles[0].read(styles[1]) == 3
    with pytest.raises(ValueError, match=r"own: expected .*'mu'.*found \['delta'\]"):
        playground(method="FedProx", own={"delta": 0.5})


@pytest.mark.slow
def test_the_groups_of_clients_are_drawn_for_methods_that_form_them():
    board = playground(rounds=3)
    start(board, method="FedGCR", optimiser="adamw", momentum=0.0, epochs=1)
    board.wait()
    assert board.measure.options[-1] == GROUPS
    assert GROUPS not in board.comparison.value
    board.measure.value = GROUPS
    figure = board._draw([])
    now = board.latest.progress
    server = board.runs[-1].server.memory
    last = now.groups[3].dropna()
    known = dict(
        zip(server["clients"].tolist(), server["groups"].tolist(), strict=True)
    )
    assert {k: v - 1 for k, v in last.items()} == {k: known[k] for k in last.index}
    fields = figure.axes[0].collections[0].get_array()
    assert fields.shape == (10, 3), "clients by rounds"
    assert fields.count() == 3 * 5, "a client that did not participate has none"
    start(board, method="FedAvg", optimiser="sgd", momentum=0.9)
    board.wait()
    assert board.measure.value == "score" and GROUPS not in board.measure.options


@pytest.mark.slow
def test_runs_train_on_the_device_that_is_asked_for():
    tables = []
    for device in ("cpu", NAME):
        chosen = {"method": "FedFA", "clients": 3, "cohort": 2, "epochs": 1}
        board = playground(1, device=device, **chosen, momentum=0.0)
        start(board)
        board.wait()
        assert next(board.runs[0].model.parameters()).device.type == device
        for measure in board.measure.options:
            board.measure.value = measure  # which draws it
        tables.append(board.table().drop(columns="run"))
    pd.testing.assert_frame_equal(*tables, rtol=1e-4)


@pytest.mark.slow
def test_a_domain_can_be_held_out(board):
    names = board.controls["held_out"].options
    assert names[0] == "none" and len(names) == 3
    start(board, held_out=names[1], clients=4, cohort=4)
    board.wait()
    assert f"held out: {names[1]}" in board.latest.progress.domains
    assert "held out, accuracy" in board.comparison.value
    assert (board.table(split="held_out")["split"] == "held_out").all()


@pytest.mark.slow
def test_start_goes_on_after_stop_unless_a_control_has_changed():
    board, rounds = playground(rounds=3), []
    inner = board.step

    def step(number):
        rounds.append(number)
        if len(rounds) in (1, 3):
            board.stop.click()
        return inner(number)

    board.step = step
    start(board)  # stopped in its first round, before anybody was visited
    assert board.note.value == "stopped after 0 rounds"
    assert board.runs[-1].server.round == 0
    start(board, lr=0.01)
    assert rounds[:3] == [0, 0, 1]
    assert board.note.value == "stopped after 1 round"
    start(board)
    assert rounds[3:] == [1, 2]
    assert board.runs[-1].server.round == 3


@pytest.mark.slow
def test_stop_throws_half_a_round_away(board, monkeypatch):
    started, go = threading.Event(), threading.Event()
    visited = []

    def loss(self, model, batch, context):
        visited.append(context.client.id)
        started.set()
        assert go.wait(60)
        return context.task.loss(model(batch.x), batch.y)

    monkeypatch.setattr(FedAvg, "loss", loss)
    board.start.click()
    assert started.wait(60)
    board.stop.click()
    go.set()
    board.worker.join(60)
    assert board.note.value == "stopped after 0 rounds"
    assert board.runs[-1].server.round == 0
    assert 0 < len(set(visited)) < 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": -1.0}, "learning rate must be in 0…10, found -1.0"),
        ({"lr": float("nan")}, "learning rate must be in 0…10, found nan"),
        (
            {"skew": "by class (Dirichlet)", "concentration": 0.0},
            "concentration must be in (0, 1000]",
        ),
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
    assert board.note.value == "finished after 1 round"


@pytest.mark.parametrize(
    "preset", [{"clients": 100}, {"epochs": 200}, {"batch_size": 0}, {"seeds": 9}]
)
def test_a_preset_that_its_control_does_not_reach_is_refused(preset):
    ((name, value),) = preset.items()
    with pytest.raises(ValueError, match=rf"{name} must be from \d.*found {value}"):
        playground(**preset)


def test_a_preset_that_is_no_number_is_left_to_the_banner():
    assert math.isnan(playground(lr=math.nan).controls["lr"].value)


@pytest.mark.slow
def test_sliders_stay_within_their_ranges(board):
    board.controls["clients"].value = 1000
    assert board.controls["clients"].value == played.MOST_CLIENTS
    board.controls["cohort"].value = 30
    board.controls["clients"].value = 4
    assert board.controls["cohort"].value == board.controls["cohort"].max == 4
    with pytest.raises(ValueError, match="clients per round must be at most the 4"):
        Setting(clients=4, cohort=5)
    with pytest.raises(Exception, match="Invalid selection"):
        board.controls["method"].value = "FedNothing"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round .* is left out")
def test_who_diverges_is_left_out_and_named(board, monkeypatch):
    monkeypatch.setattr(FedAvg, "loss", nan_loss)
    start(board)
    assert board.latest.left_out == 5
    assert "lower the learning rate" in board.comparison.value


@pytest.mark.slow
def test_masks_bring_their_network_and_measure(board):
    start(board, data=MASKS, skew="none (iid)", clients=2, cohort=2)
    board.wait()
    assert board.latest.progress.metric == "dice"
    assert "dice" in board.comparison.value


@pytest.mark.parametrize("skew", played.SKEWS)
def test_every_skew_deals_as_many_clients_as_asked(skew):
    for clients in (3, 5):  # of two domains, and six owners
        run = Setting(skew=skew, clients=clients, cohort=2).run()
        assert len(run.federation) == clients
        assert run.federation.sizes.max() <= played.MOST_PICTURES


@pytest.mark.slow
def test_methods_are_offered_by_a_rule_and_new_ones_appear(tmp_path, monkeypatch):
    source = "from fedlab_support.methods import FedAvg\nclass FedNew(FedAvg):\n    ..."
    (tmp_path / "fednew.py").write_text(source)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    labels = offered()
    assert {"FedAvg", "FedNew", "FedProx", "FISC", "FedDG-GA"} <= set(labels)
    assert {"VPT", "FedGCR"} <= set(labels)  # they get a transformer
    start(board := playground(1), method="FedNew")
    assert board.latest.setting.method == "FedNew"


def progress(num_domains=3, num_rounds=4, place=0) -> Progress:
    rows = [
        {"split": "test", "metric": metric, "client": -1, "round": r, "domain": domain}
        for r in range(num_rounds)
        for domain in ("", *(f"d{i}" for i in range(num_domains)))
        for metric in ("loss", "accuracy")
    ]
    table = pd.DataFrame(rows).assign(value=lambda t: 0.02 * t.index % 1, seed=0)
    return Progress("FedAvg on a test", table, (2, 0, 1), place)


@pytest.mark.slow
def test_the_picture_shows_all_runs_and_keeps_its_promise_of_time():
    now, before = progress(50), progress(2, 9, place=1)
    figure = progress_picture([before, now])
    curves, domains, cohort = figure.axes
    assert [len(line.get_xdata()) for line in curves.lines] == [9, 1, 4, 1]
    assert domains.get_title(loc="left") == "The 10 worst of 50 domains"
    assert len(cohort.patches) == 2
    assert now.colour != before.colour
    most = [progress(50, place=place) for place in range(MOST_RUNS)]
    limit = 0.5
    assert quiet_seconds(lambda: png(progress_picture(most)), limit) < limit


def test_groups_of_a_single_round_are_seen():
    rows = [
        {"split": "server", "metric": "group", "client": k, "round": 1, "domain": ""}
        for k in (0, 2)
    ]
    groups = pd.DataFrame(rows).assign(value=[0, 1], seed=0)
    both = pd.concat([progress().table, groups])
    now = Progress("FedGCR", both, (1, 0, 1))
    figure = progress_picture([now], measure=GROUPS)
    assert figure.data.columns.tolist() == ["client", 1]
    corners = figure.axes[0].collections[0].get_coordinates()
    assert corners[0, :, 0].tolist() == [0.5, 1.5]
    assert corners[:, 0, 1].tolist() == [-0.5, 0.5, 1.5, 2.5]


def test_a_methods_momentum_does_not_hide_that_of_the_clients():
    ours = Setting(method="FedAvgM", own={"momentum": 0.5, "server_lr": 2.0})
    rows = Outcome(ours, progress(), 12.0, 0, "").rows()
    assert rows["momentum"] == "0.9" and rows["FedAvgM's momentum"] == "0.5"
    assert rows["server lr"] == "2.0"


def test_the_comparison_escapes_what_it_shows():
    outcome = Outcome(Setting(), progress(), 12.0, 1, "<b>boom</b>")
    assert "<b>" not in comparison({"<b>": outcome})
    assert "worst domain" in comparison({"one": outcome, "two": outcome})
