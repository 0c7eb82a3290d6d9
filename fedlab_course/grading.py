"""Grade notebooks that were handed in.

    python -m fedlab_course.grading handed_in/*.ipynb --profile smoke

Every notebook is executed, and all its checks go into one table, ``grades.csv``. The
name of a file begins with that of its chapter, as in ``01_fedavg_ada.ipynb``. Grading
runs code that others wrote, so run it where that can do no harm.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pandas as pd
from nbformat import NotebookNode

from .checking.exercise import MARKS
from .papermill_runner import execute, own_folders
from .runner import BUILD, NOTEBOOKS, find_chapters, profile

FOLDERS = ("figures", "runs")
"""What a chapter writes; each notebook gets folders of its own."""
CELL_SECONDS = 600
"""Time limit of a cell."""
PASSED = {mark: passed for passed, mark in MARKS.items()}
"""The mark in front of an exercise's name → whether it passed."""


def answers(executed: NotebookNode) -> dict[str, tuple[bool | None, str]]:
    """Results of the checks in an executed notebook: exercise → (passed, message).

    ``passed`` is None if the exercise was not attempted. If an exercise was checked
    several times, the last check counts.
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
    """Execute notebooks and return a table with one row per check.

    Columns: file, chapter, exercise, passed ("yes", "no", "not attempted"), message. A
    notebook that fails, or has a cell that exceeds ``CELL_SECONDS``, has one row with
    the reason as message.
    """
    words, rows = {True: "yes", False: "no", None: "not attempted"}, []
    for file, chapter in _chapters_of(files).items():
        homes = {f"{what}_dir": out / what / file.stem for what in FOLDERS}
        shutil.rmtree(homes["runs_dir"], ignore_errors=True)  # of an earlier attempt
        try:
            params = profile(profile_name, chapter.stem)
            params |= own_folders(file, NOTEBOOKS, **homes)
            execute(file, out / file.name, params, CELL_SECONDS, cwd=NOTEBOOKS)
        except Exception as error:  # one row, whatever the notebook does
            reason = f"stopped: {error or type(error).__name__}"
            rows.append((file.name, chapter.stem, "", "no", reason))
            continue
        results = answers(nbformat.read(out / file.name, as_version=4))
        rows += [
            (file.name, chapter.stem, name, words[passed], message)
            for name, (passed, message) in results.items()
        ]
    columns = ["file", "chapter", "exercise", "passed", "message"]
    return pd.DataFrame(rows, columns=columns)


def _chapters_of(files: Sequence[Path]) -> dict[Path, Path]:
    """The chapter of each file, with whose name the file's name begins.

    Raises ValueError if there are no files, or if a chapter or student is ambiguous.
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
    """Grade the files that the command line names; the exit code is 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.grading")
    parser.add_argument("files", nargs="*", type=Path, help="notebooks to grade")
    parser.add_argument("--profile", default="smoke", help="size at which to grade")
    parser.add_argument("--out", type=Path, help="folder; default: build/grade")
    chosen = parser.parse_args(arguments)
    out = chosen.out or BUILD / "grade"
    try:
        table = grade(chosen.files, chosen.profile, out)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    out.mkdir(parents=True, exist_ok=True)
    table.to_csv(out / "grades.csv", index=False)
    print(table.to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
