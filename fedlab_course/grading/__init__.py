"""Grade notebooks that were handed in.

    python -m fedlab_course.grading handed_in --profile smoke --jobs 4

Give notebooks, or folders that hold them, such as one per student. The name of a file
contains that of its chapter, as in ``01_fedavg_ada.ipynb`` and as Moodle writes it. The
answers are taken out of each notebook and checked in a process of its own, with a fresh
copy of the course, an empty environment, and limits on time, memory, the size of files
and, where the system allows it, without a network. What a notebook displays does not
count. All results go into one table, ``grades.csv``, which grows with each file. After
a stop, files that are in it are not graded again unless they or the course changed.

This stops accidents and simple tricks. Code that is written to attack the grader runs
in the process that judges it: it can forge its own verdicts, and read what your account
can read. Look at answers that you do not trust, and use a container.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
from nbformat import NotebookNode

from fedlab_support.core.files import replacing
from fedlab_support.engines.flower import cleanup

from ..checking.calls import check_name
from ..editions import student
from ..exercises import EXERCISES
from ..papermill_runner import FOLDERS, own_folders, stopped_by_signals
from ..papermill_runner import check as check_parameters
from ..runner import (
    BUILD,
    COURSE,
    NOTEBOOKS,
    PACKAGES,
    find_chapters,
    fingerprint,
    profile,
)
from . import judge
from .answers import Statement, is_answered, names_in, needed, repaired, statements

COLUMNS = ["file", "chapter", "exercise", "passed", "message", "version"]
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


Row = tuple[str, ...]
"""The entries of a row of the table, as texts."""


def grade(
    files: Sequence[Path], profile_name: str, out: Path, jobs: int = 1
) -> pd.DataFrame:
    """Check the answers in notebooks; one row per exercise of their chapters.

    Columns: file, chapter, exercise, passed ("yes", "no", "not attempted"), message,
    and version, a hash of the file, its chapter and the course. A file that cannot be
    graded has one row with the reason.
    out:  folder of ``grades.csv``, which is written after each file. Files that it has
          in the same version are not graded again.
    jobs: number of files at a time.
    Raises ValueError if there are no files, for an unknown profile, and when the table
    would be written among the files that were handed in.
    """
    named = _named(files)
    if any(file.resolve().parent == out.resolve() for file in files):
        raise ValueError(
            f"expected another folder for results than {out}, which holds files that "
            "were handed in; choose one with --out"
        )
    grader = _Grader(profile_name, files)
    out.mkdir(parents=True, exist_ok=True)
    versions = {name: grader.version(file) for name, file in named.items()}
    rows = _kept(out / "grades.csv", versions)
    todo = {name: file for name, file in named.items() if name not in rows}
    with (
        tempfile.TemporaryDirectory(prefix="fedlab_grading_") as home,
        ThreadPoolExecutor(jobs) as pool,
    ):
        homes = {name: Path(home) / str(k) for k, name in enumerate(todo)}
        futures = {
            pool.submit(grader.rows, name, file, homes[name]): name
            for name, file in todo.items()
        }
        try:
            for future in as_completed(futures):
                name = futures[future]
                rows[name] = [(*row, versions[name]) for row in future.result()]
                _write(
                    out / "grades.csv", [row for n in named for row in rows.get(n, [])]
                )
        finally:  # an interrupt: nothing begins any more, and what has begun ends
            for future in futures:
                future.cancel()
            while not all(future.done() for future in futures):
                for place in homes.values():
                    if place.exists():
                        cleanup.end(str(place))
    return _write(out / "grades.csv", [row for name in named for row in rows[name]])


class _Grader:
    """Grades single files at the size of a profile.

    Raises ValueError for an unknown profile.
    """

    def __init__(self, profile_name: str, files: Sequence[Path]):
        self.chapters = {chapter.stem: chapter for chapter in find_chapters()}
        used = {self.chapter(file) for file in files} - {""} or {min(self.chapters)}
        self.params = {n: _parameters(profile_name, self.chapters[n]) for n in used}
        self.marks = functools.cache(self._mark)

    def _mark(self, chapter: str) -> str:
        return fingerprint(self.chapters[chapter], self.params[chapter])

    def chapter(self, file: Path) -> str:
        """The name of the chapter that stands in a file's name; "" if there is none."""
        fitting = [
            name
            for name in self.chapters
            if re.search(rf"(?<![0-9A-Za-z]){name}(?![0-9A-Za-z])", file.stem)
        ]
        return fitting[0] if len(fitting) == 1 else ""

    def version(self, file: Path) -> str:
        """A hash of the file, its chapter and the course."""
        digest = hashlib.sha256(file.read_bytes())
        if chapter := self.chapter(file):
            digest.update(self.marks(chapter).encode())
        return digest.hexdigest()[:12]

    def rows(self, name: str, file: Path, home: Path) -> list[Row]:
        """The rows of a file, all but their versions; its processes work in `home`."""
        chapter = self.chapter(file)
        try:
            if not chapter:
                raise ValueError(
                    f"expected one of {list(self.chapters)} in the file's name; call "
                    f"it {min(self.chapters)}_<somebody>.ipynb"
                )
            given = self.chapters[chapter], self.params[chapter]
            verdicts = list(_graded(file, *given, home))
        except Exception as error:  # one row, whatever the file holds
            reason = f"cannot be graded: {type(error).__name__}: {error}"
            verdicts = [("", False, reason)]
        finally:
            shutil.rmtree(home, ignore_errors=True)
        return [
            (name, chapter, exercise, WORDS[passed], _harmless(message))
            for exercise, passed, message in verdicts
        ]


