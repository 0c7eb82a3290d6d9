"""Gather the sources of the site: pages, executed chapters and all linked files."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd

from ..editions import student
from ..frames import as_html
from ..page_widgets import without_widgets
from ..plots.written import as_markdown
from ..runner import ROOT, find_chapters
from .experiments import REGISTER, register
from .method_pages import write_method_pages
from .reference import write_reference

LINK = re.compile(r"(?:(?<=\]\()|(?<=src=\"))(?!\w+:|#)([^)\s#\"]+)")  # to a file
ORPHAN = "---\norphan: true\n---\n"  # front matter of a page outside the menus


def gather(executed: Path, out: Path, frames: Path) -> None:
    """Write the sources of the site into the folder ``out``, emptied before.

    executed:  the folder of executed chapters, as the runner leaves them.
    frames:    the folder of their explorers' frames, by chapter; the site has it at its
               top as ``frames``.
    """
    shutil.rmtree(out, ignore_errors=True)
    (out / "notebooks").mkdir(parents=True)
    for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        text = settle(page.read_text(encoding="utf-8"), page, out)
        (out / page.name).write_text(text, encoding="utf-8")
    for chapter in find_chapters():
        _write_chapter(chapter, executed / chapter.name, out, frames)
    write_method_pages(out)
    experiments = settle(register(), REGISTER, out)
    (out / "experiments.txt").write_text(experiments, encoding="utf-8")
    write_reference(out)


def _write_chapter(chapter: Path, executed: Path, out: Path, frames: Path) -> None:
    """Write a chapter for students: no solutions, explorers with their frames.

    Code that a chapter collapses is collapsed here, too.
    """
    mine = frames / chapter.stem

    def explorer(model: str) -> str:
        if not (mine / model).is_dir():
            return ""
        return as_html(mine / model, f"../frames/{chapter.stem}/{model}")

    notebook = student(nbformat.read(executed, as_version=4))
    notebook = without_widgets(notebook, explorer)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = settle(cell.source, chapter, out)
        if cell.metadata.get("jupyter", {}).get("source_hidden"):
            cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
        if described := _descriptions(cell):
            cell.metadata.mystnb = {"image": {"alt": described}}
    nbformat.write(notebook, out / "notebooks" / chapter.name)


def _descriptions(cell: nbformat.NotebookNode) -> str:
    """The alternative texts of the images below a cell; MyST-NB takes one per cell."""
    about = [output.get("metadata", {}) for output in cell.get("outputs", [])]
    texts = [given.get("image/png", {}).get("alt", "") for given in about]
    return " ".join(dict.fromkeys(filter(None, texts)))


def settle(text: str, origin: Path, out: Path) -> str:
    """Point the relative links of a page to places in the site, and copy their files.

    A link to a table leads to a page that shows it, or to the table where a page has
    its name. A link to a file that does not exist stays as it is, so that Sphinx
    complains.
    """
    here = (out / _place(origin)).parent

    def point(match: re.Match) -> str:
        """The place of one link's target."""
        target = Path(os.path.normpath(origin.parent / match[1]))
        if not target.is_file():
            return match[1]
        copy = out / _place(target)
        if target.suffix == ".csv" and not target.with_suffix(".md").exists():
            copy = copy.with_suffix(".md")
        if target.suffix != ".ipynb" and not copy.exists():
            _bring(target, copy)
        return Path(os.path.relpath(copy, here)).as_posix()

    return LINK.sub(point, text)


def _place(file: Path) -> Path:
    """The place of a repository file in the site; ``docs`` becomes the top folder."""
    inside = file.relative_to(ROOT)
    return inside.relative_to("docs") if inside.parts[0] == "docs" else inside


def _bring(file: Path, copy: Path) -> None:
    """Copy a file that a page links to; ``copy`` may be a page for a table.

    A page of the menus is written over its copy later.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv" and copy.suffix == ".md":
        table = as_markdown(pd.read_csv(file))
        copy.write_text(f"{ORPHAN}\n{table}", encoding="utf-8")
    elif file.suffix == ".md":
        copy.write_text(ORPHAN + file.read_text(encoding="utf-8"), encoding="utf-8")
    else:
        shutil.copy(file, copy)
