"""Break one line at a time, and see whether a test notices.

    python -m tests.mutations [--only PATTERN] [--jobs 2]

A mutation names a class, function or constant of the package, wherever its file lies,
a short piece of its code that occurs there once, what to write in its place, and the
test files that should notice (by name, wherever they lie). Docstrings and comments do
not count. Every mutation is tried in a temporary copy, with the fast tests first; the
last line counts, and the exit code is 1 if one survived or could not be judged.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tokenize
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from importlib.util import cache_from_source
from pathlib import Path
from queue import Queue

import pytest

from tests.mutation_table import DEFAULTS, EDITS
from tests.paths import ROOT

PACKAGES = ("fedlab_support", "fedlab_course")
COPIED = (*PACKAGES, "tests", "docs", "pyproject.toml")
SECONDS = 300  # for the tests of one mutation
PYTEST = (
    *("-x", "-q", "--no-header", "--tb=no", "-rfE"),
    *("-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"),
)
SURVIVED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


@dataclass(frozen=True)
class Mutation:
    """One change of one piece of code.

    target: "function", "Class", "Class.method", "CONSTANT", or "Class.field" for a
            default.
    old: the code to replace, once in the target; None: the target's default.
    new: what stands there instead.
    tests: names of test files without "test_", of which some must exist.
    """

    target: str
    old: str | None
    new: str
    tests: str

    def __str__(self) -> str:
        return f"{self.target}: {self.old or 'default'} -> {self.new or '(nothing)'}"


MUTATIONS = (
    *(Mutation(*row) for row in EDITS),
    *(Mutation(target, None, new, tests) for target, new, tests in DEFAULTS),
)


class Source:
    """The package's code: where names are defined, and what is code in a file."""

    def __init__(self, root: Path = ROOT):
        self.root = root

    @cached_property
    def places(self) -> dict[str, list[tuple[Path, ast.AST]]]:
        """Every definition by name, methods too: the package's, else the course's."""
        found: dict[str, list[tuple[Path, ast.AST]]] = {}
        for package in reversed(PACKAGES):
            own: dict[str, list[tuple[Path, ast.AST]]] = {}
            for file in sorted((self.root / package).rglob("*.py")):
                tree = ast.parse(file.read_text(encoding="utf-8"))
                for name, node in _definitions(tree.body):
                    own.setdefault(name, []).append((file, node))
            found |= own
        return found

    def mutated(self, mutation: Mutation) -> tuple[Path, str]:
        """The file that changes, and its new text; ValueError if that is unclear."""
        places = self.places.get(mutation.target, [])
        if len(places) != 1:
            raise ValueError(
                f"{mutation.target} must be defined once, found {len(places)} places"
            )
        file, node = places[0]
        text = file.read_text(encoding="utf-8")
        if mutation.old is None:
            start, end = _default(text, node)
        else:
            start, end = _only(text, node, mutation)
        changed = text[:start] + mutation.new + text[end:]
        if changed == text:
            raise ValueError(f"{mutation}: the default is that already")
        ast.parse(changed)
        return file.relative_to(self.root), changed


def _definitions(body: list[ast.stmt], inside: str = ""):
    """Pairs of a name and its node: functions, classes, what they hold, constants."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield f"{inside}{node.name}", node
            yield from _definitions(node.body, f"{inside}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{inside}{node.name}", node
        elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    yield f"{inside}{target.id}", node
                elif isinstance(target, ast.Tuple) and isinstance(
                    node.value, ast.Tuple
                ):
                    for name, value in zip(target.elts, node.value.elts, strict=True):
                        one = ast.Assign([name], value)
                        yield (
                            f"{inside}{ast.unparse(name)}",
                            ast.copy_location(one, node),
                        )


def _offsets(text: str) -> list[int]:
    """Where each line begins, in characters."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(text: str, node: ast.AST) -> tuple[int, int]:
    starts, lines = _offsets(text), text.splitlines()

    def place(line: int, column: int) -> int:  # ast counts columns in bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    return (
        place(node.lineno, node.col_offset),
        place(node.end_lineno, node.end_col_offset),
    )


def _default(text: str, node: ast.AST) -> tuple[int, int]:
    """The first literal behind the equals sign, whatever is wrapped around it."""
    literals = [
        each
        for each in ast.walk(node.value)
        if isinstance(each, ast.Constant | ast.Tuple | ast.UnaryOp)
    ]
    if not literals:
        raise ValueError(f"no literal in line {node.lineno} to change")
    return min(_span(text, each) for each in literals)


def _only(text: str, node: ast.AST, mutation: Mutation) -> tuple[int, int]:
    """The one occurrence in code of what is to be replaced."""
    start, end = _span(text, node)
    code = _code_only(text)[start:end]
    if (times := code.count(mutation.old)) != 1:
        raise ValueError(
            f"{mutation.old!r} must occur once in {mutation.target}, found {times}"
        )
    first = start + code.index(mutation.old)
    return first, first + len(mutation.old)


