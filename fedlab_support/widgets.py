"""Explorers, live training and source views, built from core controls only.

Errors reach the page: an explorer calls its view once when it is made, so that the cell
fails; later errors stand in a banner of class `fl-error`.
"""

from __future__ import annotations

import contextlib
import html
import inspect
import textwrap
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import ipywidgets as W
from IPython.display import Code
from matplotlib.figure import Figure

from .core.cancellation import Stopped, stopping_on
from .plots.style import SCREEN_DPI, png

__all__ = ["Explorer", "LiveTraining", "explore", "png", "show_source", "slider"]

ERROR_STYLE = "color:var(--jp-error-color1,#b00020);white-space:pre-wrap"
SOURCE_STYLE = (
    ".fl-source pre {color:#24323d; background:#f6f8fa; padding:0.6em; "
    "overflow-x:auto; font-family:var(--jp-code-font-family, monospace)} "
    ".fl-source figcaption {font-size:90%; opacity:0.8}"
)


class Explorer(W.VBox):
    """A picture and the controls it depends on; made by `explore`.

    controls: name → control. image: the picture. banner: "" or the last error.
    """

    def __init__(
        self, view: Callable[..., Figure], controls: dict[str, W.Widget]
    ) -> None:
        self.view, self.controls = view, controls
        self.banner = W.HTML()
        self.image = _image(view(**self.values()))  # an error here fails the cell
        for control in controls.values():
            control.observe(self._redraw, names="value")
        super().__init__([in_rows(controls), self.banner, self.image])
        self.add_class("fl-explorer")

    def values(self) -> dict[str, object]:
        """What the controls say now."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _change: object) -> None:
        try:
            _show(self.image, self.view(**self.values()))
            self.banner.value = ""
        except Exception as error:
            self.banner.value = _error_text(error)


def explore(view: Callable[..., Figure], **controls: object) -> Explorer:
    """Show how a picture depends on two or three values.

    view:     pure function from values to a figure; under half a second per call.
    controls: one per argument of the view: a widget (see `slider`), (low, high) or
              (low, high, step), a list to choose from, or True/False. The start is the
              view's own default where it has one.
    Raises what the view raises for the starting values, and TypeError for a control
    that is none of these.
    """
    known = inspect.signature(view).parameters
    made = {
        name: _control(name, given, known[name].default if name in known else None)
        for name, given in controls.items()
    }
    return Explorer(view, made)


def slider(
    low: float,
    high: float,
    step: float = 1,
    value: float | None = None,
    label: str = "",
    unit: str = "",
) -> W.IntSlider | W.FloatSlider:
    """A slider that reports on release; whole numbers when all its numbers are whole.

    value: where it starts, the middle by default. label, unit: shown left of it.
    Raises ValueError when the range is empty or does not hold the value.
    """
    if not (low < high and step > 0):
        raise ValueError(f"expected low < high and step > 0, found {low, high, step}")
    value = low + round((high - low) / 2 / step) * step if value is None else value
    if not low <= value <= high:
        raise ValueError(f"expected a start in {low}…{high}, found {value}")
    is_whole = all(isinstance(number, int) for number in (low, high, step, value))
    description = f"{label} ({unit})" if unit else label
    kind = W.IntSlider if is_whole else W.FloatSlider
    return readable(kind(value, min=low, max=high, step=step, description=description))


def _control(name: str, given: object, start: object) -> W.Widget:
    """Turn the shorthands of `explore` into a widget named after the argument."""
    label = name.replace("_", " ")
    start = None if start is inspect.Parameter.empty else start
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
        return readable(kind(options=given, value=first, description=label))
    raise TypeError(
        f"control {name!r}: expected a widget with a value, (low, high, step), a list "
        f"or True/False, found {given!r}"
    )


def in_rows(controls: dict[str, W.Widget]) -> W.Box:
    """Controls side by side, in as many rows as the page needs."""
    wide = W.Layout(flex_flow="row wrap", width="100%")
    return W.Box(list(controls.values()), layout=wide)


def readable(control: W.Widget) -> W.Widget:
    """Update on release, and give label and control all the room they need."""
    if hasattr(control, "continuous_update"):
        control.continuous_update = False
    control.style.description_width = "initial"
    control.layout.width, control.layout.max_width = "auto", "100%"
    control.layout.min_width = f"{max(18, 13 + len(control.description) // 2)}em"
    control.layout.margin = "2px 1.5em 2px 0"
    return control


def _image(figure: Figure) -> W.Image:
    layout = W.Layout(max_width="100%", align_self="flex-start")
    return _show(W.Image(format="png", layout=layout), figure)


def _show(image: W.Image, figure: Figure) -> W.Image:
    """Draw twice as fine as a plain screen needs, and show at the figure's own size."""
    value = png(figure)
    image.layout.width = f"{figure.get_size_inches()[0] * SCREEN_DPI:.0f}px"
    image.value = value
    return image


