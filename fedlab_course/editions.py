"""Editions of the chapters for a class.

    python -m fedlab_course.editions student --out build/student
    python -m fedlab_course.editions instructor --out build/instructor
    python -m fedlab_course.editions copy --out build/copy

The *student* edition has no solutions: no cells tagged ``solution``, nothing between
``### BEGIN SOLUTION`` and ``### END SOLUTION``. It still runs from top to bottom: an
exercise that was not attempted says so. The *instructor* edition shows every solution
unfolded, between markers with one ``#`` that nbgrader and otter read as well. A *copy*
is for working in: a notebook that is there already is never overwritten.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
from nbconvert.preprocessors import TagRemovePreprocessor
from nbformat import NotebookNode

from .runner import BUILD, find_chapters

MARKED = re.compile(
    r"(?ms)^([ \t]*)#+ BEGIN SOLUTION\n.*?^[ \t]*#+ END SOLUTION[ \t]*$"
)
MARKER = re.compile(r"(?m)^([ \t]*)#+ (BEGIN|END) SOLUTION[ \t]*$")
ABOUT_SOLUTIONS = "The solution is the next cell; unfold it when you have tried."


def student(notebook: NotebookNode) -> NotebookNode:
    """The notebook without solutions; changed in place.

    Raises ValueError for a marker of a solution without its partner, with the cell.
    """
    removal = TagRemovePreprocessor(remove_cell_tags={"solution"}, enabled=True)
    notebook, _ = removal.preprocess(notebook, {})
    for cell in notebook.cells:
        cell.source = MARKED.sub(r"\1...", cell.source)
        if cell.cell_type == "markdown":
            cell.source = cell.source.replace(ABOUT_SOLUTIONS, "").rstrip()
        if MARKER.search(cell.source):
            raise ValueError(
                f"cell {cell.id}: a marker of a solution has no partner; write both "
                "### BEGIN SOLUTION and ### END SOLUTION, each on a line of its own"
            )
    return notebook


def instructor(notebook: NotebookNode) -> NotebookNode:
    """The notebook with every solution unfolded; changed in place."""
    for cell in notebook.cells:
        cell.source = MARKER.sub(r"\1# \2 SOLUTION", cell.source)
        if "solution" in cell.metadata.get("tags", []):
            cell.metadata.pop("jupyter", None)
    return notebook


def copy(notebook: NotebookNode) -> NotebookNode:
    """The notebook as it is."""
    return notebook


EDITIONS: dict[str, Callable[[NotebookNode], NotebookNode]] = {
    "student": student,
    "instructor": instructor,
    "copy": copy,
}


def write(edition: str, out: Path, chapters: Sequence[Path]) -> list[Path]:
    """Write chapters in an edition to ``out/notebooks``; return their paths.

    What they show and read from ``figures`` is copied beside them. A copy leaves out
    the chapters that ``out`` has already.
    """
    written = []
    for chapter in chapters:
        target = out / "notebooks" / chapter.name
        if edition == "copy" and target.exists():
            continue
        notebook = EDITIONS[edition](nbformat.read(chapter, as_version=4))
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
        shown = chapter.parent.parent / "figures" / chapter.stem
        if shown.is_dir():
            shutil.copytree(shown, out / "figures" / chapter.stem, dirs_exist_ok=True)
        written.append(target)
    profiles = chapters[0].parent / "profiles"
    shutil.copytree(profiles, out / "notebooks" / "profiles", dirs_exist_ok=True)
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
