"""Figures remember the call that drew them, so that they can be redrawn from files."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import numpy as np
import pandas as pd

from fedlab_support.core.checks import checked

from .style import Drawing, Picture, style

DRAWINGS: dict[str, Callable[..., Picture]] = {}
"""Every function that draws tables, by its name; filled by ``drawing``."""


def drawing(function: Callable[..., Picture]) -> Callable[..., Picture]:
    """Decorate a function: it draws in the house style, and its figures keep the call.

    function:  draws only from its arguments: tables, whose index is ignored, arrays,
               and options that JSON can hold.
    A figure's ``drawn_by`` is the call, and its ``data`` the first table. When one
    decorated function calls another, the outer call is recorded.
    """
    signature, drawn = inspect.signature(function), checked()(function)

    @functools.wraps(function)
    def draw(*args: object, **kwargs: object) -> Picture:
        """Draw, and remember the call."""
        try:
            with style():
                figure = drawn(*args, **kwargs)
        except KeyError as error:
            given = signature.bind(*args, **kwargs).arguments.values()
            tables = [v for v in given if isinstance(v, pd.DataFrame)]
            if error.args[0] in [name for table in tables for name in table]:
                raise
            raise ValueError(
                f"{function.__name__}: a column is missing ({error.args[0]}), found "
                f"{[list(table) for table in tables]}"
            ) from error
        call = _call(function.__name__, signature.bind(*args, **kwargs).arguments)
        tables = (v for v in call.given.values() if isinstance(v, pd.DataFrame))
        figure.drawn_by, figure.data = call, next(tables, figure.data)
        return figure

    DRAWINGS[function.__name__] = draw
    return draw


def _call(plot: str, arguments: dict[str, object]) -> Drawing:
    given, options = {}, {}
    for name, value in arguments.items():
        is_data = isinstance(value, (pd.DataFrame, np.ndarray))
        if value is not None:
            (given if is_data else options)[name] = value
    return Drawing(plot, given, options)
