"""Frames of explorers: every position on offer has its image, and pages show one."""

import json
from pathlib import Path

import ipywidgets as W
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedlab_course.frames import CONTROLS, MOTION, as_html, choices, draw, thinned
from fedlab_course.page_widgets import WIDGET_STATE, without_widgets
from fedlab_course.runner import ROOT
from fedlab_course.widgets import explore, player, slider
from tests.browser.lab import CHROMIUM, browser_page


def view(level=2, name="b", is_on=True):
    """A bar as high as the level, in a colour for the name."""
    figure = Figure(figsize=(1, 1))
    bars = figure.subplots().bar(["x"], [level], color="krb"["abc".index(name)])
    bars[0].set_alpha(1.0 if is_on else 0.2)
    return figure


@pytest.fixture
def explorer():
    return explore(view, level=(0, 40, 1), name=["a", "b", "c"], is_on=True)


def test_choices_are_all_positions_of_a_control(explorer):
    offered = {n: choices(control) for n, control in explorer.controls.items()}
    assert [value for _, value in offered["level"]] == list(range(41))
    assert offered["name"] == [("a", "a"), ("b", "b"), ("c", "c")]
    assert [value for _, value in offered["is_on"]] == [False, True]
    assert choices(W.FloatText(0.5)) == [("0.5", 0.5)], "a page cannot draw others"
    between = choices(slider(0.05, 0.3, 0.1, value=0.1))
    assert [value for _, value in between] == [0.05, 0.1, 0.15, 0.25]
    values = [value for _, value in choices(slider(0.0, 0.3, 0.1))]
    assert values == [0.0, 0.1, 0.2, 0.3], "and not 0.30000000000000004"
    assert slider(0.1, 0.5, 0.1).value == 0.3, "which has a frame"
    assert [value for _, value in choices(slider(0, 11, 4))] == [0, 4, 8]


def test_sliders_are_thinned_and_keep_their_ends_and_their_value(explorer):
    offered = {n: choices(control) for n, control in explorer.controls.items()}
    found = thinned(offered, explorer, 30)
    levels = [value for _, value in found["level"]]
    assert {0, 2, 40} <= set(levels) and levels == sorted(levels) and len(levels) <= 6
    assert found["name"] == offered["name"] and found["is_on"] == offered["is_on"]
    assert thinned(offered, explorer, 10**6) == offered
    short = thinned(offered, explorer, 1)["level"]
    assert [value for _, value in short] == [0, 2, 40]
    two = thinned(offered, explorer, 1, least=2)
    assert [value for _, value in two["level"]] == [2, 40], (
        "its own and the farther end"
    )
    assert [value for _, value in two["name"]] == ["b", "c"] and len(two["is_on"]) == 2


def test_a_list_is_shortened_only_if_lists_alone_are_too_many():
    def view(channel=9, level=1):
        return Figure()

    lists = explore(view, channel=list(range(20)), level=(0, 9))
    offered = {n: choices(control) for n, control in lists.controls.items()}
    assert len(thinned(offered, lists, 60)["channel"]) == 20
    short = [value for _, value in thinned(offered, lists, 5)["channel"]]
    assert len(short) == 5 and {0, 9, 19} <= set(short) and short == sorted(short)