def _kept(file: Path, versions: Mapping[str, str]) -> dict[str, list[Row]]:
    """The rows of an earlier table that still hold, by file."""
    if not file.exists():
        return {}
    table = pd.read_csv(file, dtype=str, keep_default_na=False)
    rows: dict[str, list[Row]] = {}
    if list(table.columns) == COLUMNS:
        for row in table.itertuples(index=False, name=None):
            if versions.get(row[0]) == row[-1]:
                rows.setdefault(row[0], []).append(row)
    return rows


def _write(file: Path, rows: Sequence[Row]) -> pd.DataFrame:
    """Write the table, atomically; return it."""
    table = pd.DataFrame(rows, columns=COLUMNS)
    with replacing(file) as part:
        table.to_csv(part, index=False)
    return table


def _parameters(profile_name: str, chapter: Path) -> dict[str, Any]:
    """A profile's parameters but its seeds: experiments are judged by the chapter's."""
    params = profile(profile_name, chapter.stem)
    params = {n: value for n, value in params.items() if not n.endswith("seeds")}
    check_parameters(chapter, params)
    return params


def _graded(
    file: Path, chapter: Path, params: dict[str, Any], home: Path
) -> Iterator[tuple]:
    """Exercise, passed and message for each exercise of the chapter."""
    if (size := file.stat().st_size) > NOTEBOOK_SIZE:
        raise ValueError(f"expected at most {NOTEBOOK_SIZE:,} bytes, found {size:,}")
    original = student(nbformat.read(chapter, as_version=4))
    sizes = _parameters_cell(original, chapter, params)
    known = {cell.source for cell in original.cells}
    handed_in = nbformat.read(file, as_version=4)
    for notebook in (original, handed_in):
        for cell in notebook.cells:
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = sizes
    broken = repaired(handed_in, original)
    ours = statements(original, lambda cell: False)
    theirs = statements(handed_in, lambda cell: cell.source not in {*known, sizes})
    task = _task(ours, theirs, chapter.stem)
    asked = {line[3] for line in task["program"] if len(line) > 3}
    verdicts, end = _judged(task, chapter, home) if asked else ({}, "")
    for name in task["facts"]:
        if name in verdicts:
            yield name, *verdicts[name]
        elif name in asked:
            yield name, False, end
        elif name in broken:
            yield name, False, broken[name]
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


