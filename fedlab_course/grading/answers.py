"""Take the answers out of a notebook: the statements that its checks need.

A check is a call of ``exercises.check("name", answer, **given)``. The names that
statements bind and use tell which ones it needs, as in a program without branches.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nbformat import NotebookNode

from ..checking.calls import checks_in

MAGIC = re.compile(
    r"(?m)^([ \t]*)(?:%%?time[ \t]+(\S.*)|[%!?].*|[\w.*]+\?{1,2}[ \t]*"
    r"|[\w, \t]+=[ \t]*[%!].*)$"
)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True)
class Statement:
    """A statement at the top level of a code cell.

    source: of the whole cell, for messages that quote a line.
    cell:   number of the cell in its notebook.
    index:  number of the statement in its cell.
    is_own: whether the student wrote the cell.
    checks: the checks of exercises that it calls.
    """

    source: str
    cell: int
    index: int
    node: ast.stmt
    is_own: bool
    checks: tuple[ast.Call, ...]

    @property
    def binds(self) -> set[str]:
        """The names that it binds, or whose objects it may change."""
        return set(_bound(self.node))


def statements(
    notebook: NotebookNode, is_own: Callable[[NotebookNode], bool]
) -> list[Statement]:
    """The statements of all code cells, in order, without magics.

    What a student has written may be no Python: see ``repaired``.
    """
    found = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        source, own = without_magics(cell.source), is_own(cell)
        found += [
            Statement(source, number, k, node, own, tuple(checks_in(node)))
            for k, node in enumerate(ast.parse(source).body)
        ]
    return found


def needed(program: Sequence[Statement], names: Iterable[str]) -> set[int]:
    """The positions of the statements on which some names depend.

    Those that the student wrote are all needed, and what they depend on; so are the
    parameters, the cells with annotated variables, if anything uses ``globals``.
    """
    annotated = {s.cell for s in program if isinstance(s.node, ast.AnnAssign)}
    wanted, chosen, num_before = set(names), set(), -1
    while len(chosen) > num_before:  # functions may use what is bound after them
        num_before = len(chosen)
        for k in range(len(program) - 1, -1, -1):
            statement = program[k]
            if statement.checks or k in chosen:
                continue
            is_parameter = "globals" in wanted and statement.cell in annotated
            if statement.is_own or is_parameter or statement.binds & wanted:
                chosen.add(k)
                wanted |= names_in(statement.node)
    return chosen


def is_answered(check: ast.Call, program: Sequence[Statement]) -> bool:
    """Whether an answer comes from the student and not from the chapter itself.

    program: the statements up to that of the check.
    """
    answer = check.args[1]
    if not isinstance(answer, ast.Name):
        return program[-1].is_own
    return any(s.is_own and answer.id in s.binds for s in program if not s.checks)


def repaired(notebook: NotebookNode, original: NotebookNode) -> dict[str, str]:
    """Undo what is no Python in the chapter's cells; changes the notebook in place.

    Returns a message for each exercise that such a cell checks.
    """
    sources = {cell.id: cell.source for cell in original.cells}
    broken = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        try:
            ast.parse(without_magics(cell.source))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            words = str(error)
            if isinstance(error, SyntaxError):  # names no file
                words = f"{error.msg} (line {error.lineno})"
            reason = f"the cell of this check: {type(error).__name__}: {words}"
            for name in re.findall(r"""\bcheck\(\s*["'](\w+)["']""", cell.source):
                broken[name] = reason
            cell.source = sources.get(cell.get("id"), "")
    return broken


def without_magics(source: str) -> str:
    """The source as Python: `pass` for what only IPython understands, as ``help?``."""
    try:
        ast.parse(source)
    except SyntaxError:
        return MAGIC.sub(lambda line: line[1] + (line[2] or "pass"), source)
    return source


def names_in(node: ast.AST) -> set[str]:
    """The names of the program that a node reads, also inside of functions."""
    try:
        return set(_read(symtable.symtable(ast.unparse(node), "", "exec")))
    except SyntaxError:  # known when it runs, as a nonlocal of nothing
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _read(scope: symtable.SymbolTable) -> Iterator[str]:
    """The names of the program that a scope and those inside of it read."""
    is_program = scope.get_type() == "module"
    for symbol in scope.get_symbols():
        if symbol.is_referenced() and (is_program or symbol.is_global()):
            yield symbol.get_name()
    for inner in scope.get_children():
        yield from _read(inner)


def _bound(node: ast.AST) -> Iterator[str]:
    if isinstance(node, SCOPES):
        if not isinstance(node, ast.Lambda):
            yield node.name
        return  # what is bound inside stays inside
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, (ast.Attribute, ast.Subscript)):
        if not isinstance(node.ctx, ast.Load):
            yield from _base(node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _base(node.value.func)  # run.fit(3) changes run
    for child in ast.iter_child_nodes(node):
        yield from _bound(child)


def _base(node: ast.AST) -> Iterator[str]:
    """The name at the beginning of a chain of attributes, entries and calls."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        yield node.id
