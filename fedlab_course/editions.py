"""Editions of the chapters for a class.

    python -m fedlab_course.editions student --out build/student
    python -m fedlab_course.editions instructor --out build/instructor
    python -m fedlab_course.editions copy --out build/copy

The *student* edition has no solutions: no cells tagged ``solution`` or
``about-solution`` (Markdown that reads a solution's result), nothing between
``### BEGIN SOLUTION`` and ``### END SOLUTION``. It still runs from top to bottom: an
exercise that was not attempted says so. The *instructor* edition has every solution in
the cell of its exercise, and is a source for ``nbgrader generate_assignment`` and for
``otter assign`` as it stands. A *copy* is for working in: a notebook that is there
already is never overwritten.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from nbconvert.preprocessors import TagRemovePreprocessor
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_raw_cell

from fedlab_support.core.files import replacing

from . import ticks
from .checking.calls import check_name, checks_in
from .runner import BUILD, find_chapters

MARKED = re.compile(
    r"(?ms)^([ \t]*)#+ BEGIN SOLUTION[ \t]*\n.*?^[ \t]*#+ END SOLUTION[ \t]*$"
)
MARKER = re.compile(r"(?m)^[ \t]*#+ (BEGIN|END) SOLUTION[ \t]*$")
ABOUT_SOLUTIONS = "The solution is the next cell; unfold it when you have tried."
NBGRADER = {"schema_version": 3, "task": False}
UNSHOWN = {"raw_mimetype": "text/x-otter"}
"""Of raw cells that HTML pages, such as nbgrader's feedback, leave out."""


def student(notebook: NotebookNode) -> NotebookNode:
    """The notebook without solutions; changed in place.

    Raises ValueError for a marker of a solution without its partner, with the cell.
    """
    tags = {"solution", "about-solution"}
    removal = TagRemovePreprocessor(remove_cell_tags=tags, enabled=True)
    notebook, _ = removal.preprocess(notebook, {})
    for cell in notebook.cells:
        cell.source = MARKED.sub(r"\1...", cell.source)
        _forget_solutions(cell)
        if MARKER.search(cell.source):
            raise ValueError(
                f"cell {cell.id}: a marker of a solution has no partner; write both "
                "### BEGIN SOLUTION and ### END SOLUTION, each on a line of its own"
            )
    return notebook


def instructor(notebook: NotebookNode) -> NotebookNode:
    """The notebook with each solution in its exercise's cell; changed in place.

    The raw cells around an exercise are otter's, the cells' metadata are nbgrader's.
    Both give one point for an answer that passes its check.
    """
    solutions = [c for c in notebook.cells if "solution" in c.metadata.get("tags", [])]
    solved = {check_name(call): cell for cell in solutions for call in _checks(cell)}
    cells = []
    for cell in notebook.cells:
        if cell in solutions:
            continue
        _forget_solutions(cell)
        calls = _checks(cell)
        cells += _question(cell, calls[0], solved) if calls else [cell]
    notebook.cells = cells
    return notebook


def _question(
    stub: NotebookNode, call: ast.Call, solved: dict[str, NotebookNode]
) -> list[NotebookNode]:
    """The cells of an exercise, in the forms of otter and of nbgrader."""
    name, answer = check_name(call), ast.unparse(call.args[1])
    solution = solved[name]
    (own,) = (other for other in _checks(solution) if check_name(other) == name)
    lines = stub.source.splitlines()
    before, check = lines[: call.lineno - 1], lines[call.lineno - 1 :]
    body = MARKER.sub("", solution.source, count=1).lstrip("\n")
    body = MARKER.sub(f"{answer} = {ast.unparse(own.args[1])}", body)
    # NO PROMPT: the stub above is the prompt
    answered = [*before, "# BEGIN SOLUTION NO PROMPT", body, "# END SOLUTION"]
    stub.source = "\n".join(answered)
    written = {"solution": True, "grade": False, "locked": False}
    stub.metadata.nbgrader = NBGRADER | written | {"grade_id": f"answer-{name}"}
    test = new_code_cell("\n".join(check) + ".expect()", id=f"{stub.id}-check"[:64])
    graded = {"solution": False, "grade": True, "locked": True, "points": 1}
    test.metadata.nbgrader = NBGRADER | graded | {"grade_id": f"check-{name}"}
    marks = [  # in lower case, which otter reads and nbgrader does not
        f"begin question\nname: {name}\npoints: 1",
        *("begin solution", "end solution", "begin tests", "end tests", "end question"),
    ]
    raw = [
        new_raw_cell(f"# {mark}", id=f"{stub.id}-otter-{k}"[:64], metadata=UNSHOWN)
        for k, mark in enumerate(marks)
    ]
    return [*raw[:2], stub, *raw[2:4], test, *raw[4:]]


def _checks(cell: NotebookNode) -> list[ast.Call]:
    """The checks of exercises in a code cell."""
    is_check = cell.cell_type == "code" and "exercises.check(" in cell.source
    return list(checks_in(ast.parse(cell.source))) if is_check else []


def _forget_solutions(cell: NotebookNode) -> None:
    """Remove the sentence that points to the solution."""
    if cell.cell_type == "markdown":
        cell.source = cell.source.replace(ABOUT_SOLUTIONS, "").rstrip()


EDITIONS: dict[str, Callable[[NotebookNode], NotebookNode]] = {
    "student": student,
    "instructor": instructor,
    "copy": lambda notebook: notebook,
}


def write(edition: str, out: Path, chapters: Sequence[Path]) -> list[Path]:
    """Write chapters in an edition to ``out/notebooks``; return their paths.

    What they show and read from ``figures`` is copied beside them. A copy leaves out
    the chapters that ``out`` has already. Copies and chapters for students keep ticks
    for exercises that pass; a file that has some is left as it is.
    Raises ValueError if ``out`` holds the chapters themselves.
    """
    written, home = [], chapters[0].parent
    if (out / "notebooks").resolve() == home.resolve():
        raise ValueError(f"{out} holds the chapters themselves; name another folder")
    for chapter in chapters:
        target = out / "notebooks" / chapter.name
        if edition == "copy" and target.exists():
            continue
        notebook = EDITIONS[edition](nbformat.read(chapter, as_version=4))
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:  # half a copy would stay one
            nbformat.write(notebook, part)
        shown = home.parent / "figures" / chapter.stem
        if shown.is_dir():
            shutil.copytree(shown, out / "figures" / chapter.stem, dirs_exist_ok=True)
        text = "\n".join(cell.source for cell in notebook.cells)
        for name in re.findall(r"\.\./(figures/[\w/]+\.\w+)", text):
            file = home.parent / name
            if shown not in file.parents and file.exists():  # of other chapters
                (out / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, out / name)
        written.append(target)
    profiles = home / "profiles"
    shutil.copytree(profiles, out / "notebooks" / "profiles", dirs_exist_ok=True)
    if edition != "instructor":
        ticks.begin(out / "notebooks")
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Write an edition; the exit code is 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.editions")
    parser.add_argument("edition", choices=EDITIONS)
    parser.add_argument("--chapters", nargs="+", default=(), metavar="01")
    parser.add_argument("--out", type=Path, help="folder; default: build/<edition>")
    chosen = parser.parse_args(arguments)
    out = chosen.out or BUILD / chosen.edition
    try:
        for file in write(chosen.edition, out, find_chapters(chosen.chapters)):
            print(file)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
