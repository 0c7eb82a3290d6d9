"""Names for networks and settings that are the same in every process."""

from __future__ import annotations

import hashlib
import inspect
from functools import lru_cache, partial
from types import CodeType, ModuleType

import numpy as np
from torch import nn


def short_hash(content: bytes) -> str:
    """Sixteen hexadecimal digits that stand for the content."""
    return hashlib.sha256(content).hexdigest()[:16]


def architecture(model: nn.Module) -> str:
    """A short hash of a network's layers and the shapes of its state."""
    shapes = [(name, tuple(value.shape)) for name, value in model.state_dict().items()]
    return short_hash(f"{model} {shapes}".encode())


def name_of(thing) -> str:
    """A readable name that is the same in every process."""
    if isinstance(thing, partial):
        settings = [repr(value) for value in thing.args]
        settings += [f"{k}={v!r}" for k, v in sorted(thing.keywords.items())]
        return f"{name_of(thing.func)}({', '.join(settings)})"
    owner = getattr(thing, "__self__", None)
    if owner is not None and not isinstance(owner, type | ModuleType):
        return f"{name_of(owner)}.{thing.__name__}"  # a method of one object
    return getattr(thing, "__qualname__", repr(thing))


def code_of(kind: type) -> str:
    """A short hash of the source of a class and its bases, as far as they are not of
    this package; empty for a class of the package.

    A run of someone's own method is kept under it, so that changing the method makes
    its runs stale. Functions that the class calls do not count.
    """
    own = [
        base
        for base in kind.__mro__
        if base.__module__.partition(".")[0] not in (PACKAGE, "builtins", "abc")
    ]
    parts = [
        f"{base.__qualname__}.{name}: {_source(thing)}"
        for base in own
        for name, thing in sorted(vars(base).items())
        if hasattr(_function(thing), "__code__") or not name.startswith("__")
    ]
    return short_hash("\n".join(parts).encode()) if own else ""


PACKAGE = __name__.partition(".")[0]
PLAIN = (bool, int, float, str, tuple, type(None))


def _function(thing: object) -> object:
    """The function in a property, cached or not, a class method or a decorator."""
    for name in ("fget", "func", "__func__"):
        thing = getattr(thing, name, None) or thing
    return inspect.unwrap(thing) if callable(thing) else thing


def _source(thing: object) -> str:
    """The source of a function, or a plain value; of other things nothing."""
    code = getattr(_function(thing), "__code__", None)
    if code is None:
        return repr(thing) if isinstance(thing, PLAIN) else ""
    if code.co_filename == "<string>":  # written by dataclass
        return ""
    return _text_of(code)


@lru_cache(maxsize=1000)
def _text_of(code: CodeType) -> str:
    try:
        return inspect.getsource(code)
    except OSError:  # typed at a prompt
        constants = [value for value in code.co_consts if isinstance(value, PLAIN)]
        return f"{code.co_code.hex()} {code.co_names} {constants}"


def plain(value: np.generic) -> int | float:
    """A NumPy number as a Python number, for ``json.dumps(…, default=plain)``."""
    return value.item()
