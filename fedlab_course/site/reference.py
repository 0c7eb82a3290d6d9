"""The reference: a page for every module with public names, from their docstrings."""

from __future__ import annotations

import inspect
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import fedlab_support as fl
from fedlab_support import data
from fedlab_support.core import history, messages
from fedlab_support.federation.federation import Client
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import catalogue
from fedlab_support.training.context import ClientContext

from .. import plots, widgets

CONTRACT = (
    ClientContext,
    Client,
    Batch,
    messages.Broadcast,
    messages.Message,
    messages.Server,
    data.DomainData,
    history.History,
)
"""What hooks receive and runs return: documented, although without a public name."""

COURSE = {"plots": plots, "widgets": widgets}
"""Modules of the course that a project of your own may use, too."""

Page = dict[str, list[str]]
"""Heading → full names of the functions and classes below it."""


def write_reference(out: Path) -> None:
    """Write ``api/<module>.md`` for every module that has something to describe.

    And a list of all names, ``api/names.txt``.
    """
    folder = out / "api"
    folder.mkdir()
    described = pages()
    (folder / "names.txt").write_text(all_names(described), encoding="utf-8")
    for module, page in described.items():
        lines = [f"# {module}", *_directive("automodule", _module(module), "no-index")]
        for heading, names in page.items():
            lines += [f"## {heading}"]
            for name in names:
                lines += _entry(name)
        (folder / f"{module}.md").write_text("\n".join(lines), encoding="utf-8")


def all_names(described: dict[str, Page]) -> str:
    """A Markdown table: one row per module, with links to all that it describes."""
    lines = ["| module | names |", "| --- | --- |"]
    for module, page in described.items():
        names = [name for section in page.values() for name in section]
        links = [f"{{py:obj}}`{n.rpartition('.')[2]} <{n}>`" for n in names]
        lines.append(f"| [{module}](api/{module}.md) | {', '.join(links)} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, Page]:
    """Module → what its page describes, each object once and no methods.

    A public name stands with the module that defines it; a public module brings the
    names that it offers.
    """
    found: dict[str, Page] = {}
    described = set(catalogue().values())

    def add(module: str, heading: str, value: object) -> None:
        if value not in described:
            described.add(value)
            names = found.setdefault(module, {}).setdefault(heading, [])
            names.append(f"{value.__module__}.{value.__qualname__}")

    public = {name: getattr(fl, name) for name in fl.__all__}
    parts = {n: value for n, value in public.items() if isinstance(value, ModuleType)}
    for name in public.keys() - parts.keys():
        add(_home(public[name]), "In `fl`", public[name])
    for name, part in parts.items():
        for value in _offers(part):
            add(name, f"In `fl.{name}`", value)
    for name, part in COURSE.items():
        for value in _offers(part):
            add(name, f"In `{part.__name__}`", value)
    for value in CONTRACT:
        add(_home(value), "What hooks and runs return", value)
    return {
        module: {heading: sorted(names) for heading, names in found[module].items()}
        for module in sorted(found)
    }


def _home(value: object) -> str:
    """The package's module that defines an object."""
    return value.__module__.split(".")[1]


def _offers(module: ModuleType) -> list[object]:
    """The functions and classes that a module lists, or that it or its parts define."""
    if hasattr(module, "__all__"):
        return [v for v in map(vars(module).get, module.__all__) if callable(v)]
    public = [value for name, value in vars(module).items() if name[0] != "_"]
    kinds = [v for v in public if inspect.isfunction(v) or inspect.isclass(v)]
    return [v for v in kinds if f"{v.__module__}.".startswith(f"{module.__name__}.")]


def _module(name: str) -> str:
    """The full name of a public module or of a module of the package."""
    public = COURSE.get(name, getattr(fl, name, None))
    is_module = isinstance(public, ModuleType)
    return public.__name__ if is_module else f"{fl.__name__}.{name}"


def _entry(dotted: str) -> list[str]:
    """The directive for one function or class."""
    if inspect.isclass(resolve_name(dotted)):
        return _directive("autoclass", dotted, "members")
    return _directive("autofunction", dotted)


def _directive(kind: str, name: str, *options: str) -> list[str]:
    """Lines of Markdown with a directive of Sphinx's."""
    return [
        "```{eval-rst}",
        f".. {kind}:: {name}",
        *(f"   :{option}:" for option in options),
        "```",
    ]
