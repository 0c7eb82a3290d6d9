"""Right answers pass; a wrong one gets a hint of its own, which is not the solution.

The tables stand beside the exercises' other tests, in the modules of their chapters:
RIGHT holds the answers of each exercise, WRONG pairs of an answer and words of its
hint, STUBS what is not attempted, HIDDEN what no hint says, and GIVEN the numbers that
the chapter hands over.
"""

from collections.abc import Iterator

import pytest

from fedlab_course.exercises import check
from tests.course.chapters import (
    answers_00,
    answers_03,
    answers_04,
    answers_04b,
    answers_05,
    test_capstone,
    test_exercises,
    test_exercises_02,
    test_exercises_05b,
    test_exercises_06,
    test_exercises_07,
    test_exercises_08,
)
from tests.course.chapters.test_exercises import refuse

CHAPTERS = (
    *(test_exercises, answers_00, test_exercises_02, answers_03),
    *(answers_04, answers_04b, answers_05, test_exercises_05b),
    *(test_exercises_06, test_exercises_07, test_exercises_08, test_capstone),
)
SLOW = {"power_of_choice"}  # of hundreds of draws each


def given(chapter, name: str) -> dict:
    return getattr(chapter, "GIVEN", {}).get(name, {})


def right_answers() -> Iterator:
    for chapter in CHAPTERS:
        for name, answers in chapter.RIGHT.items():
            for answer in answers:
                yield pytest.param(name, answer, given(chapter, name), id=name)


def stubs() -> Iterator:
    for chapter in CHAPTERS:
        for name, answers in getattr(chapter, "STUBS", {}).items():
            for answer in answers:
                yield pytest.param(name, answer, given(chapter, name), id=name)


def wrong_answers() -> Iterator:
    for chapter in CHAPTERS:
        hidden = getattr(chapter, "HIDDEN", {})
        for name, answers in chapter.WRONG.items():
            marks = [pytest.mark.slow] if name in SLOW else []
            for answer, words in answers:
                words = (words,) if isinstance(words, str) else words
                row = name, answer, words, given(chapter, name), hidden.get(name, [])
                yield pytest.param(*row, marks=marks, id=f"{name}: {words[0]}")


@pytest.mark.parametrize(("name", "answer", "given"), [*right_answers()])
def test_a_right_answer_passes(name, answer, given):
    result = check(name, answer, **given)
    assert result.passed is True, result.message
    assert "✔" in repr(result)


@pytest.mark.parametrize(("name", "stub", "given"), [*stubs()])
def test_a_stub_is_not_attempted(name, stub, given):
    result = check(name, stub, **given)
    assert result.passed is None
    assert "not attempted" in repr(result)
    assert "not attempted" in result._repr_html_()


@pytest.mark.parametrize(
    ("name", "answer", "words", "given", "hidden"), [*wrong_answers()]
)
def test_a_wrong_answer_gets_its_own_hint(name, answer, words, given, hidden):
    result = check(name, answer, **given)
    refuse(result, *words)
    assert not [solution for solution in hidden if solution in result.message]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chapter", "name"),
    [
        (test_exercises_02, "power_of_choice"),
        (test_exercises_02, "wrong_clients"),
        (answers_03, "low_frequencies"),
        (answers_03, "meta_step"),
    ],
)
def test_different_mistakes_get_different_messages(chapter, name):
    messages = {check(name, answer).message for answer, _ in chapter.WRONG[name]}
    assert len(messages) >= len({words for _, words in chapter.WRONG[name]})
