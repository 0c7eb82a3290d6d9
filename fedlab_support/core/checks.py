"""Ranges of settings and arguments: declared where they are named, checked here."""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import numpy as np

LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Range:
    """The values that a setting may have; its type is that of the field.

    at_least, above: closed or open lower bound.
    at_most, below: closed or open upper bound. Numbers are finite, unless a closed
        bound is infinite.
    one_of: the only values allowed.
    holds, allowed: a test of the value, and the values that pass it in words.
    hint: what to do instead, for the error message.
    """

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    one_of: Collection | None = None
    holds: Callable[[object], bool] | None = None
    allowed: str = ""
    hint: str = ""

    def contains(self, value: object, kind: str) -> bool:
        """Whether ``value`` is allowed in a field of type ``kind``, as in "int"."""
        kind, optional = _split(kind)
        if value is None:
            return optional
        value = value.item() if isinstance(value, np.generic) else value
        if self.holds is not None:
            return self.holds(value)
        if self.one_of is not None:
            # True == 1, but a flag is not a number
            is_plain = isinstance(value, str | Real) and not isinstance(value, bool)
            return is_plain and value in tuple(self.one_of)
        if kind == "bool":
            return isinstance(value, bool)
        number = Integral if kind == "int" else Real
        if isinstance(value, bool) or not isinstance(value, number):
            return False
        return (
            (abs(value) <= LARGEST or value in (self.at_least, self.at_most))
            and (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        )

    def words(self, kind: str) -> str:
        """The values allowed in a field of type ``kind``, as in "≥ 0 and finite"."""
        kind, optional = _split(kind)
        return ("None or " if optional else "") + self._values(kind)

    def _values(self, kind: str) -> str:
        if self.holds is not None:
            return self.allowed
        if self.one_of is not None:
            *others, last = map(repr, self.one_of)
            joined = f"{', '.join(others)} or {last}" if others else last
            return f"one of {joined}" if len(others) > 1 else joined
        if kind == "bool":
            return "True or False"
        low = self.at_least if self.above is None else self.above
        high = self.at_most if self.below is None else self.below
        if low is not None and high not in (None, math.inf):
            opened = "[" if self.above is None else "("
            closed = "]" if self.below is None else ")"
            bounds = f"in {opened}{low}, {high}{closed}"
            if opened + closed == "[]":
                bounds = f"in {low}…{high}"
        else:
            ends = {"≥": self.at_least, ">": self.above, "<": self.below}
            ends["≤"] = None if self.at_most == math.inf else self.at_most
            bounds = " and ".join(f"{s} {v}" for s, v in ends.items() if v is not None)
            if kind == "float" and self.at_most != math.inf:
                bounds = f"{bounds} and finite" if bounds else "a finite number"
        return f"a whole number {bounds}".strip() if kind == "int" else bounds


def setting(default: object = MISSING, **limits: Any) -> Any:
    """Declare a field with its range.

    As in ``mu: float = setting(0.1, at_least=0)``.

    limits: as in `Range`. A field of type "… | None" may be None, too.
    """
    return field(default=default, metadata={"range": Range(**limits)})


def _is_series(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


_LIST = Range(
    holds=lambda value: _is_series(value) and hasattr(value, "__len__"),
    allowed="a list",
)
KINDS = {
    **dict.fromkeys(("int", "float", "bool"), Range()),
    "str": Range(holds=lambda value: isinstance(value, str), allowed="a string"),
    "Callable": Range(holds=callable, allowed="a function"),
    "Mapping": Range(
        holds=lambda value: isinstance(value, Mapping), allowed="a mapping, as {…}"
    ),
    **dict.fromkeys(("Sequence", "tuple"), _LIST),
    "Iterable": Range(holds=_is_series, allowed="a list"),
    "pd.DataFrame": Range(  # pandas is slow to import
        holds=lambda value: "DataFrame" in [c.__name__ for c in type(value).__mro__],
        allowed="a table (a DataFrame)",
    ),
}
"""The limits of types that are not classes of a function's module."""


def ranges(kind: type) -> dict[str, tuple[str, Range]]:
    """Type and range of the settings of a dataclass, by name.

    A field that a subclass declares again without a range keeps its parent's. Flags
    and texts need no declaration; other fields without a range may have any value.
    """
    declared = [getattr(base, "__dataclass_fields__", {}) for base in kind.__mro__]
    found = {}
    for each in fields(kind):
        name = each.name
        known = [d[name].metadata.get("range") for d in declared if name in d]
        limits = next((limits for limits in known if limits is not None), None)
        words = each.type.__name__ if isinstance(each.type, type) else str(each.type)
        bare = _split(words)[0]
        if limits is None and bare in ("bool", "str"):
            limits = KINDS[bare]
        if limits is not None:
            found[name] = (words, limits)
    return found


class Settings:
    """Base of frozen dataclasses of settings: checks every field against its range.

    Raises ValueError for the first field outside its range.
    """

    def __post_init__(self) -> None:
        for each in fields(self):  # equal settings have equal names
            value = getattr(self, each.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, each.name, value.item())
        for name, (kind, limits) in ranges(type(self)).items():
            is_right = limits.contains(getattr(self, name), kind)
            expect(self, name, limits.words(kind), is_right, limits.hint)


def expect(
    settings: object, name: str, allowed: str, is_right: bool, hint: str = ""
) -> None:
    """Raise ValueError unless ``is_right``; ``allowed`` describes the valid values."""
    if not is_right:
        _refuse(name, allowed, getattr(settings, name), hint)


COUNT = Range(at_least=1)
"""The limits of a number of things of which at least one is needed."""

SHARE = Range(at_least=0, below=1)
"""The limits of a share that is set aside: the rest is not empty."""

SEED = Range(
    holds=lambda rng: (
        isinstance(rng, np.random.Generator) or Range(at_least=0).contains(rng, "int")
    ),
    allowed="a NumPy generator or a whole number ≥ 0",
)
"""The limits of an argument that ``np.random.default_rng`` receives."""


def checked(**limits: Range) -> Callable[[Callable], Callable]:
    """Decorator: a function refuses arguments of other types, or outside ``limits``.

    As in ``@checked(clients=Range(at_least=1))``. The types are those of the annotation
    if it names numbers, texts, flags, tables, arrays, functions, or classes that the
    function's module knows; other annotations allow anything. The function raises
    ValueError, with the argument's name and value.
    """

    def decorate(function: Callable) -> Callable:
        """The function with its check."""
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        named = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        kinds = {p.name: p.annotation for p in parameters if p.kind not in named}
        kinds = {n: "" if k is inspect.Parameter.empty else k for n, k in kinds.items()}

        @functools.wraps(function)
        def call(*args: object, **kwargs: object) -> object:
            """Check, then call."""
            try:
                given = signature.bind(*args, **kwargs).arguments
            except TypeError:
                return function(*args, **kwargs)  # raises an error that names it
            for name, value in given.items():
                kind, limit = kinds.get(name, ""), limits.get(name)
                if limit is not None:
                    if not limit.contains(value, kind):
                        _refuse(name, limit.words(kind), value, limit.hint)
                elif kind and not _is_any(value, kind, function.__globals__):
                    _refuse(name, _words(kind), value)
            return function(*args, **kwargs)

        return call

    return decorate


def _is_any(value: object, kind: str, known: dict) -> bool:
    """Whether a value has one of the annotated types; unknown types allow anything."""
    return any(_is_a(value, each, known) for each in _alternatives(kind))


def _is_a(value: object, kind: str, known: dict) -> bool:
    if kind == "None":
        return value is None
    if kind in KINDS:
        return KINDS[kind].contains(value, kind)
    first, *parts = kind.split(".")  # as in W.Widget
    found = known.get(first, getattr(builtins, first, None))
    for part in parts:
        found = getattr(found, part, None)
    is_class = isinstance(found, type) and not getattr(found, "_is_protocol", False)
    return isinstance(value, found) if is_class else True


def _alternatives(kind: str) -> list[str]:
    """The types of an annotation without their parameters: "list[int] | None"."""
    bare = kind
    while "[" in bare:
        bare = re.sub(r"\[[^\[\]]*\]", "", bare)
    return [each.strip() for each in bare.split("|")]


def _words(kind: str) -> str:
    """An annotation as a reader would say it."""
    kinds = _alternatives(kind)
    return " or ".join(KINDS[k].words(k) if k in KINDS else k for k in kinds)


def _refuse(name: str, allowed: str, value: object, hint: str = "") -> None:
    """Raise ValueError for the value of a setting or an argument."""
    text = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    if len(text) > 200:
        text = f"{type(value).__name__} {' '.join(text.split())[:60]}…"
    found = f"{name} must be {allowed}, found {text}"
    if isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value):
        hint = hint or "this is a string: leave out the quotes"
    raise ValueError(f"{found}; {hint}" if hint else found)


def _split(kind: str) -> tuple[str, bool]:
    """A type without its "| None", and whether it had one."""
    parts = [part.strip() for part in kind.split("|")]
    return " | ".join(p for p in parts if p != "None"), "None" in parts
