"""Editions: students get no solution, teachers see all; grades are what checks said."""

import ast
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from fedlab_course import grading
from fedlab_course.editions import instructor, student, write
from fedlab_course.grading import answers, grade
from fedlab_course.papermill_runner import execute
from fedlab_course.runner import NOTEBOOKS, find_chapters, profile

CHAPTERS = find_chapters()
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


@pytest.mark.parametrize("sign", ["### BEGIN SOLUTION", "### END SOLUTION"])
def test_a_marker_without_its_partner_is_refused(sign):
    notebook = one_cell(f"x = 1\n{sign}\ny = 2")
    with pytest.raises(ValueError, match=f"{notebook.cells[0].id}.*no partner"):
        student(notebook)


@each_chapter
def test_a_student_sees_no_solution_and_everything_else(chapter):
    whole, without = read(chapter), student(read(chapter))
    solved = [c for c in whole.cells if "solution" in c.metadata.get("tags", [])]
    assert len(without.cells) == len(whole.cells) - len(solved)
    kept = {cell.id for cell in without.cells}
    assert kept == {c.id for c in whole.cells} - {c.id for c in solved}
    text = "\n".join(cell.source for cell in without.cells)
    assert "SOLUTION" not in text
    assert "solution is the next cell" not in text
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
    assert failed <= {"comparison"}  # smoke has too few seeds for some


@pytest.mark.slow
def test_the_student_edition_runs_where_it_is_written(tmp_path):
    (chapter,) = find_chapters(["00"])
    (copy,) = write("student", tmp_path, [chapter])
    execute(copy, tmp_path / "executed.ipynb", profile("smoke", chapter.stem))
    assert answers(read(tmp_path / "executed.ipynb"))


@each_chapter
def test_files_that_a_chapter_reads_come_along(chapter, tmp_path):
    (copy,) = write("student", tmp_path, [chapter])
    code = "\n".join(c.source for c in read(copy).cells if c.cell_type == "code")
    for file in re.findall(r"\.\./figures/[\w/]+\.\w+", code):
        assert (copy.parent / file).exists()


# ---- teachers -----------------------------------------------------------------------
@each_chapter
def test_an_instructor_sees_every_cell_unfolded(chapter):
    notebook = instructor(read(chapter))
    sources = [cell.source.replace("### ", "# ") for cell in notebook.cells]
    assert sources == [c.source.replace("### ", "# ") for c in read(chapter).cells]
    hidden = [c for c in notebook.cells if "jupyter" in c.metadata]
    assert not [c for c in hidden if "solution" in c.metadata.get("tags", [])]


@each_chapter
def test_nbgrader_and_otter_find_the_solutions_of_the_instructor_edition(chapter):
    for cell in instructor(read(chapter)).cells:
        lines = [line for line in cell.source.splitlines() if "SOLUTION" in line]
        # nbgrader: the words; otter: the line begins so, or ends so
        assert all(re.match(r"\s*# (BEGIN|END) SOLUTION$", line) for line in lines)
        assert [line.split()[1] for line in lines] in ([], ["BEGIN", "END"])


def test_pictures_and_profiles_come_along(tmp_path):
    files = write("instructor", tmp_path, CHAPTERS[:1])
    text = "\n".join(cell.source for cell in read(files[0]).cells)
    links = [part.partition(")")[0] for part in text.split("](")[1:]]
    pictures = [link for link in links if link.endswith(".png")]
    assert all((files[0].parent / link).exists() for link in pictures)
    assert (tmp_path / "notebooks" / "profiles" / "smoke.yaml").exists()


# ---- grades -------------------------------------------------------------------------
def shown(text: str, is_exercise: bool = True):
    page = "<p class='fl-exercise'>" if is_exercise else "<p>"
    data = {"text/plain": text, "text/html": page}
    return new_output("execute_result", data=data)


def test_of_several_checks_of_one_exercise_the_last_counts():
    texts = ["… mean: not attempted", "✘ mean: too high: 3", "✔ bytes: right"]
    outputs = [shown(text) for text in texts] + [shown("✔ no: exercise", False)]
    cells = [new_markdown_cell("text"), new_code_cell("", outputs=outputs)]
    assert answers(new_notebook(cells=cells)) == {
        "mean": (False, "too high: 3"),
        "bytes": (True, "right"),
    }