def _error_text(error: Exception) -> str:
    """The error in words, the traceback folded below it."""
    words = html.escape(f"{type(error).__name__}: {error}")
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace = html.escape("".join(lines))
    return (
        f"<div class='fl-error' role='alert' style='{ERROR_STYLE}'>{words}"
        f"<details><summary>Where?</summary><pre>{trace}</pre></details></div>"
    )


class LiveTraining:
    """Start and stop a training that draws itself while other cells run.

    step:   called with the round, from 0; returns one result.
    draw:   called with the list of results so far, first with []; returns a Figure.
    rounds: how many steps a full run has.
    about:  what the button promises, for example "20 s".

    The work happens in a thread that touches only widget values. Stop also ends a step
    in its middle if that is a round of a `Run`: between two visits, and nothing of the
    round is kept. Start then continues; after the last round or an error it begins anew
    with step(0).
    """

    def __init__(
        self,
        step: Callable[[int], object],
        draw: Callable[[Sequence[object]], Figure],
        rounds: int,
        about: str = "",
    ) -> None:
        if rounds < 1:
            raise ValueError(f"rounds must be at least 1, found {rounds}")
        self.step, self.draw, self.rounds = step, draw, rounds
        self.results: list[object] = []
        self.halt = threading.Event()
        self.worker: threading.Thread | None = None
        self.error: Exception | None = None
        name = f"Start (about {about})" if about else "Start"
        wide = W.Layout(width="auto")
        self.start = W.Button(description=name, layout=wide)
        self.stop = W.Button(description="Stop", disabled=True, layout=wide)
        self.bar, self.note = W.IntProgress(max=rounds), W.HTML("ready")
        self.picture = _image(draw([]))  # an error here fails the cell
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self.halt.set())
        buttons = W.HBox([self.start, self.stop, self.bar])
        self.box = W.VBox([buttons, self.note, self.picture])
        self.box.add_class("fl-live")

    def _repr_mimebundle_(self, **options: object) -> object:
        return self.box._repr_mimebundle_(**options)

    @property
    def is_running(self) -> bool:
        """Whether the thread is at work."""
        return self.worker is not None and self.worker.is_alive()

    def begin(self) -> None:
        """Start or continue; while a training runs, nothing happens."""
        if self.is_running:
            return
        if self.error is not None or len(self.results) == self.rounds:
            self.results = []
        self.halt.clear()
        self.error = None
        self.bar.value, self.note.value = len(self.results), "training …"
        self.worker = threading.Thread(target=self._work, daemon=True)
        self.worker.start()

    def wait(self) -> None:
        """Wait for the thread; an error in it becomes the cell's error."""
        if self.worker is not None:
            self.worker.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        self.start.disabled, self.stop.disabled = True, False
        try:
            with contextlib.suppress(Stopped), stopping_on(self.halt):
                while len(self.results) < self.rounds and not self.halt.is_set():
                    self._one_step()
            done = len(self.results)
            is_finished = done == self.rounds
            self.note.value = f"{'finished' if is_finished else 'stopped'} after {done}"
            self.note.value += " round" if done == 1 else " rounds"
        except Exception as error:
            self.error = error
            self.note.value = _error_text(error)
        finally:
            self.start.disabled, self.stop.disabled = False, True

    def _one_step(self) -> None:
        self.results.append(self.step(len(self.results)))
        _show(self.picture, self.draw(list(self.results)))
        self.bar.value = done = len(self.results)
        self.note.value = f"round {done} of {self.rounds}"


class SourceCode(Code):
    """Python source with a caption that says where it lies."""

    def __init__(self, text: str, caption: str) -> None:
        super().__init__(data=text, language="python")
        self.caption = caption

    def _repr_html_(self) -> str:
        return (
            f"<style>{SOURCE_STYLE}</style><figure class='fl-source'>"
            f"<figcaption><code>{html.escape(self.caption)}</code></figcaption>"
            f"{super()._repr_html_()}</figure>"
        )

    def __repr__(self) -> str:
        return f"# {self.caption}\n{self.data}"


def show_source(thing: object) -> SourceCode:
    """Show the source of a function, class or module as it stands in the package.

    Raises TypeError for something that has no Python source of its own.
    """
    try:
        lines, start = inspect.getsourcelines(thing)
        path = Path(inspect.getsourcefile(thing))
    except (TypeError, OSError) as error:
        raise TypeError(
            f"expected a function, class or module written in Python, found {thing!r}"
        ) from error
    package = inspect.getmodule(thing).__name__.split(".")[0]
    parts = path.parts
    place = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    caption = f"{'/'.join(parts[place:])}, line {max(start, 1)}"
    return SourceCode(textwrap.dedent("".join(lines)).rstrip() + "\n", caption)
