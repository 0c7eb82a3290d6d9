"""Widgets: errors reach the page, controls can be read, threads end."""

import threading

import ipywidgets as W
import numpy as np
import pytest

from fedlab_course.plots.style import new_picture, style
from fedlab_course.widgets import (
    LiveTraining,
    explore,
    player,
    show_source,
    slider,
)
from fedlab_support.core.history import History


def draw(value: float):
    with style():
        figure = new_picture((2, 1), f"value {value}")
        figure.subplots().plot([0, value])
    return figure


def view(alpha: float = 0.5, kind: str = "b", is_log: bool = False):
    if alpha > 0.9:
        raise ValueError("alpha <too> large")
    return draw(alpha + len(kind) + is_log)


@pytest.fixture
def box():
    return explore(view, alpha=(0.0, 1.0, 0.1), kind=["a", "b"], is_log=False)


def test_an_explorer_shows_its_defaults_at_once(box):
    assert box.values() == {"alpha": 0.5, "kind": "b", "is_log": False}
    assert bytes(box.image.value).startswith(b"\x89PNG")
    assert "fl-explorer" in box._dom_classes
    assert box.image.layout.align_self == "flex-start"


def test_controls_report_on_release_with_full_labels(box):
    assert box.controls["alpha"].continuous_update is False
    for name, control in box.controls.items():
        assert control.style.description_width == "initial"
        assert control.description == name.replace("_", " ")


def test_a_change_redraws_and_equal_values_draw_the_same(box):
    first = box.image.value
    box.controls["alpha"].value = 0.2
    assert box.image.value != first
    box.controls["alpha"].value = 0.5
    assert box.image.value == first


def test_later_errors_stand_in_the_banner_until_the_next_success(box):
    before = box.image.value
    box.controls["alpha"].value = 1.0
    assert "fl-error" in box.banner.value
    assert "alpha &lt;too&gt; large" in box.banner.value
    assert "--jp-error-color1" in box.banner.value
    assert box.image.value == before
    box.controls["alpha"].value = 0.1
    assert box.banner.value == ""


def test_an_error_at_the_defaults_fails_the_cell():
    with pytest.raises(ValueError, match="large"):
        explore(view, alpha=slider(0.0, 1.0, 0.1, value=1.0))
    with pytest.raises(TypeError, match="control 'alpha'"):
        explore(view, alpha="0.5")
    with pytest.raises(TypeError, match="unexpected keyword"):
        explore(view, beta=(0, 1))


def test_shorthands_become_core_controls():
    def anything(**values):
        return draw(1)

    box = explore(anything, a=(1, 9), b=(0.0, 1.0, 0.1), c=[1, 5, 10], d=["x"], e=True)
    kinds = [type(control) for control in box.controls.values()]
    wanted = [W.IntSlider, W.FloatSlider, W.SelectionSlider, W.Dropdown, W.Checkbox]
    assert kinds == wanted
    assert box.values() == {"a": 5, "b": 0.5, "c": 1, "d": "x", "e": True}


def test_a_slider_names_its_unit_and_refuses_an_impossible_range():
    assert slider(1, 10, label="rounds", unit="per run").description == (
        "rounds (per run)"
    )
    assert isinstance(slider(1, np.int64(10)), W.IntSlider), "as from a table"
    formats = [slider(0.0, 1.0, s).readout_format for s in (0.5, 0.025, 0.001)]
    assert formats == [".2f", ".3f", ".3f"], "no step is rounded away"
    with pytest.raises(ValueError, match="low must be below high"):
        slider(3, 3)
    with pytest.raises(ValueError, match=r"value must lie in 1…5"):
        slider(1, 5, value=9)


