"""Grade notebooks that were handed in.

    python -m fedlab_course.grading handed_in/*.ipynb --profile smoke

The name of a file begins with that of its chapter, as in ``01_fedavg_ada.ipynb``. The
answers are taken out of each notebook and checked in a process of its own, with a fresh
copy of the course, an empty environment, and limits on time, memory, the size of files
and, where the system allows it, without a network. What a notebook displays does not
count. All results go into one table, ``grades.csv``.

This stops accidents and simple tricks. Code that is written to attack the grader runs
in the process that judges it: it can forge its own verdicts, and read what your account
can read. Look at answers that you do not trust, and use a container.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from nbformat import NotebookNode

from fedlab_support.engines.flower import cleanup

from ..checking.calls import check_name
from ..editions import student
from ..papermill_runner import FOLDERS, own_folders
from ..papermill_runner import check as check_parameters
from ..runner import BUILD, COURSE, NOTEBOOKS, PACKAGES, find_chapters, profile
from . import judge
from .answers import Statement, names_in, needed, statements

COLUMNS = ["file", "chapter", "exercise", "passed", "message"]
WORDS = {True: "yes", False: "no", None: "not attempted"}
SECONDS = 600
"""Time limit of a notebook."""
MEMORY, FILE_SIZE, NOTEBOOK_SIZE = 8 * judge.GIGABYTE, 2**28, 2**25
"""Limits in bytes: of the address space, of a file that is written, of a notebook."""
LONGEST = 2000
"""Characters of a message."""
OUTPUTS, WRITTEN = ("figures_dir", "runs_dir"), NOTEBOOKS / "written"
"""Where a chapter writes: a folder beside it, in the copy that is deleted."""
ISOLATED = (
    *("unshare", "--map-root-user", "--net", "--pid", "--mount-proc"),
    *("--fork", "--kill-child"),
)
"""No network, and no process outlives the first: Linux, where users may do this."""


def grade(files: Sequence[Path], profile_name: str, out: Path) -> pd.DataFrame:
    """Check the answers in notebooks; one row per exercise of their chapters.

    Columns: file, chapter, exercise, passed ("yes", "no", "not attempted"), message. A
    file that cannot be read has one row with the reason.
    out: where the table will be written.
    Raises ValueError for an unknown profile, for files that cannot be told apart, and
    when the table would be written among the files that were handed in.
    """
    chapters = _chapters_of(files)
    if any(file.resolve().parent == out.resolve() for file in files):
        raise ValueError(
            f"expected another folder for results than {out}, which holds files that "
            "were handed in; choose one with --out"
        )
    params = {c: _parameters(profile_name, c) for c in set(chapters.values())}
    rows = []
    for file, chapter in chapters.items():
        try:
            verdicts = list(_graded(file, chapter, params[chapter]))
        except Exception as error:  # one row, whatever the file holds
            reason = f"cannot be graded: {type(error).__name__}: {error}"
            verdicts = [("", False, reason)]
        rows += [
            (file.name, chapter.stem, name, WORDS[passed], _harmless(message))
            for name, passed, message in verdicts
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _parameters(profile_name: str, chapter: Path) -> dict[str, Any]:
    """A profile's parameters but its seeds: experiments are judged by the chapter's."""
    params = profile(profile_name, chapter.stem)
    params = {n: value for n, value in params.items() if not n.endswith("seeds")}
    check_parameters(chapter, params)
    return params


def _graded(file: Path, chapter: Path, params: dict[str, Any]) -> Iterator[tuple]:
    """Exercise, passed and message for each exercise of the chapter."""
    if (size := file.stat().st_size) > NOTEBOOK_SIZE:
        raise ValueError(f"expected at most {NOTEBOOK_SIZE:,} bytes, found {size:,}")
    with tempfile.TemporaryDirectory(prefix="fedlab_grading_") as home:
        original = student(nbformat.read(chapter, as_version=4))
        sizes = _parameters_cell(original, chapter, params)
        known = {cell.source for cell in original.cells}
        handed_in = nbformat.read(file, as_version=4)
        for notebook in (original, handed_in):
            for cell in notebook.cells:
                if "parameters" in cell.metadata.get("tags", []):
                    cell.source = sizes
        ours = statements(original, lambda cell: False)
        theirs = statements(handed_in, lambda cell: cell.source not in {*known, sizes})
        task = _task(ours, theirs)
        verdicts, end = _judged(task, chapter, Path(home))
    asked = {line[3] for line in task["program"] if len(line) > 3}
    for name in task["facts"]:
        if name in verdicts:
            yield name, *verdicts[name]
        elif name in asked:
            yield name, False, end
        else:
            yield name, None, "the notebook does not check an answer to this exercise"


def _parameters_cell(
    original: NotebookNode, chapter: Path, params: dict[str, Any]
) -> str:
    """The source of the chapter's cell of parameters, with those of the profile."""
    params = params | own_folders(chapter, NOTEBOOKS, **dict.fromkeys(OUTPUTS, WRITTEN))
    (cell,) = (
        cell for cell in original.cells if "parameters" in cell.metadata.get("tags", [])
    )
    lines = [f"{name} = {value!r}" for name, value in params.items()]
    return "\n".join([cell.source, *lines])


