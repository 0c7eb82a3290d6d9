"""Shared by server and nodes: tensors as records, and the recipe."""

from __future__ import annotations

import hashlib
import importlib
import json

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import nn

from ...core.messages import Tensors
from ...core.naming import architecture, name_of
from ...training.learner import trained_names
from ..contract import Engine, Job

REQUEST = "request"
"""The record that holds the request; other records are named ``client.part``."""

KEPT = "kept by its node"
"""The name, in a private state on the server, of the receipt for the rest of it."""


def pack(tensors: Tensors) -> ArrayRecord:
    """Named tensors as Flower's arrays: same bits, types and shapes.

    Raises TypeError for a type that NumPy does not know, such as bfloat16.
    """
    arrays = {
        name: Array(value.detach().cpu().contiguous().numpy())
        for name, value in tensors.items()
    }
    return ArrayRecord(arrays)


def unpack(content: RecordDict, name: str, device: str | torch.device) -> Tensors:
    """The named tensors stored in ``content`` under ``name``, on ``device``.

    Raises KeyError when there is no such record, ValueError when it holds no arrays.
    """
    record = content[name]
    if not isinstance(record, ArrayRecord):
        raise ValueError(f"{name!r} must be arrays, found {type(record).__name__}")
    return {
        key: torch.from_numpy(array.numpy()).to(device) for key, array in record.items()
    }


def request_for(**values: int | str | list) -> RecordDict:
    """The content of a request; tensors may be added."""
    return RecordDict({REQUEST: ConfigRecord(values)})


def build(config: dict, engine: Engine):
    """Build the run of a recipe with ``engine``.

    config:  ``recipe`` is "module:function", ``settings`` its arguments as JSON.
    Raises ValueError when there is no such function or it does not use the engine, and
    whatever the recipe raises.
    """
    recipe, settings = str(config["recipe"]), json.loads(config["settings"])
    module, _, name = recipe.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            "expected a recipe 'module:function' that Python can import on every "
            f"machine of the federation, found {recipe!r}: {error}"
        ) from error
    run = function(engine=engine, **settings)
    if getattr(engine, "job", None) is None or engine.job is not run.job:
        raise ValueError(
            f"expected {recipe} to return Run(…, engine=engine) with the engine that "
            f"it was given, found {run!r}"
        )
    return run


def identity(job: Job) -> dict[str, str]:
    """Settings that must be equal on the server and on every node."""
    return {
        "method": name_of(job.method),
        "federation": job.federation.fingerprint(),
        "architecture": architecture(job.model),
        "training": str({n: name_of(v) for n, v in vars(job.training).items()}),
        "seed": str(job.seed),
        "deadline": repr(job.deadline),
        "privacy": repr(job.privacy),
        "frozen": _frozen(job.model),
    }


def _frozen(model: nn.Module) -> str:
    """A short hash of the state that is never sent, such as a pretrained backbone."""
    digest, moving = hashlib.sha256(), set(trained_names(model))
    for name, value in sorted(model.state_dict().items()):
        if name not in moving:
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