def test_a_player_keeps_its_positions_while_other_sliders_have_some_left():
    def view(step=20, level=1):
        return Figure()

    box = explore(view, step=player(0, 20), level=(0, 9))
    offered = {n: choices(control) for n, control in box.controls.items()}
    found = thinned(offered, box, 60 // MOTION)
    assert len(found["step"]) == 20 and len(found["level"]) == 3
    found = thinned(offered, box, 48 // MOTION, least=2)
    assert len(found["step"]) == 21 and len(found["level"]) == 2


@pytest.mark.slow
def test_every_combination_has_an_image_of_its_own(explorer, tmp_path: Path):
    draw(explorer, tmp_path, 1)
    about = json.loads((tmp_path / CONTROLS).read_text())
    counts = [len(control["choices"]) for control in about["controls"]]
    images = {file.read_bytes() for file in tmp_path.glob("*.webp")}
    assert len(list(tmp_path.glob("*.webp"))) == counts[0] * 3 * 2
    assert len(images) > counts[0] * 3, "levels, names and switches are all seen"
    starts = [c["choices"][c["start"]] for c in about["controls"]]
    assert starts == ["2", "b", "on"]
    with Image.open(tmp_path / "0_0_0.webp") as image:
        assert image.size == (165, 165)


@pytest.mark.slow
def test_a_page_has_labelled_controls_and_the_explorers_own_figure(
    explorer, tmp_path: Path
):
    draw(explorer, tmp_path / "m", 1)
    page = as_html(tmp_path / "m", "../frames/m")
    start = json.loads((tmp_path / "m" / CONTROLS).read_text())["controls"]
    name = "_".join(str(control["start"]) for control in start)
    assert f'src="../frames/m/{name}.webp"' in page
    assert (tmp_path / "m" / f"{name}.webp").exists()
    assert page.count("<label>") == 3 and page.count("<select>") == 2
    assert 'alt="The figure for level 2, name b, is on on"' in page


def test_a_widget_without_frames_becomes_its_images():
    import nbformat

    cell = nbformat.v4.new_code_cell()
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "m"}}
    cell.outputs = [nbformat.v4.new_output("display_data", view)]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    state = {"m": {"state": {"_model_name": "HTMLModel", "value": "still"}}}
    notebook.metadata["widgets"] = {WIDGET_STATE: {"state": state}}
    alive = without_widgets(
        nbformat.from_dict(notebook), lambda model: f"alive {model}"
    )
    assert alive.cells[0].outputs[0].data["text/html"] == "alive m"
    cell.outputs = [nbformat.v4.new_output("display_data", view)]
    still = without_widgets(notebook)
    assert "still" in still.cells[0].outputs[0].data["text/html"]
    state["m"]["state"]["children"] = ["IPY_MODEL_bar"]
    state["bar"] = {"state": {"_model_name": "FloatProgressModel"}}
    notebook.metadata["widgets"] = {WIDGET_STATE: {"state": state}}
    cell.outputs = [nbformat.v4.new_output("display_data", view)]
    cell.metadata["tags"] = ["injected-parameters"]
    ended = without_widgets(notebook).cells[0]
    assert ended.outputs[0].data["text/html"] == ""
    assert ended.metadata["jupyter"]["source_hidden"]


WATCH = """() => {
    const image = document.querySelector('.fl-frames img');
    window.seen = [];
    new MutationObserver(() => seen.push(image.getAttribute('src')))
        .observe(image, {attributeFilter: ['src']});
}"""


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """A page with one explorer that can be played and one that cannot."""

    def shown(step=3, name="b"):
        return view(step, name)

    steps = player(0, 3, label="step", milliseconds=500)
    draw(explore(shown, step=steps, name=["a", "b"]), tmp_path / "m")
    draw(explore(view, level=(0, 2, 1)), tmp_path / "n")
    parts = [as_html(tmp_path / name, name) for name in "mn"]
    script = (ROOT / "docs" / "_static" / "frames.js").as_uri()
    page = f'<!doctype html><script src="{script}"></script>{"".join(parts)}'
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    return tmp_path / "page.html"


@pytest.mark.slow
@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_a_page_plays_an_explorer_once_when_its_button_is_pressed(played, motion):
    from playwright.sync_api import expect, sync_playwright

    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    with sync_playwright() as play, browser_page(play, played.parent / "b") as page:
        page.emulate_media(reduced_motion=motion)
        page.goto(played.as_uri())
        expect(page.get_by_role("button")).to_have_count(1)
        image = page.locator("img").first
        page.evaluate(WATCH)
        page.wait_for_timeout(700)
        assert page.evaluate("seen") == [], "nothing runs by itself"
        page.keyboard.press("Tab")
        button = page.get_by_role("button", name="Play step")
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        expect(image).to_have_attribute("aria-live", "off")
        page.wait_for_function("seen.length > 3")
        expect(button).to_have_text("Play")
        assert page.evaluate("seen") == [f"m/{k}_1.webp" for k in range(4)]
        expect(image).to_have_attribute("aria-live", "polite")
        expect(image).to_have_attribute("alt", "The figure for step 3, name b")
        steps = page.get_by_role("slider", name="step")
        expect(steps).to_have_attribute("aria-valuetext", "3")
        expect(page.get_by_role("status").first).to_have_text("3")
        button.press("Space")
        page.wait_for_function("seen.length > 5")
        page.get_by_role("button", name="Pause step").press("Space")
        stopped = page.evaluate("seen")
        page.wait_for_timeout(700)
        assert page.evaluate("seen") == stopped
        assert stopped[4:6] == ["m/0_1.webp", "m/1_1.webp"]
        assert page.locator("img").last.get_attribute("src") == "n/2.webp"
