"""Run the chapters from outside Jupyter, each at most once.

    python -m fedlab_course.runner --profile laptop --chapters 00 --set seed=3

Every chapter runs in a process of its own and leaves, under ``build``:

    figures/<chapter>/         what its cells exported
    notebooks/<chapter>.ipynb  the executed copy, or <chapter>.failed.ipynb
    html/<chapter>.html        the same as one page that needs no network
    frames/<chapter>/          with --frames, what its explorers show, for the site
    stamps/<chapter>.json      what was run; an unchanged chapter is not run again
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import nbformat

import fedlab_support
from fedlab_support.core.files import replacing

from .chapter import ROOT
from .html_export import export_html
from .papermill_runner import (
    ChapterError,
    Parameters,
    check,
    data_folders,
    declared_figures,
    execute,
    missing_figures,
    own_folders,
    read_yaml,
    stopped_by_signals,
)

COURSE = Path(__file__).resolve().parent
NOTEBOOKS, BUILD = ROOT / "notebooks", ROOT / "build"
PACKAGES = (Path(fedlab_support.__file__).parent, COURSE)
"""What a chapter's results depend on, beside its cells and parameters."""
DRAWING = """from fedlab_course.frames import draw_all
draw_all({folder!r})"""
"""The cell that draws frames, in the chapter's kernel."""
SHIPPED = (".py", ".npz", ".safetensors", ".csv")
"""Endings of a package's files that enter a chapter's fingerprint."""


def find_chapters(wanted: Sequence[str] = (), folder: Path = NOTEBOOKS) -> list[Path]:
    """The chapters in ``folder`` in reading order, or only those that are asked for.

    wanted:  numbers or names, such as ``05`` (which is not 05b) or ``05_fisc``; none
             means all.
    Raises ValueError when there is no chapter, or none with a wanted name.
    """
    chapters = sorted(folder.glob("[0-9][0-9]*_*.ipynb"))  # 04b comes after 04
    names = [chapter.stem for chapter in chapters]
    if not chapters:
        raise ValueError(
            f"expected chapters like 00_tour.ipynb in {folder}, found none; "
            "chapters come with a clone of the course or with what `make handout` "
            "writes: work in that folder"
        )
    for name in wanted:
        if not any(_is_called(known, name) for known in names):
            raise ValueError(
                f"expected a chapter out of {names}, found {name!r}; "
                "name it by its number, 01, or in full, 01_fedavg"
            )
    if not wanted:
        return chapters
    return [c for c in chapters if any(_is_called(c.stem, name) for name in wanted)]


def _is_called(chapter: str, name: str) -> bool:
    return name in (chapter, chapter.partition("_")[0])


def profile(name: str, chapter: str, folder: Path = NOTEBOOKS) -> Parameters:
    """The parameters of one chapter in ``<folder>/profiles/<name>/<chapter>.yaml``.

    Raises ValueError for an unknown profile, and for a chapter without a file: a
    forgotten one would silently run at the chapter's default size.
    """
    home = folder / "profiles"
    known = sorted(path.name for path in home.glob("*/"))
    if known and name not in known:
        raise ValueError(
            f"expected a profile out of {known}, found {name!r}; check the spelling"
        )
    file = home / name / f"{chapter}.yaml"
    if not file.exists():
        raise ValueError(
            f"expected a file {file.name} in {file.parent}, found none; add one "
            "({} keeps the chapter's own parameters)"
        )
    return dict(read_yaml(file.read_text(encoding="utf-8"), str(file)) or {})


def run_chapter(
    notebook: Path, params: Parameters, build: Path = BUILD, frames: bool = False
) -> float:
    """Execute a chapter, check its figures, write its page; return the seconds.

    frames: also draw what its explorers show for other values of their controls.
    Raises ChapterError, or ValueError for a parameter or a formula that cannot be read;
    then it leaves no stamp.
    """
    name, began = notebook.stem, time.time()
    stamp = build / "stamps" / f"{name}.json"
    stamp.unlink(missing_ok=True)
    params = _with_figures_dir(notebook, params, build)
    mark = fingerprint(notebook, params)
    executed, drawn = build / "notebooks" / notebook.name, build / "frames" / name
    shutil.rmtree(drawn, ignore_errors=True)  # frames belong to one execution
    if frames:
        execute_with_frames(notebook, executed, params, drawn)
    else:
        execute(notebook, executed, params, progress=_show_progress)
    if "figures_dir" in params:
        folder = notebook.parent / params["figures_dir"]
        if missing := missing_figures(notebook, folder, since=began - 1):
            raise ChapterError(f"expected the declared figures, missing {missing}")
    export_html(executed, build / "html" / f"{name}.html", links_from=notebook.parent)
    seconds = time.time() - began
    stamp.parent.mkdir(parents=True, exist_ok=True)
    record = {"mark": mark, "parameters": params, "seconds": round(seconds, 1)}
    with replacing(stamp) as part:
        part.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return seconds


