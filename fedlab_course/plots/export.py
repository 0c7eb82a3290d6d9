"""Figures and tables as files that a rerun reproduces byte for byte."""

from __future__ import annotations

import errno
import io
import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.animation import FFMpegWriter
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from PIL import Image

from fedlab_support.core.checks import Range, checked

from .stored import portable, write_call, write_record, write_table
from .style import SCREEN_DPI, png, style
from .written import as_latex, as_markdown

PACKAGES = ("fedlab_support", "matplotlib", "numpy", "pandas", "torch")
PRINT_DPI = 300
FORMATS = ("png", "pdf", "svg")
TABLE_FORMATS = ("csv", "md", "tex")
MOTIONS = (".gif", ".mp4", ".png", ".pdf")
LAST = 4
"""The last frame of a GIF stays so many times as long, before it begins anew."""


@checked()
def save_figure(
    figure: Figure,
    name: str,
    folder: str | Path,
    data: pd.DataFrame | None = None,
    parameters: dict[str, object] | None = None,
    *,
    description: str = "",
) -> Path:
    """Write a figure as PNG together with its data and parameters.

    name:         lower case, such as accuracy_by_round; the files are name.png and
                  name.csv. The folder is created.
    data:         what was plotted; by default the figure's own table.
    parameters:   the settings behind the figure.
    description:  the alternative text, one sentence; also written into the PNG.
    The folder's figures.json gets an entry with all this and with the call that drew
    the figure, so that ``redraw`` can write it as PDF or SVG; further tables and images
    of the call go to files called name_argument. A figure that cannot be redrawn is
    written as PDF and SVG right away. Returns the path of the PNG. Raises ValueError
    when the folder cannot be written or its figures.json is damaged.
    """
    target = _target(name, folder)
    data = data if data is not None else getattr(figure, "data", None)
    figure.description = description or getattr(figure, "description", "")
    if data is not None:
        write_table(data, target.with_suffix(".csv"))
    call = getattr(figure, "drawn_by", None)
    call = call and write_call(call, target, data)
    can_redraw = call and "not_stored" not in call
    write_pictures(figure, target, ("png",) if can_redraw else FORMATS)
    record = {
        "description": figure.description,
        "size_inches": [round(float(inches), 3) for inches in figure.get_size_inches()],
        "parameters": portable(parameters or {}),
        "drawn_by": call,
        "versions": _versions(),
    }
    write_record(target, record)
    return target.with_suffix(".png")


def write_pictures(figure: Figure, target: Path, formats: Sequence[str]) -> bool:
    """Write a figure as ``target``.png and so on; return whether a file changed.

    The files contain no date and no path. Raises ValueError when the folder cannot be
    written.
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


@checked(milliseconds=Range(at_least=20))
def save_motion(
    figures: Sequence[Figure],
    file: str | Path,
    milliseconds: int = 500,
    chosen: Sequence[int] | None = None,
) -> Path:
    """Write figures of equal size as an animation, or side by side as a strip.

    file:          its suffix decides: .gif, .mp4 (needs ffmpeg), or a strip for print,
                   .png or .pdf. The folder is created.
    milliseconds:  of a frame; of animations only.
    chosen:        positions of the frames to write, all by default.
    Returns the file. Raises ValueError for another suffix, no figures, different sizes
    or a folder that cannot be written, RuntimeError where ffmpeg is missing.
    """
    file = Path(file)
    if file.suffix not in MOTIONS:
        raise ValueError(f"file must end in one of {MOTIONS}, found {file.name!r}")
    chosen = range(len(figures)) if chosen is None else chosen
    is_strip = file.suffix in (".png", ".pdf")
    frames = [_pixels(figures[k], is_strip) for k in chosen]
    if len(sizes := {frame.size for frame in frames}) != 1:
        raise ValueError(f"expected figures of one size, found {sorted(sizes)} pixels")
    _writable(file.parent)
    if is_strip:
        strip, _ = _shown(np.hstack(frames), PRINT_DPI)
        write_pictures(strip, file.with_suffix(""), (file.suffix[1:],))
    elif file.suffix == ".gif":
        times = [milliseconds] * (len(frames) - 1) + [LAST * milliseconds]
        rest = {"append_images": frames[1:], "duration": times, "loop": 0}
        frames[0].save(file, save_all=True, **rest)
    else:
        _write_film(frames, file, 1000 / milliseconds)
    return file


def _pixels(figure: Figure, is_print: bool) -> Image.Image:
    drawn = png(figure, PRINT_DPI if is_print else 2 * SCREEN_DPI)
    return Image.open(io.BytesIO(drawn)).convert("RGB")


def _shown(pixels: np.ndarray, dpi: float) -> tuple[Figure, AxesImage]:
    """A figure that is nothing but an image, pixel by pixel."""
    height, width, _ = pixels.shape
    sheet = Figure((width / dpi, height / dpi), dpi=dpi)
    axis = sheet.add_axes((0, 0, 1, 1))
    axis.axis("off")
    return sheet, axis.imshow(pixels, aspect="auto", interpolation="nearest")


def _write_film(frames: Sequence[Image.Image], file: Path, per_second: float) -> None:
    """An MP4 by matplotlib's writer, which calls ffmpeg."""
    if not FFMpegWriter.isAvailable():
        raise RuntimeError(
            "MP4 needs the program ffmpeg, found none; install it (apt-get install "
            "ffmpeg, brew install ffmpeg or conda install ffmpeg), or write a .gif"
        )
    writer = FFMpegWriter(per_second)
    sheet, shown = _shown(np.asarray(frames[0]), 2 * SCREEN_DPI)
    with writer.saving(sheet, str(file), dpi=2 * SCREEN_DPI):
        for frame in frames:
            shown.set_data(np.asarray(frame))
            writer.grab_frame()


@checked()
def save_table(
    table: pd.DataFrame,
    name: str,
    folder: str | Path,
    formats: Sequence[str] = ("csv",),
) -> Path:
    """Write a table as CSV, and on request as Markdown or LaTeX.

    table:    an index that has a name is written, too.
    formats:  one or more of "csv" (every digit), "md" and "tex" (rounded; a ``tabular``
              that needs the package booktabs).
    Returns the path of the first file. Raises ValueError for another format or a folder
    that cannot be written.
    """
    if not formats or set(formats) - set(TABLE_FORMATS):
        raise ValueError(
            f"formats must be some of {list(TABLE_FORMATS)}, found {formats!r}"
        )
    target = _target(name, folder)
    if any(table.index.names):
        table = table.reset_index()
    texts = {"md": as_markdown, "tex": as_latex}
    for ending in formats:
        file = target.with_suffix(f".{ending}")
        if ending == "csv":
            write_table(table, file)
        else:
            file.write_text(texts[ending](table), encoding="utf-8")
    return target.with_suffix(f".{formats[0]}")


def _target(name: str, folder: str | Path) -> Path:
    if not re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name):
        raise ValueError(
            "name must be a file name like 01_accuracy_by_round (lower case, digits, "
            f"single underscores and no ending), found {name!r}"
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
            continue  # torch is optional for figures; the course may not be installed
    return versions
