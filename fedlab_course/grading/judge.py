"""Run a student's statements and check the answers, in a process made for it.

`fedlab_course.grading` starts this file as a script, with the task as JSON on the
standard input; the verdicts go to the standard output, one JSON list per line.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

GIGABYTE = 2**30


def limit(memory: int, file_size: int) -> None:
    """Limit this process and all that it starts, where it can be; both in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {resource.RLIMIT_AS: memory, resource.RLIMIT_FSIZE: file_size}
    for kind, most in (limits | {resource.RLIMIT_CORE: 0}).items():
        with suppress(ValueError, OSError):  # macOS refuses; a tighter limit stays
            resource.setrlimit(kind, (most, most))


class Space:
    """A module in which statements run one by one; the first errors are kept."""

    def __init__(self, name: str):
        module = sys.modules[name] = types.ModuleType(name)
        self.names, self.errors = vars(module), []
        self.names["display"] = lambda *objects, **settings: None  # as in IPython
        self.file = f"<{name}, cell %d>"

    def run(self, source: str, cell: int, index: int) -> None:
        """Run one statement of a cell; an error does not stop those after it."""
        file, statement = self.file % cell, ast.parse(source).body[index]
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        try:
            code = compile(ast.Module([statement], []), file, "exec")
            exec(code, self.names)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.errors.append(f"cell {cell}: {type(error).__name__}: {error}")

    def value(self, expression: str) -> object:
        """The value of an expression; LookupError with the first error on the way."""
        try:
            return eval(expression, self.names)
        except Exception as error:
            own = f"{type(error).__name__}: {error}"
            raise LookupError(self.errors[0] if self.errors else own) from error


METHODS = (types.FunctionType, staticmethod, classmethod, property)
COMPARISONS = ("allclose", "isclose", "equal", "array_equal")


def callables() -> dict[tuple[str, str], object]:
    """The functions on which verdicts rest: the course's, and others' comparisons."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name in ("torch", "numpy"):
            found |= {(name, k): getattr(module, k, None) for k in COMPARISONS}
        if name.partition(".")[0] not in ("fedlab_course", "fedlab_support"):
            continue
        for key, value in list(vars(module).items()):
            if callable(value):
                found[name, key] = value
            if isinstance(value, type) and value.__module__ == name:
                for k, member in vars(value).items():
                    if isinstance(member, METHODS):
                        found[f"{name}.{key}", k] = member
    return found


def judge(task: dict, report: Callable[..., None]) -> None:
    """Run the statements of a task and report a verdict for each check.

    task:   "given": statements of the chapter itself, before anything of the student;
            "facts": exercise → what its check is given, an expression of these;
            "program": the student's statements and checks. A statement is [source of
            its cell, number of the cell, number of the statement in it]; a check has
            two entries more: exercise and answer, an expression.
    report: takes exercise, passed (True, False, None) and the message.
    """
    from fedlab_course.exercises import EXERCISES

    chapter, student = Space("chapter"), Space("handed_in")
    for statement in task["given"]:
        chapter.run(*statement)
    given, failed = {}, {}
    for name, text in task["facts"].items():
        try:
            given[name] = chapter.value(text)
        except LookupError as reason:
            failed[name] = f"the chapter's own cells fail here: {reason}"
    tasks = {name: replace(EXERCISES[name]) for name in task["facts"]}
    grade, before = type(EXERCISES[min(EXERCISES)]).grade, callables()
    for source, cell, index, *check in task["program"]:
        if not check:
            student.run(source, cell, index)
            continue
        name, answer = check
        if name in failed:
            report(name, False, failed[name])
            continue
        try:
            value = student.value(answer)
        except LookupError as reason:
            report(name, False, f"there is no answer: {reason}")
            continue
        result = grade(tasks[name], value, **given[name])
        after = callables()
        changed = [key for key in before if after.get(key) is not before[key]]
        if changed:
            where = ".".join(changed[0])
            report(name, False, f"the notebook replaces {where}, which it must not")
        else:
            report(name, result.passed, result.message)


def main() -> None:
    """Read a task, protect the channel of the verdicts, and judge."""
    task = json.load(sys.stdin)
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    sys.path.insert(0, str(Path(__file__).parents[2]))
    limit(task["memory"], task["file_size"])
    token = task.pop("token")

    def report(*verdict: object) -> None:
        print(json.dumps([token, *verdict]), file=verdicts, flush=True)

    judge(task, report)
    report("", None, "done")
    verdicts.close()
    os._exit(0)  # threads of the student's do not keep it alive


if __name__ == "__main__":
    main()