def execute_with_frames(
    notebook: Path, out: Path, params: Parameters, folder: Path
) -> None:
    """Execute a chapter and then a hidden last cell, which draws the frames.

    folder: receives the frames.
    """
    copy = out.with_suffix(".drawing.ipynb")
    content = nbformat.read(notebook, as_version=4)
    code = DRAWING.format(folder=str(folder.resolve()))
    content.cells.append(nbformat.v4.new_code_cell(code))
    copy.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(content, copy)
    try:
        execute(copy, out, params, cwd=notebook.parent, progress=_show_progress)
    finally:
        copy.unlink()
    content = nbformat.read(out, as_version=4)
    content.cells.pop()
    nbformat.write(content, out)


def is_current(
    notebook: Path, params: Parameters, build: Path = BUILD, frames: bool = False
) -> bool:
    """Whether the last successful run had these inputs and its files still exist."""
    name = notebook.stem
    stamp = build / "stamps" / f"{name}.json"
    pages = (build / "notebooks" / f"{name}.ipynb", build / "html" / f"{name}.html")
    drawn = [build / "frames" / name] if frames else []
    if not all(file.exists() for file in (stamp, *pages, *drawn)):
        return False
    params = _with_figures_dir(notebook, params, build)
    try:
        record = json.loads(stamp.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return False
    folder = notebook.parent / params.get("figures_dir", ".")
    mark = record.get("mark") if isinstance(record, dict) else None
    same = mark == fingerprint(notebook, params)
    return same and not missing_figures(notebook, folder)


def _with_figures_dir(notebook: Path, params: Parameters, build: Path) -> Parameters:
    """Parameters with a folder for figures in ``build``, if none is given."""
    figures = build / "figures" / notebook.stem
    return own_folders(notebook, figures_dir=figures) | params


def fingerprint(
    notebook: Path, params: Parameters, packages: Sequence[Path] = PACKAGES
) -> str:
    """A hash of what a run depends on: cells, parameters, packages, names of folders.

    Packages are their code and the files that they ship; the folders are those of data
    and weights, whose contents are not read.
    """
    content = nbformat.read(notebook, as_version=4)
    cells = [(cell.cell_type, cell.source) for cell in content.cells]
    parts = [cells, declared_figures(notebook), params, data_folders()]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for package in packages:
        for file in sorted(package.rglob("*")):
            if file.suffix in SHIPPED:
                digest.update(file.relative_to(package.parent).as_posix().encode())
                digest.update(file.read_bytes())
    return digest.hexdigest()


def command_line() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlab_course.runner",
        description="Run the course's chapters.",
    )
    parser.add_argument(
        "--profile", default="laptop", help="smoke, laptop, real or paper"
    )
    parser.add_argument("--chapters", nargs="+", default=(), metavar="01")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--again", action="store_true", help="run unchanged ones too")
    parser.add_argument("--frames", action="store_true", help="also draw explorers")
    parser.add_argument("--notebooks", type=Path, default=NOTEBOOKS, metavar="FOLDER")
    parser.add_argument("--build", type=Path, default=BUILD, metavar="FOLDER")
    return parser


def planned(chosen: argparse.Namespace) -> dict[Path, Parameters]:
    """The chapters that a command line names, with their parameters.

    Raises ValueError for an unknown chapter, profile or parameter.
    """
    given = each_once(map(assignment, chosen.set))
    plan = {
        chapter: profile(chosen.profile, chapter.stem, chosen.notebooks) | given
        for chapter in find_chapters(chosen.chapters, chosen.notebooks)
    }
    for chapter, params in plan.items():
        check(chapter, params)
    return plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chapters on the command line; return 1 if one failed."""
    parser = command_line()
    chosen = parser.parse_args(arguments)
    try:
        plan = planned(chosen)
    except ValueError as error:
        parser.error(str(error))
    with stopped_by_signals():
        return _run_all(plan, chosen.build, chosen.again, chosen.frames)


def assignment(text: str) -> tuple[str, Any]:
    """Read ``name=value``, the value as YAML: 3, 0.1, true, [1, 5], femnist."""
    name, sign, value = text.partition("=")
    if not sign:
        raise ValueError(f"expected --set name=value, found {text!r}; add the '='")
    return name, read_yaml(value, f"--set {text}")


def each_once(pairs: Iterable[tuple[str, Any]]) -> Parameters:
    """Names and values as a dictionary; ValueError for a repeated name."""
    found: Parameters = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"expected {name} once, found it twice; leave one out")
        found[name] = value
    return found


def _show_progress(done: int, of: int, seconds: float) -> None:
    """Print the progress of a chapter on a new line."""
    print(f"\n    cell {done} of {of} after {seconds:.0f} s", end="", flush=True)


def _run_all(
    plan: dict[Path, Parameters], build: Path, again: bool, frames: bool
) -> int:
    """Run chapter by chapter with one line each; a failure does not stop the rest."""
    num_failed = 0
    for chapter, params in plan.items():
        print(f"{chapter.stem:<24}", end="", flush=True)
        began = time.time()
        try:
            if not again and is_current(chapter, params, build, frames):
                print("        ok, unchanged since its last run", flush=True)
                continue
            seconds = run_chapter(chapter, params, build, frames)
            print(f"{seconds:5.0f} s  ok", flush=True)
        except (ChapterError, ValueError, OSError) as error:
            num_failed += 1
            print(f"{time.time() - began:5.0f} s  FAILED  {error}", flush=True)
    num_ok = len(plan) - num_failed
    print(f"{num_ok} of {len(plan)} chapters ok, results in {os.path.relpath(build)}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
