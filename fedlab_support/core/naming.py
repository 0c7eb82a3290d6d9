"""Names for networks and settings that are the same in every process."""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
from torch import nn


def architecture(model: nn.Module) -> str:
    """A short hash of a network's layers and the shapes of its state."""
    shapes = [(name, tuple(value.shape)) for name, value in model.state_dict().items()]
    return hashlib.sha256(f"{model} {shapes}".encode()).hexdigest()[:16]


def name_of(thing) -> str:
    """A readable name that is the same in every process."""
    if isinstance(thing, partial):
        settings = [repr(value) for value in thing.args]
        settings += [f"{k}={v!r}" for k, v in sorted(thing.keywords.items())]
        return f"{name_of(thing.func)}({', '.join(settings)})"
    return getattr(thing, "__qualname__", repr(thing))


def plain(value: np.generic) -> int | float:
    """A NumPy number as a Python number, for ``json.dumps(…, default=plain)``."""
    return value.item()


def is_nameless(name: str) -> bool:
    """Whether other objects may have the same name, as all lambdas do."""
    return any(sign in name for sign in ("<lambda>", "<locals>", " at 0x"))