def _task(ours: list[Statement], theirs: list[Statement]) -> dict[str, Any]:
    """What `judge.judge` is asked to do: statements as source, cell and index."""
    facts, given = {}, set()
    for position, statement in enumerate(ours):
        for call in statement.checks:
            kept = ast.Call(ast.Name("dict"), [], call.keywords)
            facts[check_name(call)] = ast.unparse(kept)
            given |= needed(ours[:position], names_in(kept) - {"dict"})
    program, chosen = [], set()
    for position, statement in enumerate(theirs):
        for call in statement.checks:
            chosen |= needed(theirs[:position], names_in(call.args[1]))
    for position, statement in enumerate(theirs):
        line = [statement.source, statement.cell, statement.index]
        program += [line] * (position in chosen)
        for call in statement.checks:
            if check_name(call) in facts:
                program.append([*line, check_name(call), ast.unparse(call.args[1])])
    lines = [[s.source, s.cell, s.index] for k, s in enumerate(ours) if k in given]
    return {"given": lines, "facts": facts, "program": program}


def _judged(
    task: dict[str, Any], chapter: Path, home: Path
) -> tuple[dict[str, tuple[bool | None, str]], str]:
    """The verdicts by exercise, and how the process ended; its files go to `home`."""
    for package in PACKAGES:
        skipped = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, home / package.name, ignore=skipped)
    shown = NOTEBOOKS.parent / "figures" / chapter.stem
    if shown.is_dir():
        shutil.copytree(shown, home / "figures" / chapter.stem)
    (home / "notebooks").mkdir()
    token = secrets.token_hex()
    limits = {"token": token, "memory": MEMORY, "file_size": FILE_SIZE}
    script = home / COURSE.name / "grading" / "judge.py"
    process = subprocess.Popen(
        [*_isolation(), sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=home / "notebooks",
        env=_environment(home),
        start_new_session=True,
    )
    try:
        text, _ = process.communicate(json.dumps(task | limits).encode(), SECONDS)
        end = f"the notebook ended its own process (exit status {process.returncode})"
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        text, _ = process.communicate()
        end = f"stopped: the notebook took longer than {SECONDS} seconds"
    finally:
        cleanup.end(str(home))
    verdicts = {}
    for line in text.decode(errors="replace").splitlines():
        with suppress(ValueError):
            given, name, passed, message = json.loads(line)
            if given == token and name in task["facts"]:
                verdicts[name] = passed, message
    return verdicts, end


@functools.cache
def _isolation() -> tuple[str, ...]:
    """The beginning of a command that runs without a network; empty if it cannot."""
    if shutil.which(ISOLATED[0]) is None:
        return ()
    tried = subprocess.run([*ISOLATED, "true"], capture_output=True)
    return () if tried.returncode else ISOLATED


def _environment(home: Path) -> dict[str, str]:
    """Variables of the grader that a notebook may see, and a home of its own."""
    kept = {n: str(Path(os.environ[n]).resolve()) for n in FOLDERS if os.environ.get(n)}
    own = {name: str(home) for name in ("HOME", "TMPDIR", cleanup.MARK)}
    return kept | own | {"PATH": os.defpath, "MPLBACKEND": "agg", "LANG": "C.UTF-8"}


def _harmless(message: str) -> str:
    """A message that no spreadsheet takes for a formula."""
    message = "".join(c for c in message if c.isprintable() or c == "\n")[:LONGEST]
    return f"'{message}" if message.lstrip()[:1] in tuple("=+-@|%") else message


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
