"""Editions of the chapters for a class, and what a class handed in.

    python -m fedlab_course.editions student --out build/student
    python -m fedlab_course.editions instructor --out build/instructor
    python -m fedlab_course.editions grade handed_in/*.ipynb --profile smoke

The *student* edition has no solutions: no cells tagged ``solution``, nothing between
``### BEGIN SOLUTION`` and ``### END SOLUTION``. It runs from top to bottom: an exercise
that is not done is "not attempted". The *instructor* edition shows every solution
unfolded, between markers with one ``#``, which nbgrader and otter read, too. *Grading*
executes what came back and makes one table of all checks; a file's name begins with its
chapter's, as in ``01_fedavg_ada.ipynb``. It runs code that others wrote: do that where
it does no harm.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nbformat
import pandas as pd
from nbconvert.preprocessors import TagRemovePreprocessor
from nbformat import NotebookNode

from fedlab_course.checking.exercise import MARKS

from .papermill_runner import execute, own_folders
from .runner import BUILD, NOTEBOOKS, find_chapters, profile

MARKED = re.compile(
    r"(?ms)^([ \t]*)#+ BEGIN SOLUTION\n.*?^[ \t]*#+ END SOLUTION[ \t]*$"
)
WRITTEN = ("figures", "runs")
MARKER = re.compile(r"(?m)^([ \t]*)#+ (BEGIN|END) SOLUTION[ \t]*$")
ABOUT_SOLUTIONS = "The solution is the next cell; unfold it when you have tried."
CELL_SECONDS = 600
"""The longest that a cell which was handed in may take."""
PASSED = {mark: passed for passed, mark in MARKS.items()}
"""What the mark before the name of an exercise says."""


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


EDITIONS: dict[str, Callable[[NotebookNode], NotebookNode]] = {
    "student": student,
    "instructor": instructor,
}


def write(edition: str, out: Path, chapters: Sequence[Path]) -> list[Path]:
    """Write chapters in an edition to ``out/notebooks``; their paths.

    What they show and read from ``figures`` is copied beside them.
    """
    written = []
    for chapter in chapters:
        target = out / "notebooks" / chapter.name
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


def answers(executed: NotebookNode) -> dict[str, tuple[bool | None, str]]:
    """What the checks of an executed notebook said: exercise → (passed, message).

    ``passed`` is None where the exercise was not attempted; of several checks of one
    exercise the last counts.
    """
    found = {}
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/plain", "")
            mark, _, rest = text.partition(" ")
            name, colon, message = rest.partition(": ")
            if "fl-exercise" in output.get("data", {}).get("text/html", "") and colon:
                found[name] = (PASSED[mark], message)
    return found


def grade(files: Sequence[Path], profile_name: str, out: Path) -> pd.DataFrame:
    """Execute notebooks that were handed in; a table with one row per check.

    Columns: file, chapter, exercise, passed ("yes", "no", "not attempted"), message. A
    notebook that does not run to its end, or has a cell that takes longer than
    ``CELL_SECONDS``, has one row, with the reason as message.
    """
    words, rows = {True: "yes", False: "no", None: "not attempted"}, []
    for file, chapter in _chapters_of(files).items():
        homes = {f"{what}_dir": out / what / file.stem for what in WRITTEN}
        shutil.rmtree(homes["runs_dir"], ignore_errors=True)  # of an earlier try
        try:
            params = profile(profile_name, chapter.stem)
            params |= own_folders(file, NOTEBOOKS, **homes)
            execute(file, out / file.name, params, CELL_SECONDS, cwd=NOTEBOOKS)
        except Exception as error:  # one row, whatever was handed in
            reason = f"stopped: {error or type(error).__name__}"
            rows.append((file.name, chapter.stem, "", "no", reason))
            continue
        said = answers(nbformat.read(out / file.name, as_version=4))
        rows += [
            (file.name, chapter.stem, name, words[passed], message)
            for name, (passed, message) in said.items()
        ]
    columns = ["file", "chapter", "exercise", "passed", "message"]
    return pd.DataFrame(rows, columns=columns)


def _chapters_of(files: Sequence[Path]) -> dict[Path, Path]:
    """Each file's chapter, whose name its own begins with.

    ValueError for no files, or for names that leave open what or whose one is.
    """
    if not files:
        raise ValueError("expected notebooks that were handed in, found none")
    chapters = {chapter.stem: chapter for chapter in find_chapters()}
    found = {}
    for file in files:
        fitting = [name for name in chapters if file.stem.startswith(name)]
        if not fitting:
            raise ValueError(
                f"expected a file named after one of {list(chapters)}, found "
                f"{file.name}; call it {min(chapters)}_<somebody>.ipynb"
            )
        if not file.is_file():
            raise ValueError(f"expected a notebook, found nothing at {file}")
        found[file] = chapters[max(fitting, key=len)]
    names = [file.name for file in files]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(
            f"expected files of different names, found {twice} more than once; call "
            "them <chapter>_<somebody>.ipynb"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write an edition, or grade; return 1 when something cannot be done."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.editions")
    parser.add_argument("what", choices=[*EDITIONS, "grade"])
    parser.add_argument("files", nargs="*", type=Path, help="handed in, to be graded")
    parser.add_argument("--chapters", nargs="+", default=(), metavar="01")
    parser.add_argument("--profile", default="smoke", help="size at which to grade")
    parser.add_argument("--out", type=Path, help="folder; default: build/<what>")
    chosen = parser.parse_args(arguments)
    out = chosen.out or BUILD / chosen.what
    try:
        if chosen.what != "grade":
            for file in write(chosen.what, out, find_chapters(chosen.chapters)):
                print(file)
            return 0
        table = grade(chosen.files, chosen.profile, out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "grades.csv", index=False)
    print(table.to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
