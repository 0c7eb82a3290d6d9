"""The task of the judge for one notebook, from its answers, and the verdicts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from ..checking.calls import check_name
from ..editions import student
from ..exercises import EXERCISES
from ..papermill_runner import own_folders
from ..runner import NOTEBOOKS
from .answers import Statement, is_answered, names_in, needed, repaired, statements
from .sandbox import judged

NOTEBOOK_SIZE = 2**25
"""Limit in bytes."""
OUTPUTS, WRITTEN = ("figures_dir", "runs_dir"), NOTEBOOKS / "written"
"""Where a chapter writes: a folder beside it, in the copy that is deleted."""


def verdicts_on(
    file: Path, chapter: Path, params: dict[str, Any], home: Path
) -> Iterator[tuple]:
    """Exercise, passed and message for each exercise of the chapter."""
    if (size := file.stat().st_size) > NOTEBOOK_SIZE:
        raise ValueError(f"expected at most {NOTEBOOK_SIZE:,} bytes, found {size:,}")
    whole = nbformat.read(chapter, as_version=4)
    solutions = {cell.source for cell in whole.cells}  # as in a copy of the course
    original = student(whole)
    sizes = _parameters_cell(original, chapter, params)
    known = {sizes, *solutions, *(cell.source for cell in original.cells)}
    handed_in = nbformat.read(file, as_version=4)
    for notebook in (original, handed_in):
        for cell in notebook.cells:
            if "parameters" in cell.metadata.get("tags", []):
                cell.source = sizes
    broken = repaired(handed_in, original)
    ours = statements(original, lambda cell: False)
    theirs = statements(handed_in, lambda cell: cell.source not in known)
    task = task_of(ours, theirs, chapter.stem)
    asked = {line[3] for line in task["program"] if len(line) > 3}
    verdicts, end = judged(task, chapter, home) if asked else ({}, "")
    for name in task["facts"]:
        if name in verdicts:
            yield name, *verdicts[name]
        elif name in asked:
            yield name, False, end
        elif name in broken:
            yield name, False, broken[name]
        else:
            yield name, None, "there is no answer to this exercise"


def _parameters_cell(
    original: NotebookNode, chapter: Path, params: dict[str, Any]
) -> str:
    """The source of the chapter's cell of parameters, with those of the profile."""
    params = params | own_folders(chapter, **dict.fromkeys(OUTPUTS, WRITTEN))
    (cell,) = (
        cell for cell in original.cells if "parameters" in cell.metadata.get("tags", [])
    )
    lines = [f"{name} = {value!r}" for name, value in params.items()]
    return "\n".join([cell.source, *lines])


def task_of(
    ours: list[Statement], theirs: list[Statement], chapter: str
) -> dict[str, Any]:
    """What `judge.judge` is asked to do: statements as source, cell and index.

    Raises ValueError for exercises of another chapter.
    """
    facts, given = {}, set()
    for position, statement in enumerate(ours):
        for call in statement.checks:
            kept = ast.Call(ast.Name("dict", ast.Load()), [], call.keywords)
            facts[check_name(call)] = ast.unparse(kept)
            given |= needed(ours[:position], names_in(kept) - {"dict"})
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
