"""Editions: students get no solution, teachers see all of them."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_code_cell, new_notebook

from fedlab_course.editions import instructor, student, write
from fedlab_course.exercises import check
from fedlab_course.papermill_runner import execute
from fedlab_course.runner import find_chapters, profile
from tests.course.executed import answers

CHAPTERS = find_chapters()
MARKED_CODE = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
MARKED = """
def f(x):
    ### BEGIN SOLUTION
    y = x + 1
    return y
    ### END SOLUTION

f(1)
"""


def one_cell(source: str, tags=()):
    return new_notebook(cells=[new_code_cell(source, metadata={"tags": list(tags)})])


def read(chapter: Path):
    return nbformat.read(chapter, as_version=4)


# ---- students -----------------------------------------------------------------------
def test_what_stands_between_markers_becomes_three_dots_at_its_indent():
    (cell,) = student(one_cell(MARKED)).cells
    assert cell.source == "\ndef f(x):\n    ...\n\nf(1)\n"
    spaced = one_cell(MARKED.replace("BEGIN SOLUTION", "BEGIN SOLUTION  "))
    assert student(spaced).cells[0].source == cell.source


@pytest.mark.parametrize("sign", ["### BEGIN SOLUTION", "### END SOLUTION"])
def test_a_marker_without_its_partner_is_refused(sign):
    notebook = one_cell(f"x = 1\n{sign}\ny = 2")
    with pytest.raises(ValueError, match=f"{notebook.cells[0].id}.*no partner"):
        student(notebook)


@each_chapter
def test_a_student_sees_no_solution_and_everything_else(chapter):
    whole, without = read(chapter), student(read(chapter))
    tags = {"solution", "about-solution"}
    solved = [c for c in whole.cells if tags & set(c.metadata.get("tags", []))]
    assert len(without.cells) == len(whole.cells) - len(solved)
    kept = {cell.id for cell in without.cells}
    assert kept == {c.id for c in whole.cells} - {c.id for c in solved}
    text = "\n".join(cell.source for cell in without.cells)
    assert "SOLUTION" not in text
    told = r"solution is (in )?the next|folded solution|solutions are|our solution"
    assert not re.search(told, text)
    for cell in solved:
        inside = cell.source.partition("### BEGIN SOLUTION\n")[2]
        inside = inside.partition("### END SOLUTION")[0]
        lines = [line.strip() for line in inside.splitlines() if len(line) > 30]
        assert not any(line in text for line in lines if line.startswith("return"))


def names(cells, is_wanted) -> set[str]:
    """Names in the code of cells whose node passes a test."""
    trees = [ast.parse(c.source) for c in cells if not c.source.startswith("%%")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    found = {getattr(n, "id", getattr(n, "name", None)) for n in nodes if is_wanted(n)}
    return found - {None}


def is_made(node) -> bool:
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store)
    return isinstance(node, ast.FunctionDef | ast.ClassDef)


@pytest.mark.slow
@each_chapter
def test_no_later_cell_needs_what_only_a_solution_makes(chapter):
    cells = [c for c in read(chapter).cells if c.cell_type == "code"]
    solved = [c for c in cells if "solution" in c.metadata.get("tags", [])]
    rest = [c for c in cells if c not in solved]
    used = names(rest, lambda n: isinstance(n, ast.Name) and not is_made(n))
    assert (names(solved, is_made) - names(rest, is_made)) & used == set()


@pytest.mark.slow
@each_chapter
def test_students_find_nothing_attempted_and_solutions_pass(chapter, smoke_run):
    executed = smoke_run(chapter).notebook
    before, after = answers(student(read(executed))), answers(read(executed))
    assert before and {passed for passed, _ in before.values()} == {None}
    assert before.keys() == after.keys()
    failed = {name for name, (passed, _) in after.items() if not passed}
    assert failed <= {"comparison"}
    for name in failed:  # smoke has too few seeds for some
        assert "to see the spread you need at least three seeds; " in after[name][1]


@each_chapter
def test_files_that_a_chapter_reads_or_links_come_along(chapter, tmp_path):
    (copy,) = write("student", tmp_path, [chapter])
    text = "\n".join(cell.source for cell in read(copy).cells)
    for file in re.findall(r"\.\./figures/[\w/]+\.\w+", text):
        assert (copy.parent / file).exists()


# ---- teachers -----------------------------------------------------------------------
@each_chapter
def test_an_instructor_has_each_solution_in_its_exercise(chapter):
    whole, notebook = read(chapter), instructor(read(chapter))
    solved = [c for c in whole.cells if "solution" in c.metadata.get("tags", [])]
    answers = [
        c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution")
    ]
    assert len(answers) == len(solved) >= 4
    for cell, solution in zip(answers, solved, strict=True):
        stub = next(c.source for c in whole.cells if c.id == cell.id)
        stub = stub.partition("exercises.check")[0]
        assert cell.source.startswith(stub)
        lines = [line for line in solution.source.splitlines() if line[:1] != "#"]
        assert set(lines) <= set(cell.source.splitlines())
    others = {c.id for c in whole.cells} - {c.id for c in solved}
    assert others <= {c.id for c in notebook.cells}
    nbformat.validate(notebook)


@pytest.mark.slow
def test_pages_of_the_instructor_edition_leave_out_the_marks_for_otter():
    page, _ = HTMLExporter().from_notebook_node(instructor(read(CHAPTERS[1])))
    assert "fedavg_update" in page and "begin question" not in page


def test_expecting_a_pass_raises_for_graders_unless_it_is_one():
    small = {"sizes": {3: 1, 5: 3}, "cohort": [3, 5]}
    assert check("shares", {3: 0.25, 5: 0.75}, **small).expect() is None
    for answer, reason in (({3: 0.5, 5: 0.5}, "counts the same"), (..., "attempted")):
        with pytest.raises(AssertionError, match=f"shares: .*{reason}"):
            check("shares", answer, **small).expect()


@pytest.mark.slow
def test_the_instructor_edition_runs_and_every_answer_is_expected_to_pass(tmp_path):
    (file,) = write("instructor", tmp_path, find_chapters(["00"]))
    execute(file, tmp_path / "executed.ipynb", profile("smoke", file.stem))
    code = "\n".join(cell.source for cell in read(tmp_path / "executed.ipynb").cells)
    assert code.count(".expect()") >= 6, "one that raises would have stopped the run"


def released_by(tool: str, chapters: list[Path], home: Path) -> list[Path]:
    """What a tool makes for students of the instructor edition, as it stands."""
    pytest.importorskip(tool, reason=f"{tool} is not installed: pip install '.[dev]'")
    folder = home / "source" / "course"
    folder.mkdir(parents=True)
    for file in write("instructor", home / "edition", chapters):
        shutil.copy(file, folder)
    bin_folder = str(Path(sys.executable).parent)  # nbgrader calls alembic
    env = os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"}
    if tool == "nbgrader":
        (home / "nbgrader_config.py").write_text("", encoding="utf-8")
        commands = [["nbgrader", "generate_assignment", "course", "--create"]]
    else:
        commands = [
            ["otter", "assign", "--no-run-tests", f"source/course/{c.name}", c.stem]
            for c in chapters
        ]
    for name, *rest in commands:
        command = [sys.executable, "-m", name, *rest]
        done = subprocess.run(
            command, cwd=home, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    found = [*home.glob("release/course/*.ipynb"), *home.glob("*/student/*.ipynb")]
    assert [file.name for file in sorted(found)] == [file.name for file in chapters]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "chosen"), [("nbgrader", CHAPTERS), ("otter", CHAPTERS[:1])]
)
def test_graders_accept_the_instructor_edition_as_it_stands(tool, chosen, tmp_path):
    for file in released_by(tool, chosen, tmp_path):
        chapter = next(c for c in chosen if c.name == file.name)
        text = "\n".join(cell.source for cell in read(file).cells)
        shown = "\n".join(cell.source for cell in student(read(chapter)).cells)
        for cell in read(chapter).cells:
            if "solution" in cell.metadata.get("tags", []):
                inside = MARKED_CODE.search(cell.source)[1].splitlines()
                inside = [x for x in inside if len(x) > 30 and x not in shown]
                assert not [x for x in inside if x in text]
            for name in re.findall(r'check\("(\w+)", my', cell.source):
                mark = "check" if tool == "nbgrader" else "grader.check"
                assert f'{mark}("{name}"' in text


def test_pictures_and_profiles_come_along(tmp_path):
    files = write("instructor", tmp_path, CHAPTERS[:1])
    text = "\n".join(cell.source for cell in read(files[0]).cells)
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    pictures = [link for link in links if link.endswith(".png")]
    assert all((files[0].parent / link).exists() for link in pictures)
    assert (tmp_path / "notebooks" / "profiles" / "smoke" / "00_tour.yaml").exists()


def test_a_copy_to_work_in_is_never_overwritten(tmp_path):
    (file,) = write("copy", tmp_path, CHAPTERS[:1])
    assert file.read_text() == CHAPTERS[0].read_text()
    file.write_text("my answers")
    assert write("copy", tmp_path, CHAPTERS[:1]) == []
    assert file.read_text() == "my answers"


def test_half_a_copy_is_none(tmp_path, monkeypatch):
    def full(notebook, file):
        file.write_text("half")
        raise OSError("No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(nbformat, "write", full)
        with pytest.raises(OSError, match="No space"):
            write("copy", tmp_path, CHAPTERS[:1])
    assert write("copy", tmp_path, CHAPTERS[:1])


@pytest.mark.parametrize("edition", ["student", "instructor", "copy"])
def test_no_edition_is_written_over_the_chapters_themselves(tmp_path, edition):
    (file,) = write("copy", tmp_path, CHAPTERS[:1])
    with pytest.raises(ValueError, match="holds the chapters themselves"):
        write(edition, tmp_path, [file])
    assert file.read_text() == CHAPTERS[0].read_text()
