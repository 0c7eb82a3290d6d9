"""Draw all stored figures again, from their tables and without training."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from . import figures  # noqa: F401 - whose drawings are found by their names
from .plots import SIZES, Picture
from .plots.drawing import DRAWINGS
from .plots.export import FORMATS, write_pictures
from .plots.stored import RECORDS, read_records


def find_figures(folder: Path) -> list[Path]:
    """The figures below a folder, as paths without an ending, in order.

    Raises ValueError when there are none, or when a figures.json is damaged.
    """
    files = sorted(folder.rglob(RECORDS))
    found = [file.parent / name for file in files for name in read_records(file.parent)]
    if not found:
        raise ValueError(
            f"expected figures and their {RECORDS} below {folder}, found none; name "
            "the folder that save_figure wrote to"
        )
    return found


def read_record(target: Path) -> dict[str, object]:
    """The record of the figure ``target``, a path without an ending."""
    return read_records(target.parent)[target.name]


def draw_again(target: Path, **options: object) -> Picture:
    """Draw a figure from its files.

    target:   folder and name of the figure, without an ending.
    options:  arguments that replace the stored ones, such as ``size`` or ``title``.
    Raises ValueError, with a remedy, for files that are missing or damaged, for a plot
    function that no longer exists, and for a figure that no such function drew.
    """
    record = read_record(target)
    call = record.get("drawn_by") or {}
    if reason := why_not(call, options):
        raise ValueError(f"{target.name} cannot be drawn from files: {reason}")
    if call["plot"] not in DRAWINGS:
        raise ValueError(
            f"{target.name}: expected a plot in {sorted(DRAWINGS)}, found "
            f"{call['plot']!r}; if it was renamed, {_cure(target)}"
        )
    try:
        given = {
            argument: read(target.parent / entry["file"], entry)
            for kind, read in (("tables", _read), ("pixels", _read_pixels))
            for argument, entry in call.get(kind, {}).items()
        }
        figure = DRAWINGS[call["plot"]](**given, **(call["options"] | options))
    except (OSError, KeyError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"{target.name}: {found}; {_cure(target)}") from error
    figure.description = record.get("description", "")
    return figure


def why_not(call: dict[str, object], options: Collection[str] = ()) -> str:
    """The reason why a stored call cannot be redrawn with these options, or ""."""
    if not call:
        return "drawn by hand in its chapter, or before calls were kept"
    if missing := call.get("not_stored"):
        return f"{', '.join(missing)} of {call['plot']} would be long as a table"
    if call["plot"] in DRAWINGS:
        known = inspect.signature(DRAWINGS[call["plot"]]).parameters
        if more := [n for n in options if n not in known]:
            return f"{call['plot']} takes no {' and no '.join(more)}"
    return ""


def _cure(path: Path) -> str:
    parts = (part.partition("_")[0] for part in reversed(path.parts))
    chapter = next((part for part in parts if re.fullmatch(r"\d\d[a-z]?", part)), "00")
    return (
        "take its files from git again, or delete them and make them: "
        f'make run RUN_ARGS="--chapters {chapter} --again"'
    )


def _read(path: Path, entry: dict) -> pd.DataFrame:
    blank = {"keep_default_na": False, "na_values": [""]}
    table = pd.read_csv(path, dtype=entry["kinds"], encoding="utf-8", **blank)
    if len(table) != entry["rows"]:
        raise ValueError(
            f"expected {entry['rows']} rows in {path.name}, found {len(table)}"
        )
    texts = [name for name, kind in entry["kinds"].items() if kind == "str"]
    return table.fillna(dict.fromkeys(texts, ""))


def _read_pixels(path: Path, entry: dict) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image).reshape(entry["shape"])


def redraw(
    target: Path,
    folder: Path | None = None,
    formats: Sequence[str] = ("png",),
    **options: object,
) -> bool:
    """Draw one stored figure again; return whether a file is new or changed.

    target:  folder and name of the figure, without an ending.
    folder:  where to write the image; by default where the figure is.
    options: as in `draw_again`.
    Raises ValueError as `draw_again`, or when the folder cannot be written.
    """
    figure = draw_again(target, **options)
    return write_pictures(figure, (folder or target.parent) / target.name, formats)


def main(arguments: Sequence[str] | None = None) -> int:
    """Redraw the figures on the command line; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlab_course.redraw",
        description="Draw stored figures again, without training.",
    )
    parser.add_argument("figures", type=Path, help="folder, with its subfolders")
    into = "write here, and leave the stored figures as they are"
    parser.add_argument("--into", type=Path, metavar="FOLDER", help=into)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["png"])
    parser.add_argument("--size", choices=list(SIZES), help="default: as stored")
    chosen = parser.parse_args(arguments)
    if chosen.size and not chosen.into:
        parser.error("--size changes figures: name a folder for them with --into")
    try:
        paths = find_figures(chosen.figures)
    except ValueError as error:
        parser.error(str(error))
    return _redraw_all(paths, chosen)


def _redraw_all(paths: Sequence[Path], chosen: argparse.Namespace) -> int:
    """Print one line per figure that changes, fails, or cannot be drawn from files."""
    num_changed, failed, left = 0, 0, []
    options = {"size": chosen.size} if chosen.size else {}
    for path in paths:
        name = path.relative_to(chosen.figures)
        if reason := why_not(read_record(path).get("drawn_by") or {}, options):
            left.append(f"{name}: {reason}")
            continue
        folder = chosen.into and chosen.into / name.parent
        try:
            is_new = redraw(path, folder, chosen.formats, **options)
        except ValueError as error:
            failed += 1
            print(f"FAILED  {error}", flush=True)
            continue
        num_changed += is_new
        if is_new:
            print(f"drawn   {name}", flush=True)
    drawn = len(paths) - failed - len(left)
    print(f"{drawn} of {len(paths)} figures drawn, {num_changed} new or changed")
    if left:
        print(f"{len(left)} cannot be drawn from their files:")
        print("\n".join(f"  {line}" for line in left))
        print('Chapters draw them: make run RUN_ARGS="--chapters 00 …"')
    if left and options:  # what was asked for is not complete
        print("Take these from --formats pdf without --size; a report can scale them.")
    return 1 if failed or (left and options) else 0


if __name__ == "__main__":
    sys.exit(main())
