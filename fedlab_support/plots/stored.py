"""The call that drew a figure, in files: tables as CSV, pictures as PNG."""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection
from pathlib import Path, PurePath

import numpy as np
import pandas as pd
from PIL import Image

from .drawing import DRAWINGS, Drawing
from .style import Picture


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write every digit of a table, without its index."""
    table.to_csv(path, index=False, lineterminator="\n")


def write_call(call: Drawing, target: Path, data: pd.DataFrame) -> dict[str, object]:
    """Write what a drawing was given; return all that draws it again, as plain JSON.

    target: folder and name of the figure, without an ending.
    data:   is in `target`.csv already; the call's first table as a rule. Everything
            else that was given goes to files `target`_argument.
    Arrays of floats are too long as text: their names stand in "not_stored" instead.
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
    """Anything but a table, or an array of bytes or of classes in 0…255."""
    if isinstance(value, pd.DataFrame):
        return False
    return value.dtype.kind not in "biu" or value.min() < 0 or value.max() > 255


def _write(table: pd.DataFrame, path: Path) -> dict[str, object]:
    """Kinds that a CSV loses are kept: 007 may be a name, and 0.1 a float32."""
    write_table(table, path)
    texts = {c: "str" for c in table if pd.api.types.is_string_dtype(table[c])}
    kinds = texts | dict.fromkeys(table.select_dtypes("float32"), "float32")
    return {"file": path.name, "rows": len(table), "kinds": kinds}


def _write_pixels(array: np.ndarray, path: Path) -> dict[str, object]:
    """All planes of a stack of pictures or masks, one below the other, in grey."""
    planes = array.reshape(-1, array.shape[-1]).astype(np.uint8)
    Image.fromarray(planes).save(path, optimize=True)
    return {"file": path.name, "shape": list(array.shape)}


def read_record(path: Path) -> dict[str, object]:
    """What `save_figure` wrote as JSON; ValueError when it is not that."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON ({error}); {_cure(path)}") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a record in {path.name}; {_cure(path)}")
    return record


def draw_again(path: Path, **options: object) -> Picture:
    """Draw a figure from its files.

    path:    the JSON of the figure; its tables lie beside it.
    options: arguments other than the stored ones, such as `size` or `title`.
    Raises ValueError, with the cure, for files that are missing, damaged or of a
    function that is not there, and for a figure that no function drew.
    """
    call = read_record(path).get("drawn_by") or {}
    if reason := why_not(call, options):
        raise ValueError(f"{path.name} cannot be drawn from files: {reason}")
    if call["plot"] not in DRAWINGS:
        raise ValueError(
            f"{path.name}: expected a plot out of {sorted(DRAWINGS)}, found "
            f"{call['plot']!r}; if it was renamed, {_cure(path)}"
        )
    try:
        given = {
            argument: read(path.parent / entry["file"], entry)
            for kind, read in (("tables", _read), ("pixels", _read_pixels))
            for argument, entry in call.get(kind, {}).items()
        }
        figure = DRAWINGS[call["plot"]](**given, **(call["options"] | options))
    except (OSError, KeyError, TypeError, ValueError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path.name}: {found}; {_cure(path)}") from error
    figure.description = read_record(path).get("description", "")
    return figure


def why_not(call: dict[str, object], options: Collection[str] = ()) -> str:
    """Why a stored call cannot be drawn again, with those options; empty if it can."""
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
    chapter = path.parent.name.partition("_")[0]
    return (
        "take its files from git again, or make them: "
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
    """Plain JSON; of a path on this machine only its last part."""
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
