"""Figures and tables as files that a rerun reproduces byte for byte."""

from __future__ import annotations

import json
import platform
import re
from importlib import metadata
from pathlib import Path, PurePath

import pandas as pd
from matplotlib.figure import Figure

from fedlab_support.plots.style import style

PACKAGES = ("fedlab_support", "matplotlib", "numpy", "pandas", "torch")
PRINT_DPI = 300


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
    Returns the path of the PNG. No file holds a time or a path of this machine.
    """
    target = _target(name, folder)
    data = data if data is not None else getattr(figure, "data", None)
    description = description or getattr(figure, "description", "")
    figure.description = description
    text = {"Title": name, "Description": description}
    with style():
        png, pdf, svg = (target.with_suffix(end) for end in (".png", ".pdf", ".svg"))
        figure.savefig(png, dpi=PRINT_DPI, metadata=text)
        figure.savefig(
            pdf, metadata={"Title": name, "Subject": description, "CreationDate": None}
        )
        figure.savefig(svg, metadata=text | {"Date": None})
    if data is not None:
        data.to_csv(target.with_suffix(".csv"), index=False, lineterminator="\n")
    record = {
        "name": name,
        "description": description,
        "size_inches": [round(float(inches), 3) for inches in figure.get_size_inches()],
        "parameters": _portable(parameters or {}),
        "versions": _versions(),
    }
    written = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    target.with_suffix(".json").write_text(written, encoding="utf-8")
    return png


def save_table(table: pd.DataFrame, name: str, folder: str | Path) -> Path:
    """Write a table as CSV (every digit) and as Markdown (to read).

    Returns the path of the CSV.
    """
    target = _target(name, folder)
    path = target.with_suffix(".csv")
    table.to_csv(path, index=False, lineterminator="\n")
    target.with_suffix(".md").write_text(_markdown(table), encoding="utf-8")
    return path


def _target(name: str, folder: str | Path) -> Path:
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name):
        raise ValueError(
            "expected a file name like 01_accuracy_by_round (lower case, digits and "
            f"single underscores, no ending), found {name!r}"
        )
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / name


def _portable(value: object) -> object:
    """Plain JSON; of a path on this machine only its last part."""
    if isinstance(value, dict):
        return {str(key): _portable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        entries = sorted(value) if isinstance(value, set) else value
        return [_portable(entry) for entry in entries]
    if isinstance(value, (str, PurePath)):
        return PurePath(value).name if PurePath(value).is_absolute() else str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.item() if hasattr(value, "item") else str(value)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # figures need no torch, and the course may run uninstalled
    return versions


def _markdown(table: pd.DataFrame) -> str:
    """Numbers right-aligned; floats with four significant digits."""

    def cell(entry: object) -> str:
        if isinstance(entry, float):
            return "–" if pd.isna(entry) else f"{entry:.4g}"
        return str(entry).replace("|", "\\|").replace("\n", " ")

    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    lines = [[cell(name) for name in table.columns]]
    lines += [["---:" if is_number else "---" for is_number in numeric]]
    lines += [[cell(e) for e in row] for row in table.itertuples(index=False)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
