"""The map of methods and a page for each, from nothing but the methods' own files."""

from __future__ import annotations

import functools
import re
from dataclasses import MISSING, fields
from pathlib import Path

import pandas as pd

from fedlab_support.core.checks import ranges
from fedlab_support.methods import HOOKS, FedAvg, catalogue, changed_hooks

from ..declared import field_comments
from ..runner import ROOT


def write_method_pages(out: Path) -> None:
    """Write ``methods/<class>.md`` for every method, and the map as ``methods/map``."""
    folder = out / "methods"
    folder.mkdir()
    methods = catalogue()
    for label, kind in methods.items():
        page = folder / f"{kind.__name__.lower()}.md"
        page.write_text(method_page(label, kind), encoding="utf-8")
    (folder / "map.txt").write_text(method_map(methods), encoding="utf-8")


def method_map(methods: dict[str, type[FedAvg]]) -> str:
    """A Markdown table: one row per method, a dot under every hook that it changes."""
    changed = {label: set(changed_hooks(kind)) for label, kind in methods.items()}
    used = [hook for hook in HOOKS if any(hook in hooks for hooks in changed.values())]
    lines = [_row("method", *(f"`{hook}`" for hook in used))]
    lines += [_row("---", *(":-:" for _ in used))]
    for label, kind in methods.items():
        name = f"[{label}](methods/{kind.__name__.lower()}.md)"
        lines.append(_row(name, *("●" if h in changed[label] else "" for h in used)))
    return "\n".join(lines) + "\n"


def method_page(label: str, kind: type[FedAvg]) -> str:
    """A page in Markdown: its docstring, its settings, the hooks that it overrides."""
    where = f"{kind.__module__}.{kind.__qualname__}"
    hooks = HOOKS if kind is FedAvg else changed_hooks(kind)
    members = "\n".join(f"   .. automethod:: {where}.{hook}" for hook in hooks)
    return (
        f"# {label}\n\n```{{eval-rst}}\n.. autoclass:: {where}\n\n"
        f"{members}\n```\n\n## Settings\n\n{settings_table(kind)}"
    )


def settings_table(kind: type[FedAvg]) -> str:
    """A Markdown table of a method's fields: default, its source, range, comment."""
    head = ("setting", "default", "allowed", "meaning", "source of the default")
    rows = [_row(*head), _row(*["---"] * len(head))]
    comments, known, sources = field_comments(kind), ranges(kind), published()
    for field in fields(kind):
        default = "" if field.default is MISSING else f"`{field.default!r}`"
        type_, limits = known.get(field.name, ("", None))
        allowed = limits.words(type_) if limits else ""
        meaning = comments.get(field.name, "")
        found = (sources.get((owner.__name__, field.name)) for owner in kind.__mro__)
        source = next(filter(None, found), "")
        rows.append(_row(f"`{field.name}`", default, allowed, meaning, source))
    return "\n".join(rows) + "\n"


@functools.cache
def published() -> dict[tuple[str, str], str]:
    """The published source of each default, by class and setting."""
    table = pd.read_csv(ROOT / "docs" / "published_constants.csv")
    keys = zip(table["class"], table["setting"], strict=True)
    return dict(zip(keys, table["source"], strict=True))


def _row(*cells: str) -> str:
    """A row of a Markdown table; bars inside a cell are not its ends."""
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", c) for c in cells) + " |"
