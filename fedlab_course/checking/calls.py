"""Find checks of exercises in code: ``exercises.check("name", answer, **given)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def checks_in(node: ast.AST) -> Iterator[ast.Call]:
    """The checks in a tree."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            first = call.args[0] if len(call.args) == 2 else None
            is_text = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if call.func.attr == "check" and is_text:
                yield call


def check_name(call: ast.Call) -> str:
    """The name of the exercise that a check is for."""
    return call.args[0].value
