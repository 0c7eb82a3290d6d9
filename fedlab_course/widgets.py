"""Explorers, live training and source views, built from core controls only.

Errors are visible: an explorer calls its view once when it is created, so that an error
fails the cell; later errors appear in a banner of class ``fl-error``.
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

from fedlab_support.core.cancellation import Stopped, stopping_on
from fedlab_support.core.checks import Range, checked

from .controls import control_for, in_rows, player, slider
from .plots.style import SCREEN_DPI, png

__all__ = [
    "Explorer",
    "LiveTraining",
    "SourceCode",
    "explore",
    "player",
    "show_source",
    "slider",
]

ERROR_STYLE = "color:var(--jp-error-color1,#b00020);white-space:pre-wrap"
BUSY = (
    "<style>.fl-busy {display: none} "
    ".jp-NotebookPanel:has(.jp-Notebook-ExecutionIndicator[data-status='busy']) "
    ".fl-busy {display: block; opacity: 0; animation: fl-busy 0s 1s forwards} "
    "@keyframes fl-busy {to {opacity: 1}}</style>"
    "<div class='fl-busy' role='status'>Busy: the figure is redrawn when the kernel "
    "is free.</div>"
)
"""A line that the page shows by itself while the kernel cannot answer."""
SOURCE_STYLE = (
    ".fl-source pre {color:#24323d; background:#f6f8fa; padding:0.6em; "
    "overflow-x:auto; font-family:var(--jp-code-font-family, monospace)} "
    ".fl-source figcaption {font-size:90%; opacity:0.8}"
)


class Explorer(W.VBox):
    """A figure and the controls it depends on; created by ``explore``.

    controls:  name → control.
    image:     the figure.
    banner:    "" or the last error.
    """

    def __init__(
        self, view: Callable[..., Figure], controls: dict[str, W.Widget]
    ) -> None:
        self.view, self.controls = view, controls
        self.banner = W.HTML()
        self.image = _image(view(**self.values()))  # an error here fails the cell
        for control in controls.values():
            control.observe(self._redraw, names="value")
        busy = W.HTML(BUSY)
        super().__init__([in_rows(*controls.values()), busy, self.banner, self.image])
        self.add_class("fl-explorer")

    def values(self) -> dict[str, object]:
        """The current values of the controls."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _change: object) -> None:
        try:
            _show(self.image, self.view(**self.values()))
            self.banner.value = ""
        except Exception as error:
            self.banner.value = _error_text(error)


@checked()
def explore(view: Callable[..., Figure], **controls: object) -> Explorer:
    """Show how a figure depends on two or three values.

    view:      pure function from values to a figure; under half a second per call.
    controls:  one per argument of the view: a widget (see ``slider``), (low, high) or
               (low, high, step), a list to choose from, or True/False. The initial
               value is the view's default, where it has one. At most one ``player``.
    Raises what the view raises for the initial values, and TypeError for any other
    control.
    """
    known = inspect.signature(view).parameters.items()
    starts = {name: p.default for name, p in known if p.default is not p.empty}
    made = {
        name: control_for(name, given, starts.get(name))
        for name, given in controls.items()
    }
    return Explorer(view, made)


def _image(figure: Figure) -> W.Image:
    layout = W.Layout(max_width="100%", align_self="flex-start")
    return _show(W.Image(format="png", layout=layout), figure)


def _show(image: W.Image, figure: Figure) -> W.Image:
    """Render at twice the screen resolution, display at the figure's own size."""
    value = png(figure)
    image.layout.width = f"{figure.get_size_inches()[0] * SCREEN_DPI:.0f}px"
    image.value = value
    return image


def _error_text(error: Exception) -> str:
    """The error message, with the traceback folded below it."""
    message = html.escape(f"{type(error).__name__}: {error}")
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    trace = html.escape("".join(lines))
    return (
        f"<div class='fl-error' role='alert' style='{ERROR_STYLE}'>{message}"
        f"<details><summary>Where?</summary><pre>{trace}</pre></details></div>"
    )


