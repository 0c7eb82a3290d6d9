"""Controls that can be read: sliders, one that plays, and rows of them."""

from __future__ import annotations

from numbers import Integral

import ipywidgets as W
from traitlets import validate

from fedlab_support.core.checks import Range, checked


@checked(step=Range(above=0))
def slider(
    low: float,
    high: float,
    step: float = 1,
    value: float | None = None,
    label: str = "",
    unit: str = "",
) -> W.IntSlider | W.FloatSlider:
    """A slider that updates on release, over integers if all arguments are integers.

    value:        initial value, the middle by default.
    label, unit:  shown left of it.
    Raises ValueError when the range is empty or does not contain the value.
    """
    if value is None:
        value = round(low + round((high - low) / 2 / step) * step, 10)
    _expect_inside(low, high, value)
    is_whole = all(isinstance(n, Integral) for n in (low, high, step, value))
    description = f"{label} ({unit})" if unit else label
    kind = W.IntSlider if is_whole else W.FloatSlider
    made = kind(value, min=low, max=high, step=step, description=description)
    if not is_whole:  # the usual two decimals would round 0.005
        places = (len(f"{n:.6f}".rstrip("0").split(".")[1]) for n in (low, step))
        made.readout_format = f".{max(2, *places)}f"
    return readable(made)


def _expect_inside(low: float, high: float, value: float) -> None:
    """Raise ValueError when the range is empty or does not contain the value."""
    if not low < high:
        raise ValueError(f"low must be below high, found {low} and {high}")
    if not low <= value <= high:
        raise ValueError(f"value must lie in {low}…{high}, found {value}")


class Player(W.IntSlider):
    """A slider over integers that a button plays; made by ``player``.

    moved_by:  the button, and the clock that it starts and stops.
    """

    moved_by: tuple[W.ToggleButton, W.Play]

    @validate("value")
    def _validate_value(self, proposal: dict) -> int:
        """The step nearest to a number that a reader types."""
        value = super()._validate_value(proposal) - self.min
        return self.min + round(value / self.step) * self.step


@checked(milliseconds=Range(at_least=100))
def player(
    low: int,
    high: int,
    step: int = 1,
    value: int | None = None,
    label: str = "",
    milliseconds: int = 500,
) -> Player:
    """A slider with a button that plays it once, step by step, in the reader's page.

    value:         initial value, the last by default; Play then begins at the first.
    label:         shown left of it.
    milliseconds:  of a step. A view that is slower skips steps.
    Nothing moves before the button is pressed. Raises ValueError as ``slider``, and
    when no step ends at ``high``.
    """
    value = high if value is None else value
    _expect_inside(low, high, value)
    if (high - low) % step:
        raise ValueError(
            f"steps must lead from low to high, found {low}…{high} in steps of {step}"
        )
    ends = {"min": low, "max": high, "step": step, "value": value}
    moved = Player(**ends, description=label)
    ends["value"] = moved.value
    # The clock's own buttons have no names that a screen reader could read.
    clock = W.Play(**ends, interval=milliseconds, layout=W.Layout(display="none"))
    button = W.ToggleButton(description="Play", tooltip=f"Play {label}", icon="play")
    button.layout = W.Layout(width="auto", flex="none", margin="2px 0.7em 2px 2px")
    W.jslink((button, "value"), (clock, "playing"))
    W.jslink((clock, "value"), (moved, "value"))
    moved.moved_by = button, clock
    return readable(moved)


def control_for(name: str, given: object, start: object) -> W.Widget:
    """Turn a shorthand of ``explore`` into a widget labelled with the argument.

    start: its initial value; None where there is none.
    """
    label = name.replace("_", " ")
    if isinstance(given, W.Widget) and hasattr(given, "value"):
        given.description = given.description or label
        return readable(given)
    if isinstance(given, bool):
        first = given if start is None else bool(start)
        return readable(W.Checkbox(first, description=label, indent=False))
    if isinstance(given, tuple) and len(given) in (2, 3):
        return slider(*given, value=start, label=label)
    if isinstance(given, list) and given:
        kind = W.Dropdown if isinstance(given[0], str) else W.SelectionSlider
        first = start if start in given else given[0]
        options = [(str(value), value) for value in given]  # a value may be a pair
        return readable(kind(options=options, value=first, description=label))
    raise TypeError(
        f"control {name!r}: expected a widget with a value, (low, high, step), a list "
        f"or True/False, found {given!r}"
    )


def in_rows(*controls: W.Widget) -> W.Box:
    """Controls side by side, wrapped to the width of the page."""
    layout = W.Layout(flex_flow="row wrap", width="100%")
    each = [W.HBox([*c.moved_by, c]) if isinstance(c, Player) else c for c in controls]
    return W.Box(each, layout=layout)


def readable(control: W.Widget) -> W.Widget:
    """Make a control update on release, with room for its label and all its values."""
    if hasattr(control, "continuous_update"):
        control.continuous_update = False
    control.style.description_width = "initial"
    control.layout.width, control.layout.max_width = "auto", "100%"
    track = min(16, max(0, _num_steps(control) // 4 - 5))  # three pixels a step
    wide = 13 + len(control.description) // 2 + track
    control.layout.min_width = f"{max(18, wide)}em"
    control.layout.margin = "2px 1.5em 2px 0"
    return control


def _num_steps(control: W.Widget) -> int:
    """From one end of a slider to the other; 0 for other controls."""
    if isinstance(control, W.SelectionSlider):
        return len(control.options) - 1
    if isinstance(control, W.IntSlider | W.FloatSlider):
        return round((control.max - control.min) / control.step)
    return 0
