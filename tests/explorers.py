"""Every explorer of a chapter moved to its ends; a test adds a cell that calls this."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import ipywidgets as W

from fedlab_course.widgets import Explorer
from tests.pace import processor_seconds, quiet_seconds

REDRAW_SECONDS = 0.5  # what the plan promises, on two quiet cores
ALLOWED = 1.5 * REDRAW_SECONDS  # such short measurements err on busy ones


def rehearse(slow: float) -> None:
    """Move each control of each explorer that the notebook has made.

    slow: `slowness` of the machine as it is now.
    Raises AssertionError when there is none, when a view refuses a value that its
    control allows or takes too long, when the same values draw another picture, or when
    a value out of range is taken.
    """
    explorers = [w for w in W.Widget.widgets.values() if isinstance(w, Explorer)]
    assert explorers, "expected at least one explorer in the chapter, found none"
    for explorer in explorers:
        picture = explorer.image.value
        for name, control in explorer.controls.items():
            _move(explorer, name, control, ALLOWED * slow)
        explorer._redraw(None)
        where = explorer.view.__name__
        assert explorer.image.value == picture, f"{where}: the view is not pure"


def _move(explorer: Explorer, name: str, control: W.Widget, quick: float) -> None:
    """One control to its ends, beyond them, and back, which is not drawn.

    quick: seconds of a redraw that needs no second look.
    """
    where = f"{explorer.view.__name__}, {name}"
    first = control.value
    for value in _ends(control):
        # which redraws, unless the value is the present one
        seconds = processor_seconds(partial(setattr, control, "value", value))
        assert not explorer.banner.value, f"{where} = {value}: {explorer.banner.value}"
        if seconds > quick:
            seconds = quiet_seconds(partial(explorer._redraw, None), ALLOWED)
            assert seconds < ALLOWED, f"{where} = {value}: {seconds:.2f} s"
        if hasattr(control, "max") and value == control.max:
            control.value = value + 1
            assert control.value == value, f"{where}: {control.value} is out of range"
    control.unobserve(explorer._redraw, names="value")
    control.value = first
    control.observe(explorer._redraw, names="value")


def _ends(control: W.Widget) -> Iterator[object]:
    """The lowest and the highest value, the first and last choice, or both answers."""
    if hasattr(control, "max"):
        yield from (control.min, control.max)
    elif hasattr(control, "options"):
        values = [o[1] if isinstance(o, tuple) else o for o in control.options]
        yield from (values[0], values[-1])
    elif isinstance(control.value, bool):
        yield from (False, True)
