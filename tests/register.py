"""Commands of the register of experiments, rehearsed on tiny official files.

    python -m tests.register     # all, with all methods; "04" for one chapter

A rehearsal takes a command of ``docs/experiments.csv`` and the parameters that it gives
its chapter, lowers numbers (one round, one seed, tiny images and networks), and runs
the chapter's cells that the row's tables depend on, and no others.
"""

from __future__ import annotations

import ast
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import nbformat

from fedlab_course import comparison, protocols, runner
from fedlab_course.plots import export
from fedlab_course.plots.stored import read_records
from fedlab_course.site.experiments import commands, experiments
from fedlab_support import models, styles
from tests.styler import TinyStyles
from tests.vit import narrow_vit

# ---- what to run --------------------------------------------------------------------
ADDED = ("questions", "elsewhere", "left_out", "pairs", "cameras", "imbalances")
ADDED += ("amounts",)
"""Parameters that rows share a rehearsal in spite of: what all of them ask is run."""


@dataclass
class Rehearsal:
    """A chapter with parameters that serves one row of the register, or several.

    tables: paper and item of each row → the tables that its cells write.
    """

    chapter: Path
    params: dict
    tables: dict[tuple[str, str], list[str]]

    @property
    def label(self) -> str:
        """For a test's name."""
        data = self.params.get("protocol", self.params.get("dataset", ""))
        return f"{self.chapter.stem[:3].rstrip('_')} {data}".replace("paper: ", "")


def plans(row: dict[str, str]) -> Iterator[tuple[Path, dict]]:
    """Chapter and parameters of each command of a row."""
    for command in commands(row):
        yield from planned(command).items()


@cache
def planned(command: str) -> dict[Path, dict]:
    """Chapter and parameters of a command."""
    python, dash, module, *arguments = shlex.split(command)
    assert (python, dash, module) == ("python", "-m", "fedlab_course.runner")
    chosen = runner.command_line().parse_args(arguments)
    return runner.planned(chosen)


def rehearsals() -> list[Rehearsal]:
    """All commands of the register, those with the same parameters together."""
    found: dict[tuple, Rehearsal] = {}
    for row in experiments():
        for chapter, params in plans(row):
            known = written(chapter)
            tables = [n for n in row["writes"].split("; ") if _cells_of(n, known)]
            kept = {n: v for n, v in params.items() if n not in ADDED}
            kept = {n: v for n, v in kept.items() if not n.endswith("seeds")}
            key = chapter, *sorted((n, repr(v)) for n, v in kept.items())
            one = found.setdefault(key, Rehearsal(chapter, dict(params), {}))
            one.tables.setdefault((row["paper"], row["item"]), []).extend(tables)
            for name in set(ADDED) & params.keys():
                more = [v for v in params[name] if v not in one.params[name]]
                one.params[name] = one.params[name] + more
    return list(found.values())


# ---- the cells behind a table -------------------------------------------------------
CHANGING = {"ask", "append", "update", "setdefault", "step", "fit"}
"""Methods after which an object is another one."""


@dataclass(frozen=True)
class Cell:
    """A code cell: names that it sets, those it changes or reads, tables it writes."""

    name: str
    source: str
    sets: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    writes: tuple[str, ...]
    is_parameters: bool


@cache
def cells_of(chapter: Path) -> tuple[Cell, ...]:
    """The code cells of a chapter in order, without exercises and solutions."""
    cells = nbformat.read(chapter, as_version=4).cells
    code = [c for c in cells if c.cell_type == "code"]
    code = [c for c in code if "solution" not in c.metadata.get("tags", ())]
    return tuple(_cell(c) for c in code)


def _cell(cell) -> Cell:
    tree, names = ast.parse(cell.source), Names()
    names.visit(tree)
    writes = [name for node in ast.walk(tree) for name in _written_by(node, tree)]
    params = "parameters" in cell.metadata.get("tags", ())
    given = map(frozenset, (names.sets, names.changes, names.reads))
    return Cell(cell.id, cell.source, *given, tuple(writes), params)


class Names(ast.NodeVisitor):
    """The names that a cell sets, those it changes, and those it reads before."""

    def __init__(self):
        self.sets, self.changes, self.reads = set(), set(), set()

    def visit_Assign(self, node):
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_AugAssign(self, node):
        self.visit(node.value)
        self.changes |= _base(node.target)
        self.reads |= _base(node.target) - self.sets

    def visit_For(self, node):
        for part in (node.iter, node.target, *node.body, *node.orelse):
            self.visit(part)

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Load):
            self.reads |= {node.id} - self.sets
        else:
            self.sets.add(node.id)

    def visit_Subscript(self, node):
        self._changed_if(node, isinstance(node.ctx, ast.Store))

    def visit_Attribute(self, node):
        self._changed_if(node, isinstance(node.ctx, ast.Store))

    def visit_Call(self, node):
        is_method = isinstance(node.func, ast.Attribute)
        self._changed_if(node, is_method and node.func.attr in CHANGING)

    def _changed_if(self, node, is_changed: bool):
        self.changes |= _base(node) - self.sets if is_changed else set()
        self.generic_visit(node)

    def _scope(self, node):
        inside = Names()
        inside.generic_visit(node)
        bound = {a.arg for a in ast.walk(node) if isinstance(a, ast.arg)}
        bound |= {n.id for n in ast.walk(node) if _is_set(n)}
        self.reads |= inside.reads - bound - self.sets
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.sets.add(node.name)

    visit_FunctionDef = visit_ClassDef = visit_Lambda = visit_ListComp = _scope
    visit_SetComp = visit_DictComp = visit_GeneratorExp = _scope

    def visit_alias(self, node):
        self.sets.add((node.asname or node.name).partition(".")[0])


