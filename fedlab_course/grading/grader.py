"""Grade files: one row per exercise, in a table that grows with each file."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd

from fedlab_support.core.files import replacing
from fedlab_support.engines.flower import cleanup

from ..papermill_runner import check as check_parameters
from ..papermill_runner import stopped_by_signals
from ..runner import BUILD, find_chapters, fingerprint, profile
from .sandbox import TOO_LONG
from .task import verdicts_on

COLUMNS = ["file", "chapter", "exercise", "passed", "message", "version"]
WORDS = {True: "yes", False: "no", None: "not attempted"}
LONGEST = 2000
"""Characters of a message."""

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
          in the same version are not graded again, unless one was stopped.
    jobs: number of files at a time.
    Raises ValueError if there are no files, for an unknown profile, and when the table
    would be written among the files that were handed in.
    """
    named = _named(files)
    if any(file.resolve().parent == out.resolve() for file in files):
        raise ValueError(
            f"expected a folder for results without submitted notebooks, found {out}; "
            "choose another with --out"
        )
    grader = _Grader(profile_name, files)
    out.mkdir(parents=True, exist_ok=True)
    versions = {name: grader.version(file) for name, file in named.items()}
    table = out / "grades.csv"
    rows = _kept(table, versions)
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
                _write(table, named, rows)
        finally:  # an interrupt: nothing begins any more, and what has begun ends
            for future in futures:
                future.cancel()
            while not all(future.done() for future in futures):
                for place in homes.values():
                    if place.exists():
                        cleanup.end(str(place))
    return _write(table, named, rows)


class _Grader:
    """Grades single files at the size of a profile.

    Raises ValueError for an unknown profile.
    """

    def __init__(self, profile_name: str, files: Sequence[Path]):
        self.chapters = {chapter.stem: chapter for chapter in find_chapters()}
        used = {self.chapter(file) for file in files} - {""} or {min(self.chapters)}
        self.params = {n: _parameters(profile_name, self.chapters[n]) for n in used}
        self.marks = {n: fingerprint(self.chapters[n], self.params[n]) for n in used}

    def chapter(self, file: Path) -> str:
        """The chapter named in a file's name; "" if there is none."""
        fitting = [
            name
            for name in self.chapters
            if re.search(rf"(?<![0-9A-Za-z]){name}(?![0-9A-Za-z])", file.stem)
        ]
        return fitting[0] if len(fitting) == 1 else ""

    def version(self, file: Path) -> str:
        """A hash of the file, its chapter and the course; "" if it cannot be read."""
        try:
            digest = hashlib.sha256(file.read_bytes())
        except OSError:  # its row says why
            return ""
        if chapter := self.chapter(file):
            digest.update(self.marks[chapter].encode())
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
            verdicts = list(verdicts_on(file, *given, home))
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
    message = COLUMNS.index("message")
    return {  # a busy machine may have been too slow: judge once more
        name: found
        for name, found in rows.items()
        if not any(row[message].startswith(TOO_LONG) for row in found)
    }


def _write(
    file: Path, names: Iterable[str], rows: Mapping[str, list[Row]]
) -> pd.DataFrame:
    """Write the rows of the files graded so far, atomically; return the table."""
    done = [row for name in names for row in rows.get(name, [])]
    table = pd.DataFrame(done, columns=COLUMNS)
    with replacing(file) as part:
        table.to_csv(part, index=False)
    return table


def _parameters(profile_name: str, chapter: Path) -> dict[str, Any]:
    """A profile's parameters but its seeds: experiments are judged by the chapter's."""
    params = profile(profile_name, chapter.stem)
    params = {n: value for n, value in params.items() if not n.endswith("seeds")}
    check_parameters(chapter, params)
    return params


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
        found += [f for f in inside if not _is_hidden(f.relative_to(place))]
    return found


def _is_hidden(path: Path) -> bool:
    """Whether it is a checkpoint, or what a Mac puts beside a file in a zip."""
    return any(part.startswith(".") for part in path.parts)


def _named(files: Sequence[Path]) -> dict[str, Path]:
    """Each file under its path below the folder that holds them all."""
    if not files:
        raise ValueError("expected notebooks that were handed in, found none")
    whole = [Path(os.path.abspath(file)) for file in files]  # links keep their names
    top = Path(os.path.commonpath([file.parent for file in whole]))
    return {_as_text(file.relative_to(top)): file for file in whole}


def _as_text(path: Path) -> str:
    """A path as text that any table can hold, whatever bytes a zip made of its name."""
    text = os.fsencode(path.as_posix()).decode(errors="backslashreplace")
    return _harmless(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade the files on the command line; the exit code is 2 for bad input."""
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