def _code_only(text: str) -> str:
    """The text with blanks in place of comments and docstrings."""
    starts, kept = _offsets(text), list(text)
    spans = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            (line, first), (_, last) = token.start, token.end
            spans.append((starts[line - 1] + first, starts[line - 1] + last))
    for node in ast.walk(ast.parse(text)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            spans.append(_span(text, node))
    for first, last in spans:
        kept[first:last] = [c if c == "\n" else " " for c in kept[first:last]]
    return "".join(kept)


def files_of(mutation: Mutation, root: Path = ROOT) -> list[str]:
    """The test files that should notice; ValueError when none of them exists."""
    names = [f"test_{name}.py" for name in mutation.tests.split()]
    found = {f.name: f for f in sorted((root / "tests").rglob("test_*.py"))}
    files = [str(found[n].relative_to(root)) for n in names if n in found]
    if not files:
        raise ValueError(f"{mutation}: none of the test files {names} exists")
    return files


SERVER = f"""
import os, signal, sys
import pytest, scipy.sparse.csgraph, sklearn.cluster, sklearn.mixture, torch._dynamo
import fedlab_course.plots, tests.conftest
kept = dict(sys.modules)  # what others wrote stays imported, ours only alive
for name in kept:
    mine = name.split(".")[0] in {(*PACKAGES, "tests")}
    if mine and name != "tests.device":  # which PyTorch registers once
        del sys.modules[name]
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm({SECONDS})
        code = pytest.main(line.split("\\t")[:-1])
        sys.stdout.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Imports what takes long once, and runs pytest in a child for every line it reads."""


class Copy:
    """A copy of the repository in which one file at a time is changed."""

    def __init__(self, folder: Path, source: Source):
        self.folder, self.source = folder, source
        for name in COPIED:
            if (ROOT / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / name, folder / name, ignore=ignored)
            elif (ROOT / name).exists():
                shutil.copy2(ROOT / name, folder / name)
        compileall.compile_dir(folder, quiet=1)
        settings = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        settings["PYTHONDONTWRITEBYTECODE"] = "1"
        self.server = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            cwd=folder,
            env=os.environ | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def close(self) -> None:
        """End the process behind."""
        self.server.communicate()

    def pytest(self, *tests: str) -> tuple[int, str, list[str]]:
        """Exit code, output and the names of the tests that failed."""
        self.server.stdin.write("\t".join([*PYTEST, *tests]) + "\t\n")
        if not (answer := self.server.stdout.readline()):
            raise RuntimeError("the process that runs the tests has ended")
        code = int(answer)
        output = (self.folder / "output").read_text(encoding="utf-8")
        if code == -signal.SIGALRM:
            return 1, output, [f"time limit of {SECONDS} s"]
        failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        return code, output, failed

    def judge(self, mutation: Mutation) -> tuple[str, str]:
        """ "caught", "SURVIVED" or "ERROR", and by which test or why."""
        file, text = self.source.mutated(mutation)
        place = self.folder / file
        kept = place.read_text(encoding="utf-8")
        place.write_text(text, encoding="utf-8")
        # bytecode is told apart by seconds and size, which mutations can share
        Path(cache_from_source(str(place))).unlink(missing_ok=True)
        try:
            for speed in ("not slow", "slow"):
                chosen = ("-m", speed, *files_of(mutation))
                code, output, failed = self.pytest(*chosen)
                if code not in SURVIVED:
                    break
        finally:
            place.write_text(kept, encoding="utf-8")
        if code in SURVIVED:
            return "SURVIVED", mutation.tests
        if code == 1 and failed:
            return "caught", failed[0]
        return "ERROR", output.strip()[-500:]


def main() -> int:
    """Try the mutations; 1 if one survived or could not be judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations")
    parser.add_argument("--only", default="*", help="pattern, as in 'FedSR*'")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    asked = parser.parse_args()
    chosen = [m for m in MUTATIONS if fnmatch(str(m), asked.only)]
    chosen += [m for m in MUTATIONS if asked.only in str(m) and m not in chosen]
    with tempfile.TemporaryDirectory() as home:
        copies: Queue[Copy] = Queue()
        source = Source()
        for k in range(asked.jobs):
            copies.put(Copy(Path(home) / str(k), source))

        def one(mutation: Mutation) -> tuple[str, str]:
            copy, began = copies.get(), time.perf_counter()
            try:
                verdict, by = copy.judge(mutation)
            except ValueError as error:
                verdict, by = "ERROR", str(error)
            finally:
                copies.put(copy)
            seconds = time.perf_counter() - began
            print(f"{verdict:8s} {seconds:5.1f} s  {mutation}  [{by}]", flush=True)
            return verdict, by

        with ThreadPoolExecutor(asked.jobs) as pool:
            verdicts = list(pool.map(one, chosen))
        catchers = sorted({by for what, by in verdicts if what == "caught"} - {""})
        # without parameters, which may hold spaces
        tests = sorted({by.partition("[")[0] for by in catchers if "::" in by})
        # a test that fails without any mutation proves nothing
        copy = copies.get()
        code, output, failed = copy.pytest(*tests) if tests else (0, "", [])
        for each in (copy, *(copies.get() for _ in range(asked.jobs - 1))):
            each.close()
    count = {
        word: sum(what == word for what, _ in verdicts)
        for word in ("caught", "SURVIVED", "ERROR")
    }
    if code:
        print(f"fails without a mutation, so it catches none: {failed or output}")
    print(", ".join(f"{number} {word}" for word, number in count.items()))
    return int(bool(code or count["SURVIVED"] or count["ERROR"]))


if __name__ == "__main__":
    sys.exit(main())
