"""Summaries of a run: its settings as JSON values, and its state as text."""

from __future__ import annotations

import torch

from ..core.naming import architecture, code_of, name_of


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
    """The latest score, such as ``accuracy 81.5%``; empty before the first."""
    latest = [row for row in run.history.measured[-200:] if row[1] in ("test", "val")]
    metric = run.federation.store.task.metric
    values = [row[5] for row in latest if row[4].endswith(metric)]
    return f"{metric} {values[-1]:.1%}" if values else ""


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
