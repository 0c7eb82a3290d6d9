"""Draw all stored figures again, from their tables and without training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedlab_support.plots import SIZES
from fedlab_support.plots.export import FORMATS, write_pictures
from fedlab_support.plots.stored import (
    RECORDS,
    draw_again,
    read_record,
    read_records,
    why_not,
)

from . import figures  # noqa: F401 - whose drawings are found by their names


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
    """Draw the figures that the command line names; return 1 when one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m fedlab_course.redraw",
        description="Draw stored figures again, without training.",
    )
    parser.add_argument("figures", type=Path, help="folder, searched in depth")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="leave those alone")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["png"])
    parser.add_argument("--size", choices=list(SIZES), help="other than as stored")
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
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
