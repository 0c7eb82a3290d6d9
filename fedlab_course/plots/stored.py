"""How figures are stored: records as JSON, tables as CSV, images as PNG."""

from __future__ import annotations

import json
from pathlib import Path, PurePath

import numpy as np
import pandas as pd
from PIL import Image

from fedlab_support.core.files import replacing

from .style import Drawing

RECORDS = "figures.json"
"""Holds, for every figure of a folder, its description, parameters and drawing call."""


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table at full precision, without its index."""
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
    """Whether a value is an array that does not fit into 8-bit pixels."""
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
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{file} is not JSON ({error}); restore its files, or delete them and save "
            "the figure again"
        ) from error


def write_record(target: Path, record: dict[str, object]) -> None:
    """Add or replace the record of one figure in its folder.

    The file is replaced atomically. A folder has one writer, its chapter's kernel.
    Raises ValueError when the existing file is damaged.
    """
    with replacing(target.parent / RECORDS) as part:
        records = read_records(target.parent) | {target.name: record}
        by_name = dict(sorted(records.items()))
        text = json.dumps(by_name, indent=1, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf-8")


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
    return portable(value.tolist()) if hasattr(value, "tolist") else str(value)
