"""Chapter 00 in the page: it runs, its explorer answers, and the playground plays."""

import re
import time

import pytest
from playwright.sync_api import expect

CHAPTER = "00_tour"
pytestmark = pytest.mark.slow
UNDER_WAY = re.compile(r"round [1-9]\d* of 20")  # a quick machine is never seen at 1


@pytest.fixture(scope="module")
def board(chapter):
    return chapter.page.locator(".fl-playground")


def press(board, name: str) -> None:
    board.get_by_role("button", name=name).click()


def test_the_chapter_runs_to_its_end_and_nothing_is_cut_off(chapter):
    assert chapter.page.locator(".fl-error").count() == 0
    assert chapter.cut_off() == []
    chapter.take_pictures()


def test_a_guess_is_entered_with_keys_and_drawn_on_the_figure(chapter):
    curve = chapter.page.locator(".fl-guess").first
    curve.locator("[role=slider]").first.focus()
    for _ in range(7):  # –, 0, 5, …
        chapter.page.keyboard.press("ArrowUp")
    expect(curve.locator(".widget-readout").first).to_have_text("30")
    draw = 'my_curve.on(figure, of="FedAvg")'
    cell = chapter.page.locator(".jp-CodeCell", has_text=draw)
    picture = cell.locator("img")
    old = picture.get_attribute("src")
    again = "figure = plots.learning_curves(run.history.table())"
    chapter.run_cell(draw, f"{again}\n{draw}")
    expect(cell).to_contain_text("Your curve is")
    expect(cell).to_contain_text("you guessed 30, here it is")
    expect(picture).not_to_have_attribute("src", old)
    assert chapter.cut_off() == []
    chapter.take_picture_of(curve, "guess")
    chapter.take_picture_of(picture, "guessed")


def test_the_playground_starts_draws_stops_and_compares_two_runs(chapter, board):
    picture, note = board.locator("img"), board.locator(".fl-note")
    empty = picture.get_attribute("src")
    press(board, "Start")
    expect(note).to_contain_text(UNDER_WAY, timeout=60_000)
    expect(picture).not_to_have_attribute("src", empty)
    began = time.monotonic()
    assert chapter.ask_kernel("print(6 * 7)") == "42"
    assert time.monotonic() - began < 3  # while it trains; milliseconds if nobody else
    press(board, "Stop")
    expect(note).to_contain_text("stopped after", timeout=10_000)
    expect(board.locator(".fl-comparison")).to_contain_text("FedAvg")
    expect(board.get_by_role("button", name="Start")).to_be_enabled()

    board.get_by_label("method").select_option("FedProx")
    press(board, "Start")
    expect(note).to_contain_text(UNDER_WAY, timeout=60_000)
    press(board, "Stop")
    expect(note).to_contain_text("stopped after", timeout=10_000)
    table = board.locator(".fl-comparison")
    expect(table.locator("th")).to_contain_text(["FedProx", "FedAvg"])
    expect(table.locator("tr", has_text="method")).to_contain_text("FedProx")
    expect(table.locator("tr", has_text="method")).to_contain_text("FedAvg")
    board.get_by_text("Settings of FedProx").click()
    expect(board.get_by_label("mu")).to_have_value("0.01")
    assert chapter.cut_off() == []
    chapter.take_picture_of(board, "playground")


def test_a_value_out_of_range_is_answered_in_the_page(chapter, board):
    rate = board.get_by_label("learning rate")
    rate.fill("-1")
    rate.press("Enter")
    press(board, "Start")
    banner = board.locator(".fl-error")
    expect(banner).to_contain_text("learning rate must be in 0…10, found -1.0")
    chapter.take_picture_of(board, "playground-error")
    rate.fill("0.05")
    rate.press("Enter")
    press(board, "Start")
    expect(banner).to_have_count(0)
    press(board, "Stop")
    expect(board.get_by_role("button", name="Start")).to_be_enabled()