class LiveTraining(W.VBox):
    """Start and stop a training run that plots its progress while other cells run.

    step:    called with the round, from 0; returns one result.
    draw:    called with the list of results so far, first with []; returns a Figure,
             or None to leave the one that is shown.
    rounds:  number of steps of a full run.
    about:   expected duration, shown on the button, for example "20 s".
    picture: shows the figures; None: a new one, which starts with draw([]).

    The work happens in a thread that touches only widget values. Stop also interrupts
    a round of a ``Run`` between two clients, and discards that round. Start then
    continues; after the last round or an error it starts over with step(0).
    """

    @checked(rounds=Range(at_least=1))
    def __init__(
        self,
        step: Callable[[int], object],
        draw: Callable[[Sequence[object]], Figure | None],
        rounds: int,
        about: str = "",
        picture: W.Image | None = None,
    ) -> None:
        self.step, self.draw, self.rounds = step, draw, rounds
        self.results: list[object] = []
        self.asked: object = None  # the last ``wanted``
        self.halt = threading.Event()
        self.worker: threading.Thread | None = None
        self.error: Exception | None = None
        name = f"Start (about {about})" if about else "Start"
        layout = W.Layout(width="auto", flex="0 0 auto")
        self.start = W.Button(description=name, layout=layout)
        self.stop = W.Button(description="Stop", disabled=True, layout=layout)
        self.bar, self.note = W.IntProgress(max=rounds), W.HTML("ready")
        self.note.add_class("fl-note")
        self.picture = picture or _image(draw([]))  # an error here fails the cell
        self.start.on_click(lambda _: self.begin())
        self.stop.on_click(lambda _: self.halt.set())
        self.buttons = W.HBox([self.start, self.stop, self.bar])
        self.buttons.layout.flex_flow = "row wrap"
        super().__init__([self.buttons, self.note, self.picture])
        self.add_class("fl-live")

    @property
    def is_running(self) -> bool:
        """Whether the thread is running."""
        return self.worker is not None and self.worker.is_alive()

    def wanted(self) -> object:
        """What Start asks for, such as the values of controls."""

    def begin(self) -> None:
        """Start or continue, or begin anew if ``wanted`` has changed since.

        Does nothing while training is running.
        """
        if self.is_running:
            return
        if (wanted := self.wanted()) != self.asked:
            self.asked, self.results = wanted, []
        if self.error is not None or len(self.results) == self.rounds:
            self.results = []
        self.halt.clear()
        self.error = None
        self.bar.value, self.note.value = len(self.results), "training …"
        self.worker = threading.Thread(target=self._work, daemon=True)
        self.worker.start()

    def wait(self) -> None:
        """Wait for the thread and raise its error, if there was one."""
        if self.worker is not None:
            self.worker.join()
        if self.error is not None:
            raise self.error

    def redraw(self) -> None:
        """Show the figure of the results so far."""
        _show(self.picture, self.draw(list(self.results)))

    def _work(self) -> None:
        self.start.disabled, self.stop.disabled = True, False
        try:
            with contextlib.suppress(Stopped), stopping_on(self.halt):
                while len(self.results) < self.rounds and not self.halt.is_set():
                    self._one_step()
            done = len(self.results)
            how = "finished" if done == self.rounds else "stopped"
            self.note.value = f"{how} after {done} round{'s' if done != 1 else ''}"
        except Exception as error:
            self.error = error
            self.note.value = _error_text(error)
        finally:
            self.start.disabled, self.stop.disabled = False, True

    def _one_step(self) -> None:
        self.results.append(self.step(len(self.results)))
        if (figure := self.draw(list(self.results))) is not None:
            _show(self.picture, figure)
        self.bar.value = done = len(self.results)
        self.note.value = f"round {done} of {self.rounds}"


class SourceCode(Code):
    """Python source with its file and line as a caption."""

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
    """Show the source of a function, class or module of the package.

    Raises TypeError for an object that has no Python source.
    """
    try:
        lines, start = inspect.getsourcelines(thing)
        path = Path(inspect.getsourcefile(thing))
    except (TypeError, OSError) as error:
        raise TypeError(
            "thing must be a function, class or module written in Python, found "
            f"{thing!r}"
        ) from error
    package = inspect.getmodule(thing).__name__.split(".")[0]
    parts = path.parts
    place = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    caption = f"{'/'.join(parts[place:])}, line {max(start, 1)}"
    return SourceCode(textwrap.dedent("".join(lines)).rstrip() + "\n", caption)
