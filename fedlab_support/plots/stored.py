"""How figures are stored: records as JSON, tables as CSV, images as PNG."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath

import numpy as np
import pandas as pd
from PIL import Image

from ..core.files import replacing
from .drawing import DRAWINGS, Drawing
from .style import Picture

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

RECORDS = "figures.json"
"""Holds, for every figure of a folder, its description, parameters and drawing call."""


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write every digit of a table, without its index."""
    table.to_csv(path, index=False, lineterminator="\n")


def write_call(call: Drawing, target: Path, data: pd.DataFrame) -> dict[str, object]:
    """Write the tables and arrays of a call; return the rest of it as plain JSON.

    target: folder and name of the figure, without an ending.
    data:   the table in ``target``.csv, usually the call's first. The other tables and
            arrays go to files named ``target``_argument.
    Arrays of floats would be too long as text: "not_stored" lists their names instead.
    """
    if floats := [n for n, v in call.given.items() if _is_long(v)]:
        return {"plot": call.plot, "not_stored": floats}
    record = {"plot": call.plot, "options": portable(call.options)}
    for argument, value in call.given.items():
        file = target.with_name(f"{target.name}_{argument}")
        if isinstance(value, pd.DataFrame):
            file = target if value.equals(data) else file
            entry = _write(value, file.with_suffix(".csv"))
            record.setdefault("tables", {})[argument] = entry
        else:
            entry = _write_pixels(value, file.with_suffix(".png"))
            record.setdefault("pixels", {})[argument] = entry
    return record


def _is_long(value: pd.DataFrame | np.ndarray) -> bool:
    """Whether a value is neither a table nor an array of integers in 0…255."""
    if isinstance(value, pd.DataFrame):
        return False
    return value.dtype.kind not in "biu" or value.min() < 0 or value.max() > 255


def _write(table: pd.DataFrame, path: Path) -> dict[str, object]:
    """Write a table and record the types that a CSV loses, such as 007 as text."""
    write_table(table, path)
    texts = {c: "str" for c in table if pd.api.types.is_string_dtype(table[c])}
    kinds = texts | dict.fromkeys(table.select_dtypes("float32"), "float32")
    return {"file": path.name, "rows": len(table), "kinds": kinds}


def _write_pixels(array: np.ndarray, path: Path) -> dict[str, object]:
    """Write a stack of images or masks as one grey image, plane below plane."""
    planes = array.reshape(-1, array.shape[-1]).astype(np.uint8)
    Image.fromarray(planes).save(path, optimize=True)
    return {"file": path.name, "shape": list(array.shape)}


def read_records(folder: Path) -> dict[str, dict[str, object]]:
    """The records that ``save_figure`` wrote for the figures of a folder, by name.

    Raises ValueError when the file of records is damaged.
    """
    file = folder / RECORDS
    if not file.exists():
        return {}
    try:
        records = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); {_cure(file)}") from error
    if not isinstance(records, dict):
        raise ValueError(f"expected figures by name in {file}; {_cure(file)}")
    return records


def read_record(target: Path) -> dict[str, object]:
    """The record of the figure ``target``, a path without an ending.

    Raises ValueError when there is no such record.
    """
    records = read_records(target.parent)
    if target.name not in records:
        raise ValueError(f"expected {target.name} in {target.parent / RECORDS}")
    return records[target.name]


def write_record(target: Path, record: dict[str, object]) -> None:
    """Add or replace the record of one figure in its folder.

    The file is replaced atomically, and writers in several processes take turns.
    Raises ValueError when the existing file is damaged.
    """
    with _alone_in(target.parent), replacing(target.parent / RECORDS) as part:
        records = read_records(target.parent) | {target.name: record}
        by_name = dict(sorted(records.items()))
        text = json.dumps(by_name, indent=1, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers, where the system has file locks."""
    if fcntl is None:
        yield
        return
    lock = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # this file system has no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


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
    """Why a stored call cannot be drawn again with these options; empty if it can."""
    if not call:
        return "drawn by hand in its chapter, or before calls were kept"
    if missing := call.get("not_stored"):
        return f"{', '.join(missing)} of {call['plot']} would be long as a table"
    if call["plot"] in DRAWINGS:
        known = inspect.signature(DRAWINGS[call["plot"]]).parameters
        if more := [name for name in options if name not in known]:
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
    return table


def _read_pixels(path: Path, entry: dict) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image).reshape(entry["shape"])


def portable(value: object) -> object:
    """Convert to plain JSON values; keep only the last part of an absolute path."""
    if isinstance(value, dict):
        return {str(key): portable(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set)):
        entries = sorted(value) if isinstance(value, set) else value
        return [portable(entry) for entry in entries]
    if isinstance(value, (str, PurePath)):
        return PurePath(value).name if PurePath(value).is_absolute() else str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return value.item() if hasattr(value, "item") else str(value)