@pytest.mark.slow
def test_grades_of_a_class(tmp_path, monkeypatch):
    source = NOTEBOOKS / "00_tour.ipynb"
    (tmp_path / "in").mkdir()
    ada, bob, eve = (
        tmp_path / "in" / f"00_tour_{n}.ipynb" for n in ("ada", "bob", "eve")
    )
    shutil.copy(source, ada)
    nbformat.write(student(read(source)), bob)
    broken = student(read(source))
    broken.cells[1:] = [*broken.cells[1:8], new_code_cell("1 / 0")]
    nbformat.write(broken, eve)
    table = grade([ada, bob, eve], "smoke", tmp_path / "out")
    assert list(table["file"].unique()) == [ada.name, bob.name, eve.name]
    passed = table.groupby("file")["passed"].agg(set)
    assert passed[ada.name] == {"yes"}
    assert passed[bob.name] == {"not attempted"}
    assert passed[eve.name] == {"no"}
    assert "stopped" in table[table["file"] == eve.name]["message"].item()
    assert not (tmp_path / "in" / "build").exists()


@pytest.mark.slow
def test_a_cell_without_an_end_does_not_hold_up_grading(tmp_path, monkeypatch):
    monkeypatch.setattr(grading, "CELL_SECONDS", 3)
    endless = student(read(NOTEBOOKS / "00_tour.ipynb"))
    endless.cells[:] = [*endless.cells[:3], new_code_cell("while True:\n    pass")]
    nbformat.write(endless, tmp_path / "00_tour_max.ipynb")
    table = grade([tmp_path / "00_tour_max.ipynb"], "smoke", tmp_path / "out")
    assert table["passed"].tolist() == ["no"]
    assert (
        "cell 4: interrupted, as a cell is that takes longer" in table["message"].item()
    )


def test_files_that_cannot_be_told_apart_are_refused_before_any_runs(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(grading, "execute", None)
    for owner in ("ada", "bob"):
        (tmp_path / owner).mkdir()
        (tmp_path / owner / "01_fedavg.ipynb").write_text("{}")
    ada, bob = (tmp_path / who / "01_fedavg.ipynb" for who in ("ada", "bob"))
    gone, other = tmp_path / "01_fedavg_eve.ipynb", tmp_path / "homework.ipynb"
    refused = {"more than once": [ada, bob], "found nothing": [ada, gone]}
    refused |= {"found none": [], "named after one of": [ada, other]}
    for words, files in refused.items():
        with pytest.raises(ValueError, match=words):
            grade(files, "smoke", tmp_path / "out")


def test_what_is_no_notebook_has_a_row_and_the_others_are_graded(tmp_path, monkeypatch):
    def one_check(file, out, *_, **__):
        nbformat.read(file, as_version=4)
        nbformat.write(new_notebook(), out)

    monkeypatch.setattr(grading, "execute", one_check)
    names = ("01_fedavg_ada", "01_fedavg_bob", "01_fedavg_eve")
    ada, bob, eve = (tmp_path / f"{name}.ipynb" for name in names)
    ada.write_text("[]")
    bob.write_text("no JSON")
    shutil.copy(NOTEBOOKS / "01_fedavg.ipynb", eve)
    (tmp_path / "out" / "runs" / eve.stem).mkdir(parents=True)
    table = grade([ada, bob, eve], "smoke", tmp_path / "out")
    assert table["file"].tolist() == [ada.name, bob.name]
    assert table["message"].str.startswith("stopped: ").all()
    assert not (tmp_path / "out" / "runs" / eve.stem).exists(), "an earlier try's"


def test_a_file_that_is_no_chapters_is_refused_and_the_table_is_written(
    tmp_path, monkeypatch, capsys
):
    with pytest.raises(SystemExit):
        grading.main(["my_homework.ipynb", "--out", str(tmp_path)])
    assert "01_fedavg" in capsys.readouterr().err
    row = pd.DataFrame([("a.ipynb", "01", "mean", "yes", "right")])
    monkeypatch.setattr(grading, "grade", lambda *_: row)
    assert grading.main(["a.ipynb", "--out", str(tmp_path)]) == 0
    assert "right" in (tmp_path / "grades.csv").read_text()