def test_a_player_is_a_slider_whose_button_starts_a_clock_in_the_page():
    box = explore(draw, value=player(0, 6, 2, label="step", milliseconds=300))
    control = box.controls["value"]
    assert (control.value, control.min, control.max, control.step) == (6, 0, 6, 2)
    button, clock = control.moved_by
    assert list(box.children[0].children[0].children) == [button, clock, control]
    assert (button.description, button.tooltip) == ("Play", "Play step")
    assert (clock.interval, clock.step, clock.max) == (300, 2, 6)
    assert clock.layout.display == "none" and not clock.playing
    links = [w for w in W.Widget.widgets.values() if isinstance(w, W.widget_link.Link)]
    joined = {(*link.source, *link.target) for link in links}
    assert {
        (button, "value", clock, "playing"),
        (clock, "value", control, "value"),
    } <= joined
    before = box.image.value
    control.value = 2
    assert box.image.value != before
    for typed, step in ((3, 4), (99, 6), (-9, 0)):
        control.value = typed
        assert control.value == step


def test_a_player_refuses_steps_that_miss_the_end_and_a_flicker():
    with pytest.raises(ValueError, match=r"found 0…5 in steps of 2"):
        player(0, 5, 2)
    with pytest.raises(ValueError, match="low must be below high"):
        player(3, 3)
    with pytest.raises(ValueError, match="milliseconds"):
        player(0, 5, milliseconds=20)


def test_a_long_label_leaves_a_slider_its_room():
    short, long = (slider(1, 9, label=label) for label in ("a", "a" * 60))
    assert short.layout.min_width == "18em"
    assert long.layout.min_width == "43em"
    assert slider(1, 61, label="aa").layout.min_width == "24em", (
        "more values, more room"
    )
    assert slider(1, 10_000).layout.min_width == "29em"


@pytest.mark.slow
def test_live_training_draws_each_round_and_starts_anew_after_the_end():
    seen = []
    live = LiveTraining(lambda r: seen.append(r) or r, lambda all: draw(len(all)), 3)
    default = live.picture.value
    assert bytes(default).startswith(b"\x89PNG")
    live.begin()
    live.wait()
    assert live.results == [0, 1, 2]
    assert live.bar.value == 3
    assert live.note.value == "finished after 3 rounds"
    assert live.picture.value != default
    assert (live.start.disabled, live.stop.disabled) == (False, True)
    live.start.click()
    live.wait()
    assert seen == [0, 1, 2, 0, 1, 2]


def test_live_training_stops_within_a_round_and_continues():
    entered, released = threading.Event(), threading.Event()

    def step(round):
        entered.set()
        assert released.wait(60)
        return round

    live = LiveTraining(step, lambda results: draw(len(results)), 3, about="5 s")
    assert live.start.description == "Start (about 5 s)"
    live.begin()
    assert entered.wait(60)
    worker = live.worker
    live.begin()  # a second click while it runs
    assert live.worker is worker
    live.stop.click()
    released.set()
    live.wait()
    assert live.note.value == "stopped after 1 round"
    live.begin()
    live.wait()
    assert live.results == [0, 1, 2]


def test_live_training_shows_an_error_and_gives_it_to_wait():
    def step(round):
        raise RuntimeError("loss is <NaN>")

    live = LiveTraining(step, lambda results: draw(1), 2)
    live.begin()
    with pytest.raises(RuntimeError, match="NaN"):
        live.wait()
    assert "fl-error" in live.note.value
    assert "loss is &lt;NaN&gt;" in live.note.value
    assert live.start.disabled is False
    with pytest.raises(ZeroDivisionError):
        LiveTraining(step, lambda results: 1 / 0, 2)
    with pytest.raises(ValueError, match="rounds must be a whole number ≥ 1"):
        LiveTraining(step, draw, 0)


def test_source_is_shown_from_the_package_with_its_place():
    shown = show_source(History.add)
    assert shown.data.startswith("def add(\n")
    assert "fedlab_support/core/history.py, line" in repr(shown)
    assert "fedlab_support/core/history.py, line" in shown._repr_html_()
    with pytest.raises(TypeError, match="written in Python"):
        show_source(len)


def test_a_list_may_hold_pairs():
    widget = explore(lambda stages: draw(sum(stages)), stages=[(1, 2), (2, 3)])
    assert widget.controls["stages"].value == (1, 2)
    assert [label for label, _ in widget.controls["stages"].options][1] == "(2, 3)"
