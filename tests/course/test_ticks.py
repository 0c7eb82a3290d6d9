"""Ticks: kept in a reader's copy, and nowhere else."""

import ast
import json
from types import SimpleNamespace

import nbformat
import pytest

from fedlab_course import exercises, ticks
from fedlab_course.chapter import Chapter
from fedlab_course.checking.calls import check_name, checks_in
from fedlab_course.editions import write
from fedlab_course.runner import NOTEBOOKS, find_chapters

RIGHT = {"b", "d", "g"}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A reader's folder in which chapter 00 runs; the content of its file."""
    kernel = SimpleNamespace(user_ns={"chapter": Chapter("00_tour", {})})
    monkeypatch.setattr(ticks, "get_ipython", lambda: kernel)
    monkeypatch.chdir(tmp_path)
    ticks.begin(tmp_path)
    return lambda: json.loads((tmp_path / ticks.FILE).read_text())


@pytest.mark.parametrize("chapter", find_chapters(), ids=lambda path: path.stem)
def test_the_exercises_are_those_of_the_chapter_in_their_order(chapter):
    cells = nbformat.read(chapter, as_version=4).cells
    stubs = [c for c in cells if "solution" not in c.metadata.get("tags", [])]
    code = [c.source for c in stubs if "exercises.check(" in c.source]
    found = [check_name(call) for text in code for call in checks_in(ast.parse(text))]
    assert ticks.EXERCISES[chapter.stem.partition("_")[0]].split() == found


def test_an_answer_that_passes_is_ticked_and_stays(copy):
    line = "Exercises of this chapter: ☐ 1 ☐ 2 ☑ 3 ☐ 4 ☐ 5 ☐ 6"
    result = exercises.check("dearer_round", RIGHT)
    assert result.ticks == line
    assert str(result).endswith(f"\n{line}") and line in result._repr_html_()
    exercises.check("dearer_round", {"a"})
    assert copy() == {"00": ["dearer_round"]}
    assert exercises.overview().splitlines()[0] == f"00  {line.partition(': ')[2]}"
    assert exercises.overview().count("☑") == 1


@pytest.mark.parametrize(
    ("answer", "how"), [({"a"}, {}), (..., {}), (RIGHT, {"solution": True})]
)
def test_nothing_else_is_ticked(copy, answer, how):
    assert exercises.check("dearer_round", answer, **how).ticks == ""
    assert copy() == {}


def test_an_exercise_of_another_chapter_is_not_ticked(copy):
    assert ticks.tick("cmi") == "" and copy() == {}


def test_a_folder_without_the_file_keeps_nothing(copy, tmp_path):
    (tmp_path / ticks.FILE).unlink()
    assert exercises.check("dearer_round", RIGHT).ticks == ""
    assert list(tmp_path.iterdir()) == []
    assert "your own copy" in exercises.overview()


def test_without_a_kernel_nothing_is_kept(copy, monkeypatch):
    monkeypatch.setattr(ticks, "get_ipython", lambda: None)
    assert exercises.check("dearer_round", RIGHT).ticks == "" and copy() == {}


def test_a_folder_that_cannot_be_written_is_no_error(copy, monkeypatch):
    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(ticks, "replacing", refuse)
    assert "☑ 3" in exercises.check("dearer_round", RIGHT).ticks
    assert copy() == {}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"00": 3}', "\x00"])
def test_a_damaged_file_counts_as_empty(copy, tmp_path, text):
    (tmp_path / ticks.FILE).write_text(text)
    assert exercises.overview().count("☑") == 0
    exercises.check("dearer_round", RIGHT)
    assert copy() == {"00": ["dearer_round"]}


def test_an_update_of_the_copy_keeps_the_ticks(copy, tmp_path):
    (chapter,) = find_chapters(["00"])
    for _ in range(2):
        write("copy", tmp_path / "mine", [chapter])
        file = tmp_path / "mine" / "notebooks" / ticks.FILE
        file.write_text('{"00": ["shares"]}')
    write("student", tmp_path / "mine", [chapter])
    assert json.loads(file.read_text()) == {"00": ["shares"]}


def test_teachers_and_the_repository_get_no_file(tmp_path):
    (chapter,) = find_chapters(["00"])
    write("instructor", tmp_path, [chapter])
    assert not (tmp_path / "notebooks" / ticks.FILE).exists()
    with pytest.raises(ValueError, match="holds the chapters themselves"):
        write("copy", NOTEBOOKS.parent, [chapter])
    assert not (NOTEBOOKS / ticks.FILE).exists()
