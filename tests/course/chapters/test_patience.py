"""Answers that never end: the check ends all the same, and says where it stopped."""

import threading
import time
from contextlib import suppress
from itertools import count

import nbformat
import pytest
import torch

from fedlab_course.checking import exercise, timeout
from fedlab_course.checking.timeout import THREAD_NAME, TooLong, within
from fedlab_course.exercises import check
from fedlab_course.papermill_runner import execute
from tests.course.chapters.test_exercises import COUNTS, refuse
from tests.course.executed import answers
from tests.course.test_runner import write_chapter


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(exercise, "SECONDS", 0.2)


def no_thread_is_left() -> bool:
    for _ in range(200):
        if THREAD_NAME not in [thread.name for thread in threading.enumerate()]:
            return True
        time.sleep(0.02)
    return False


def loops(*inputs):
    total = 0
    while total < 1:
        total -= 1
    return total


def sleeps(*inputs):
    time.sleep(0.5)


def leaves(*inputs):
    raise SystemExit


def test_work_returns_and_raises_what_it_would_without_a_limit():
    assert within(5, lambda: 3) == 3
    with pytest.raises(KeyError, match="x"):
        within(5, lambda: {}["x"])
    with torch.random.fork_rng():
        torch.manual_seed(0)  # the thread shares the generators of who asked
        assert within(5, lambda: torch.rand(1)) == torch.rand(
            1, generator=torch.Generator().manual_seed(0)
        )


def test_a_loop_is_stopped_and_its_line_named(soon):
    result = check("weighted_average", loops)
    refuse(result, "no result after 0.2 seconds", "of loops", "a loop that never ends")
    assert any(f"line {number} of" in result.message for number in (3, 4))
    assert no_thread_is_left()


@pytest.mark.slow
@pytest.mark.parametrize("answer", [sleeps, lambda *_: loops()])
def test_what_waits_or_loops_further_inside_ends_too(answer, soon):
    refuse(check("bytes_per_round", answer, **COUNTS), "no result after")
    assert no_thread_is_left()


@pytest.mark.slow
def test_code_that_catches_everything_cannot_hold_the_check():
    began = time.monotonic()

    def stubborn():
        while time.monotonic() < began + 1.5:
            with suppress(BaseException):
                sum(range(1000))

    with pytest.raises(TooLong):
        within(0.1, stubborn)
    assert time.monotonic() - began < 1.4
    assert no_thread_is_left()


def test_an_endless_answer_of_another_kind_ends(soon):
    refuse(check("believed", count()), "no message")
    refuse(check("partitions", (loops() for _ in range(1)), points=[0.0, 1.0, 5.0]))


def test_an_answer_that_leaves_python_does_not_take_the_notebook_along():
    def interrupts(*inputs):
        raise KeyboardInterrupt

    refuse(check("weighted_average", leaves), "SystemExit", "of leaves")
    refuse(check("weighted_average", interrupts), "KeyboardInterrupt", "of interrupts")


def test_the_limit_works_inside_another_thread(soon):
    results = []
    thread = threading.Thread(
        target=lambda: results.append(check("weighted_average", loops))
    )
    thread.start()
    thread.join(20)
    refuse(results[0], "no result after")
    assert no_thread_is_left()


def test_an_interrupt_of_who_waits_stops_the_work():
    def interrupted(_, seconds):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeout, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            within(5, loops)
    assert no_thread_is_left()


CELLS = """
    from fedlab_course.checking import exercise
    from fedlab_course.exercises import check
    exercise.SECONDS = 2
    def loops(*inputs):
        while True:
            pass
    check("weighted_average", loops)
"""


@pytest.mark.slow
def test_a_notebook_with_an_endless_answer_runs_to_its_end(tmp_path):
    chapter = write_chapter(tmp_path / "01_loop.ipynb", "seed: int = 0", CELLS, "'on'")
    out = tmp_path / "out.ipynb"
    execute(chapter, out, {})
    ((passed, message),) = answers(nbformat.read(out, as_version=4)).values()
    assert passed is False
    assert "while True" in message or "pass" in message
