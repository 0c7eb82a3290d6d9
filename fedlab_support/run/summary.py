"""Summaries of a run: settings, text, and its network as files."""

from __future__ import annotations

import json
from itertools import takewhile
from pathlib import Path

import torch
from safetensors.torch import save_file

from ..core.files import replacing
from ..core.naming import architecture, code_of, name_of, plain


def describe(run) -> dict:
    """The settings of a run as JSON values; equal runs have equal settings."""
    training, engine = dict(vars(run.training)), run.engine
    optional = {
        "augment": training.pop("augment"),
        "schedule": training.pop("schedule"),
        "faults": run.faults,
        "deadline": run.job.deadline,
        "privacy": run.job.privacy,
        "engine": None if engine.is_exact else type(engine).__name__,
        "max_update": None if run.max_update == 100.0 else str(run.max_update),
        "code": code_of(type(run.method)) + code_of(type(run.training.augment)) or None,
        "min_clients": run.min_clients if run.min_clients != 1 else None,
    }
    given = {name: name_of(v) for name, v in optional.items() if v is not None}
    if version := getattr(run.federation.data.images, "version", ""):
        given["version"] = version
    return given | {
        "method": name_of(run.method),
        "data": run.federation.data.name,
        "federation": run.federation.fingerprint(),
        "num_clients": len(run.federation),
        "held_out": list(run.federation.held_out_domains),
        "model": run.model_name,
        "architecture": architecture(run.model),
        "training": training,
        "select": name_of(run.select),
        "seed": run.seed,
        "device": run.federation.store.device.type,
        "torch": torch.__version__,
    }


def latest_score(run) -> str:
    """The latest score, such as ``accuracy 81.5%``; empty before the first.

    Of all test samples; without any the mean over the clients' validation samples.
    """
    metric, newest = run.federation.store.task.metric, reversed(run.history.measured)
    rows = takewhile(lambda row: row[0] >= run.measured_round, newest)
    rows = [row for row in rows if row[2] == "" and row[4].endswith(metric)]
    test, val = ([row[5] for row in rows if row[1] == s] for s in ("test", "val"))
    values = test[:1] or val
    return f"{metric} {sum(values) / len(values):.1%}" if values else ""


def as_text(run) -> str:
    """Method, model, training, selection and latest score, a line each."""
    floats = sum(run.server.weights[n].numel() for n in run.server.parameters)
    chosen = {n: v for n, v in vars(run.training).items() if v}
    settings = ", ".join(f"{name} {value}" for name, value in chosen.items())
    lines = [
        f"Run of {run.method!r}, seed {run.seed}, round {run.server.round}",
        f"  model     {run.model_name}, {floats:,} shared parameters",
        f"  training  {settings}",
        f"  select    {run.select!r} of {len(run.federation):,} clients",
        f"  {latest_score(run)}",
    ]
    return "\n".join(lines).rstrip()


def save_network(run, folder: str | Path) -> None:
    """Write model.safetensors and model.json; see ``Run.save``."""
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
