"""Save a trained network so that it can be used without this package."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from ..core.files import replacing
from ..core.naming import plain
from .summary import describe


def save_network(run, folder: str | Path) -> None:
    """Write model.safetensors and model.json; see ``Run.save``."""
    if str(folder) == "" or Path(folder).is_file():
        raise ValueError(f"folder must be the name of a folder, found {str(folder)!r}")
    folder, data = Path(folder), run.federation.data
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: v.cpu().contiguous().clone() for n, v in run.model.state_dict().items()}
    values = "image / 255" if data.has_images else "input"
    shape = ", ".join(("B", *map(str, data.image_shape)))
    about = {
        "input": f"({shape}): "
        + (values if data.mean is None else f"({values} - mean) / std, by channel"),
        "image_shape": data.image_shape,
        "mean": data.mean,
        "std": data.std,
        "task": data.task,
        "classes": data.class_names,
        "round": run.server.round,
        "run": describe(run),
    }
    with replacing(folder / "model.safetensors") as part:
        save_file(state, part)
    with replacing(folder / "model.json") as part:
        text = json.dumps(about, indent=2, default=plain) + "\n"
        part.write_text(text, encoding="utf-8")