def _task(
    ours: list[Statement], theirs: list[Statement], chapter: str
) -> dict[str, Any]:
    """What `judge.judge` is asked to do: statements as source, cell and index.

    Raises ValueError for exercises of another chapter, or that do not exist.
    """
    facts, given = {}, set()
    for position, statement in enumerate(ours):
        for call in statement.checks:
            kept = ast.Call(ast.Name("dict"), [], call.keywords)
            facts[check_name(call)] = ast.unparse(kept)
            given |= needed(ours[:position], names_in(kept) - {"dict"})
    if unknown := sorted(set(facts) - set(EXERCISES)):
        raise ValueError(f"{chapter} checks {unknown}, which are no exercises")
    found = {check_name(call) for statement in theirs for call in statement.checks}
    strangers = (found & set(EXERCISES)) - set(facts)
    if len(strangers) > len(found & set(facts)):
        raise ValueError(
            f"expected exercises of {chapter}, as {list(facts)}, found "
            f"{sorted(strangers)}; name the file after the chapter that it holds"
        )
    program, chosen = [], set()
    answers = {
        (position, check_name(call)): call.args[1]
        for position, statement in enumerate(theirs)
        for call in statement.checks
        if check_name(call) in facts and is_answered(call, theirs[: position + 1])
    }
    for (position, _), answer in answers.items():
        chosen |= needed(theirs[:position], names_in(answer))
    for position, statement in enumerate(theirs):
        line = [statement.source, statement.cell, statement.index]
        program += [line] * (position in chosen)
        for call in statement.checks:
            if (position, check_name(call)) in answers:
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
    (home / "notebooks" / "profiles").mkdir(parents=True)
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
            if hasattr(os, "killpg"):  # which Windows lacks
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
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
    if "SYSTEMROOT" in os.environ:  # without which Python does not start on Windows
        own["SYSTEMROOT"] = os.environ["SYSTEMROOT"]
    return kept | own | {"PATH": os.defpath, "MPLBACKEND": "agg", "LANG": "C.UTF-8"}


def _harmless(message: str) -> str:
    """A message that no spreadsheet takes for a formula."""
    message = "".join(c for c in message if c.isprintable() or c == "\n")[:LONGEST]
    return f"'{message}" if message.lstrip()[:1] in tuple("=+-@|%") else message


def notebooks_in(places: Sequence[Path]) -> list[Path]:
    """The notebooks among files and folders, which are searched in depth, in order.

    Raises ValueError for a place that does not exist.
    """
    found = []
    for place in places:
        if not place.exists():
            raise ValueError(
                f"expected a notebook or a folder, found nothing at {place}"
            )
        inside = sorted(place.rglob("*.ipynb")) if place.is_dir() else [place]
        found += [f for f in inside if ".ipynb_checkpoints" not in f.parts]
    return found


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """Each file under its path below the folder that holds them all."""
    if not files:
        raise ValueError("expected notebooks that were handed in, found none")
    whole = [file.resolve() for file in files]
    top = Path(os.path.commonpath([file.parent for file in whole]))
    return {file.relative_to(top).as_posix(): file for file in whole}


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade what the command line names; the exit code is 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.grading")
    parser.add_argument("handed_in", nargs="*", type=Path, help="notebooks, or folders")
    parser.add_argument("--profile", default="smoke", help="size at which to grade")
    parser.add_argument("--out", type=Path, help="folder; default: build/grade")
    parser.add_argument("--jobs", type=int, default=1, help="files at a time")
    chosen = parser.parse_args(arguments)
    out = chosen.out or BUILD / "grade"
    try:
        files = notebooks_in(chosen.handed_in)
        with stopped_by_signals():
            table = grade(files, chosen.profile, out, chosen.jobs)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on with {out / 'grades.csv'}")
        return 130
    print(table.drop(columns="version").to_string(index=False))
    return 0
