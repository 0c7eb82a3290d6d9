"""Chapter 01 in the page: it runs, its explorer answers, and so do its exercises."""

import pytest
from playwright.sync_api import expect

CHAPTER = "01_fedavg"
pytestmark = pytest.mark.slow
QUESTION = "model_and_clients = {"
GIVEN = """
model_and_clients = {"num_floats": 111_902, "num_counters": 2, "num_clients": 20}
exercises.check("bytes_per_round", my_bytes, **model_and_clients)
"""


def test_the_chapter_runs_to_its_end_and_nothing_is_cut_off(chapter):
    assert chapter.page.locator(".fl-error").count() == 0
    assert chapter.cut_off() == []
    chapter.take_pictures()


def test_a_key_moves_the_explorer_there_and_back(chapter):
    box = chapter.page.locator(".fl-explorer").first
    picture, slider = box.locator("img"), box.locator("[role=slider]").first
    old = picture.get_attribute("src")
    slider.focus()
    chapter.page.keyboard.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", old)
    for _ in range(100):  # far out of its range, where it stays at the end
        chapter.page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "-1")
    expect(box.locator(".fl-error")).to_have_count(0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("...", "not attempted"),
        ("20 * 4 * 111_902", "✘ bytes_per_round"),
        ("20 * (2 * (4 * 111_902 + 8 * 2) + 8)", "✔ bytes_per_round"),
    ],
)
def test_an_exercise_answers_in_the_page(chapter, answer, words):
    chapter.run_cell(QUESTION, f"my_bytes = {answer}\n{GIVEN}")
    expect(chapter.verdict(QUESTION)).to_contain_text(words)
