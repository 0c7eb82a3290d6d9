"""Chapter 01 in the page: its explorers answer, and so do its exercises."""

import re

import pytest
from playwright.sync_api import expect

CHAPTER = "01_fedavg"
CELLS = ("cell-02", "cell-03", "cell-10", "drift-rounds-explore", "explored-runs")
CELLS += ("cell-64",)
pytestmark = pytest.mark.slow
QUESTION = 'exercises.check("fedavg_update", my_update)'


def test_an_executed_chapter_is_shown_and_nothing_is_cut_off(chapter):
    assert chapter.page.locator(".fl-error").count() == 0
    assert chapter.cut_off() == []
    chapter.take_pictures()


def test_a_key_moves_the_explorer_there_and_back(chapter):
    box = chapter.page.locator(".fl-explorer").first
    picture, slider = box.locator("img"), box.locator("[role=slider]").first
    old = picture.get_attribute("src")
    slider.focus()
    chapter.page.keyboard.press("ArrowRight")
    expect(picture).not_to_have_attribute("src", old)
    for _ in range(100):  # far out of its range, where it stays at the end
        chapter.page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "-1")
    expect(box.locator(".fl-error")).to_have_count(0)


def test_a_played_slider_begins_anew_and_stops_when_the_button_is_pressed(chapter):
    box = chapter.page.locator(".fl-explorer").nth(1)
    slider, picture = box.locator("[role=slider]").first, box.locator("img")
    expect(slider).to_have_attribute("aria-valuetext", "18")
    old = picture.get_attribute("src")
    chapter.page.wait_for_timeout(1000)
    expect(picture).to_have_attribute("src", old)
    button = box.get_by_role("button", name="Play")
    button.press("Enter")
    expect(slider).to_have_attribute("aria-valuetext", re.compile("^[123]$"))
    expect(picture).not_to_have_attribute("src", old)
    button.press("Enter")
    chapter.page.wait_for_timeout(1000)
    stopped = slider.get_attribute("aria-valuetext")
    chapter.page.wait_for_timeout(2000)
    expect(slider).to_have_attribute("aria-valuetext", stopped)
    shown = picture.get_attribute("src")
    slider.press("ArrowRight")
    expect(picture).not_to_have_attribute("src", shown)
    button.press("Enter")
    later = re.compile(f"^[{int(stopped) + 3}-9]$")
    expect(slider).to_have_attribute("aria-valuetext", later)
    button.press("Enter")
    expect(box.locator(".fl-error")).to_have_count(0)
    assert chapter.cut_off() == []
    chapter.take_picture_of(box, "played")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("...", "not attempted"),
        ("1.625", "✘ fedavg_update"),
        ("1.20875", "✔ fedavg_update"),
    ],
)
def test_an_exercise_answers_in_the_page(chapter, answer, words):
    others = '"standstill": 0.018159, "minimum": -1 / 7'
    given = f'my_update = {{"one round": {answer}, {others}}}\n{QUESTION}'
    chapter.run_cell(QUESTION, given)
    expect(chapter.verdict(QUESTION)).to_contain_text(words)


def test_one_more_run_is_trained_on_request_and_grows_in_the_figure(chapter):
    box = chapter.page.locator(".fl-runs")
    picture, note = box.locator("img"), box.locator(".fl-note")
    old = picture.get_attribute("src")
    box.get_by_label("explore").select_option("learning rate")
    expect(picture).not_to_have_attribute("src", old)
    value = box.get_by_label("value")
    value.fill("0")
    value.press("Enter")
    old = picture.get_attribute("src")
    box.get_by_role("button", name="Train this setting").click()
    expect(note).to_contain_text(re.compile(r"round \d+ of 16"), timeout=60_000)
    expect(picture).not_to_have_attribute("src", old)
    box.get_by_role("button", name="Stop").click()
    expect(note).to_contain_text("stopped after", timeout=20_000)
    assert chapter.cut_off() == []
    chapter.take_picture_of(box, "explored")


def test_a_saved_chapter_shows_its_explorers_before_a_kernel_knows_it(chapter):
    pictures = chapter.page.locator(".fl-explorer img")
    shown = pictures.count()
    chapter.save_and_open_again()
    assert pictures.count() >= shown > 0
    for picture in pictures.all():
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.naturalWidth") > 300
    assert chapter.page.get_by_text("model not found").count() == 0
