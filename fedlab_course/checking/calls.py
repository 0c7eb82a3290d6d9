"""Find checks of exercises in code: ``exercises.check("name", answer, **given)``.

Also ``check("name", answer)`` and ``exercises.check("name", answer=answer)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator


def checks_in(node: ast.AST) -> Iterator[ast.Call]:
    """The checks in a tree; in the tree, their answers become positional arguments."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call):
            continue
        if getattr(call.func, "attr", getattr(call.func, "id", "")) != "check":
            continue
        answers = [each for each in call.keywords if each.arg == "answer"]
        if len(call.args) + len(answers) != 2:
            continue
        call.args += [each.value for each in answers]
        call.keywords = [each for each in call.keywords if each not in answers]
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield call


def check_name(call: ast.Call) -> str:
    """The name of the exercise that a check is for."""
    return call.args[0].value
