"""One form for refusing a setting: what was expected, and what came."""

from __future__ import annotations

import math
from dataclasses import fields


def expect(settings: object, name: str, allowed: str, is_right: bool) -> None:
    """Raise ValueError unless ``is_right``; ``allowed`` says what ``name`` may be."""
    if not is_right:
        raise ValueError(f"{name} must be {allowed}, found {getattr(settings, name)!r}")


def expect_not_negative(settings: object, *names: str) -> None:
    """Raise ValueError unless all these settings are ≥ 0 and finite."""
    for name in names:
        is_right = 0 <= getattr(settings, name) < math.inf
        expect(settings, name, "≥ 0 and finite", is_right)


def expect_fractions(settings: object, *names: str) -> None:
    """Raise ValueError unless all these settings lie in 0…1."""
    for name in names:
        expect(settings, name, "in 0…1", 0 <= getattr(settings, name) <= 1)


def expect_count(settings: object, least: int, *names: str) -> None:
    """Raise ValueError unless all these settings are whole numbers ≥ ``least``."""
    for name in names:
        value = getattr(settings, name)
        is_count = type(value) is int and value >= least
        expect(settings, name, f"a whole number ≥ {least}", is_count)


def expect_flags(settings: object) -> None:
    """Raise ValueError unless all settings of a dataclass that are flags are bools.

    A "no" would switch them on.
    """
    for name in (field.name for field in fields(settings) if field.type == "bool"):
        is_flag = isinstance(getattr(settings, name), bool)
        expect(settings, name, "True or False", is_flag)