def _is_set(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _base(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _written_by(node: ast.AST, tree: ast.Module) -> list[str]:
    """The names, or patterns of names, of the tables and figures that a call writes."""
    if not isinstance(node, ast.Call):
        return []
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called in ("save_figure", "save_table"):
        return [_pattern(node.args[1], tree)]
    if called == "answer":
        return [_pattern(node.args[0], tree).replace(" ", "_")]
    return []


def _pattern(node: ast.expr, tree: ast.Module) -> str:
    """A text with an asterisk for each part that is not written in the cell."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.BinOp):
        return _pattern(node.left, tree) + _pattern(node.right, tree)
    if isinstance(node, ast.JoinedStr):
        return "".join(_pattern(part, tree) for part in node.values)
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "replace":
        return _pattern(node.func.value, tree)
    if isinstance(node, ast.Name):
        for other in ast.walk(tree):
            targets = other.targets if isinstance(other, ast.Assign) else []
            if any(isinstance(t, ast.Name) and t.id == node.id for t in targets):
                return _pattern(other.value, tree)
    return "*"


def written(chapter: Path) -> dict[str, list[str]]:
    """Cell → the tables that it writes."""
    return {cell.name: list(cell.writes) for cell in cells_of(chapter)}


def _cells_of(table: str, known: dict[str, list[str]]) -> list[str]:
    """The cells that write a table."""
    exact = [cell for cell, names in known.items() if table in names]
    if exact or not table:
        return exact
    return [c for c, names in known.items() if any(fnmatch(table, n) for n in names)]


def behind(chapter: Path, tables: list[str]) -> list[Cell]:
    """The cells that some tables depend on, in order."""
    wanted, chosen, known = set(), [], written(chapter)
    targets = {cell for table in tables for cell in _cells_of(table, known)}
    for cell in reversed(cells_of(chapter)):
        if cell.name in targets or wanted & (cell.sets | cell.changes):
            chosen.append(cell)
            wanted = (wanted - cell.sets) | cell.reads | cell.changes
    return chosen[::-1]


# ---- at smoke size ------------------------------------------------------------------
ONE = {"rounds": 1, "grid_rounds": 1, "method_rounds": 1, "sweep_rounds": 1}
ONE |= {"centralised_epochs": 1, "evaluate_every": 1, "last_rounds": 1}
ONE |= {"device": "cpu", "style_file": "", "look_pictures": 20, "letters_rounds": 1}
OF_CHAPTER = {
    "01_fedavg": {"model": "small_cnn", "grid_model": "small_cnn"}
    | {"clients_per_round": 3, "grid_clients": [2]},
    "02_client_selection": {"model": "small_cnn"},
    "03_fedsr_feddg": {"model": "small_cnn", "clients_per_round": 3},
    "04_fedfa": {"look_rounds": 1},
    "04b_fedfa_segmentation": {"size": 16, "model": "small_unet", "fewest": 5},
    "05_fisc": {"look_rounds": [0, 1], "grid": 3},
    "05b_style_attack": runner.profile("smoke", "05b_style_attack")
    | {"network": "small", "size": 32, "clients_per_domain": 2},
    "06_fedgcr": {"look_rounds": 2},
}
FIRST = ("left_out", "pairs", "camera_mixtures", "local_epochs", "grid_epochs")
FIRST += ("amounts", "method_epochs")
"""Lists of which a rehearsal takes the first entry."""


def ask_few(self, questions, *given, **grid):
    """Ask for three settings of each question."""
    chapter = self.chapter.name
    shorter = {q: few(self.questions[q], chapter) for q in questions}
    self.questions |= shorter
    return WHOLE_ASK(self, questions, *given, **grid)


WHOLE_ASK = comparison.Comparison.ask
COMPARED = ("methods", "unseen_methods", "imbalance_methods", "compared")
COMPARED += ("amount_methods", "cameras")
OWN = {"04b_fedfa_segmentation": "FedFA+", **comparison.WHOLE}


def few(methods: list, chapter: str, most: int | None = 3) -> list:
    """FedAvg, the chapter's own method, and others, of those that are listed."""
    first = [name for name in ("FedAvg", OWN.get(chapter)) if name in methods]
    return [*first, *(name for name in methods if name not in first)][:most]


def smaller(params: dict, chapter: str, is_whole: bool = False) -> dict:
    """The same parameters with low numbers; is_whole: with all methods."""
    found = dict(params)
    own = ONE | OF_CHAPTER.get(chapter, {})
    found |= {name: value for name, value in own.items() if name in params}
    for name, value in params.items():
        if name.endswith("seeds"):
            found[name] = [0]
        elif name in FIRST and isinstance(value, list):
            found[name] = value[:1]
        elif name in COMPARED and not is_whole:
            found[name] = few(value, chapter)
    if "elsewhere" in params:
        most = None if is_whole else 2
        found["elsewhere"] = [
            [*where, few(names, chapter, most), [0]]
            for *where, names, _ in params["elsewhere"]
        ]
    return found


NARROW = partial(models.AlexNet, widths=(2, 4, 4, 4, 4), hidden=8)


@cache
def small_protocol(name: str) -> protocols.Protocol:
    """The protocol of that name with tiny images and networks, and few clients."""
    rules = protocols.protocol(name)
    known = rules.deal.keywords
    if "order" in known:
        network = partial(narrow_vit, prompts=4)
        own = {
            name: replace(each, network=each.network and narrow_vit)
            for name, each in rules.own.items()
        }
        rules = replace(rules, network=network, own=own)
        # few images for so many clients
        rules = rules.dealing(size=8, tested=8, share=1.0, is_series=False)
    elif "share" in known:
        rules = replace(rules, network=NARROW).dealing(size=64)
    elif "lam" in known or rules.deal.func.__name__ == "mixtures":
        rules = replace(rules, network=models.small_cnn, cohort=2)
        rules = rules.dealing(size=16, clients=10)
    else:
        rules = replace(rules, network=models.small_cnn, cohort=2)
        if "clients" in known:
            rules = rules.dealing(clients=5)
    training = replace(rules.training, epochs=min(2, rules.training.epochs))
    return replace(rules, training=training, rounds=1, every=1)


def style_network(source: str = "small"):
    """The network that is shipped, or a tiny one in place of a file of weights."""
    return SHIPPED(source) if source == "small" else TinyStyles()


SHIPPED = styles.style_network


def rehearse(
    one: Rehearsal, root: Path, build: Path, is_whole: bool = False
) -> dict[str, Path]:
    """Run the cells that write the tables; returns every table that was written.

    is_whole: with all methods, not only three.
    """
    figures, runs = build / "figures", build / "runs"
    folders = {"figures_dir": str(figures), "runs_dir": str(runs)}
    tables = [table for names in one.tables.values() for table in names]
    space = {"__name__": "__main__", "display": lambda *shown: None}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"FEDLAB_DATA": str(root)}))
        stack.enter_context(patch.object(comparison, "protocol", small_protocol))
        stack.enter_context(patch.object(styles, "style_network", style_network))
        pictures = patch.object(export, "write_pictures", lambda *given, **more: None)
        stack.enter_context(pictures)  # other tests draw them
        if not is_whole:
            stack.enter_context(patch.object(comparison.Comparison, "ask", ask_few))
        for cell in behind(one.chapter, tables):
            began = time.process_time()
            exec(compile(cell.source, f"{one.chapter.stem}:{cell.name}", "exec"), space)
            if cell.is_parameters:
                known = {name: space[name] for name in space["__annotations__"]}
                space |= smaller(known | one.params, one.chapter.stem, is_whole)
                space |= folders
            if "VERBOSE" in os.environ:
                print(f"{time.process_time() - began:7.2f} {cell.name}", flush=True)
    found = {name: figures / f"{name}.csv" for name in read_records(figures)}
    return found | {file.stem: file for file in figures.glob("*.csv")}


def needed(all_of_them: list[Rehearsal]) -> list[Rehearsal]:
    """The first rehearsal of each row: what CI has the time for."""
    seen, chosen = set(), []
    for one in all_of_them:
        rows = {row for row, tables in one.tables.items() if tables}
        if rows - seen:
            chosen.append(one)
            seen |= rows
    return chosen


def main(wanted: list[str]) -> None:
    """Rehearse everything with all methods, or only chapters such as 04."""
    import tempfile

    from tests import official

    with tempfile.TemporaryDirectory() as folder:
        official.write_all(Path(folder, "data"))
        for number, one in enumerate(rehearsals()):
            if wanted and not one.label.startswith(tuple(wanted)):
                continue
            began, build = time.process_time(), Path(folder, str(number))
            found = rehearse(one, Path(folder, "data"), build, is_whole=True)
            seconds = time.process_time() - began
            print(f"{seconds:6.1f} s  {one.label}: {', '.join(sorted(found))}")


if __name__ == "__main__":
    main(sys.argv[1:])
