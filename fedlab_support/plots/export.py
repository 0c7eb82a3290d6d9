"""Figures and tables as files that a rerun reproduces byte for byte."""

from __future__ import annotations

import errno
import io
import json
import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from .stored import portable, write_call, write_table
from .style import style
from .written import as_latex, as_markdown

PACKAGES = ("fedlab_support", "matplotlib", "numpy", "pandas", "torch")
PRINT_DPI = 300
FORMATS = ("png", "pdf", "svg")


def save_figure(
    figure: Figure,
    name: str,
    folder: str | Path,
    data: pd.DataFrame | None = None,
    parameters: dict[str, object] | None = None,
    *,
    description: str = "",
) -> Path:
    """Write a figure as PNG, PDF and SVG with its numbers and parameters.

    name:        `chapter_what`, lower case; the files are name.png, .pdf, .svg, .csv
                 and .json. folder is created.
    data:        what was plotted; by default what the figure remembers.
    description: one sentence, the alternative text; kept inside PNG and SVG, and by the
                 figure.
    The JSON keeps the call that drew the figure, see `redraw`; its further tables and
    pictures lie in files name_argument. Returns the path of the PNG.
    """
    target = _target(name, folder)
    data = data if data is not None else getattr(figure, "data", None)
    figure.description = description or getattr(figure, "description", "")
    write_pictures(figure, target)
    if data is not None:
        write_table(data, target.with_suffix(".csv"))
    call = getattr(figure, "drawn_by", None)
    record = {
        "name": name,
        "description": figure.description,
        "size_inches": [round(float(inches), 3) for inches in figure.get_size_inches()],
        "parameters": portable(parameters or {}),
        "drawn_by": call and write_call(call, target, data),
        "versions": _versions(),
    }
    written = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    target.with_suffix(".json").write_text(written, encoding="utf-8")
    return target.with_suffix(".png")


def write_pictures(
    figure: Figure, target: Path, formats: Sequence[str] = FORMATS
) -> bool:
    """Write a figure as `target`.png and so on; return whether a file changed.

    No file holds a time or a path of this machine. Raises ValueError when the folder
    cannot be written.
    """
    folder, description = _writable(target.parent), getattr(figure, "description", "")
    text = {"Title": target.name, "Description": description}
    about = {
        "png": {"dpi": PRINT_DPI, "metadata": text},
        "svg": {"metadata": text | {"Date": None}},
        "pdf": {
            "metadata": {
                "Title": target.name,
                "Subject": description,
                "CreationDate": None,
            }
        },
    }
    is_new = False
    for ending in formats:
        file, drawn = folder / f"{target.name}.{ending}", io.BytesIO()
        with style():
            figure.savefig(drawn, format=ending, **about[ending])
        is_new |= not file.exists() or file.read_bytes() != drawn.getvalue()
        file.write_bytes(drawn.getvalue())
    return is_new


def save_table(
    table: pd.DataFrame,
    name: str,
    folder: str | Path,
    *,
    caption: str = "",
    label: str = "",
) -> Path:
    """Write a table as CSV (every digit), as Markdown (to read) and for LaTeX.

    caption, label: of a LaTeX `table`; without both the file holds the `tabular` alone.
                    It needs the package booktabs.
    Returns the path of the CSV; the others end in .md and .tex.
    """
    target = _target(name, folder)
    path = target.with_suffix(".csv")
    write_table(table, path)
    for ending, text in (
        (".md", as_markdown(table)),
        (".tex", as_latex(table, caption, label)),
    ):
        target.with_suffix(ending).write_text(text, encoding="utf-8")
    return path


def _target(name: str, folder: str | Path) -> Path:
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name):
        raise ValueError(
            "expected a file name like 01_accuracy_by_round (lower case, digits and "
            f"single underscores, no ending), found {name!r}"
        )
    return _writable(Path(folder)) / name


def _writable(folder: Path) -> Path:
    """Create the folder; ValueError when nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "no permission")
    except OSError as error:
        raise ValueError(
            f"expected a folder that can be written, found {folder} "
            f"({error.strerror}); name another one, such as build/figures"
        ) from error
    return folder


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # figures need no torch, and the course may run uninstalled
    return versions
