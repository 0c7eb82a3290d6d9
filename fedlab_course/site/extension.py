"""A Sphinx extension that reads the docstrings of the course."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

PACKAGE = "fedlab_support"
HOMES = (PACKAGE, "fedlab_course", "functools")  # functools: cached properties
ITEM = re.compile(r"([a-z_]\w*(?:, \w+)*): +(\S.*)")
NEW_SENTENCE = re.compile(r"[A-Z]")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the handlers; called by Sphinx."""
    app.connect("autodoc-process-docstring", _describe)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _undescribed)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _describe(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list):
    """Turn a docstring into reStructuredText, in place."""
    lines[:] = [_plain_bars(line) for line in listed(lines)]


def _plain_bars(line: str) -> str:
    """Escape bars, which are norms and sizes here and substitutions in Sphinx."""
    parts = line.split("``")
    parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
    return "``".join(parts)


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any):
    """Skip members that another package adds to a class."""
    home = getattr(obj, "__module__", None) or PACKAGE
    return None if home.startswith(HOMES) else True


def _undescribed(app: Sphinx, env: Any, node: Any, shown: nodes.Node):
    """Show a name without a link if it exists but has no page.

    A name in a docstring that does not exist remains an error; names in annotations are
    checked by Python and ruff.
    """
    is_literal = isinstance(shown, nodes.literal)
    name, home = node["reftarget"].lstrip("."), node.get("py:module") or PACKAGE
    parts = home.split(".")
    places = [".".join([*parts[:n], name]) for n in range(len(parts) + 1)]
    return shown if not is_literal or any(map(exists, places)) else None


def exists(dotted: str) -> bool:
    """Whether Python can import an object of this name."""
    try:
        resolve_name(dotted)
    except (ImportError, AttributeError, ValueError):
        return False
    return True


def listed(lines: list[str]) -> list[str]:
    """Turn ``name:  meaning`` lines into a list, as our longer docstrings have it.

    A list begins after an empty line; an item goes on until the next item, an empty
    line, or a sentence that begins at the margin.
    """
    out, is_item = [""], False
    for line in lines:
        item = ITEM.fullmatch(line)
        if item and (is_item or not out[-1]):
            line, is_item = f"- ``{item[1]}``: {item[2]}", True
        elif is_item and line and not NEW_SENTENCE.match(line):
            line = f"  {line.strip()}"
        elif is_item:
            out += [""] * bool(line)
            is_item = False
        out.append(line)
    return out[1:]
