"""Guesses: a reader enters them before a result, and its figure shows them.

A control starts at "–", which is no guess. What was not guessed draws and prints
nothing, so a run without a reader leaves all figures as they are.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import combinations

import ipywidgets as W
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from .plots.style import COLOURS, SMALL, Picture, style

NONE, MINE = "–", "your guess"
HOLLOW = {"marker": "o", "markerfacecolor": "white", "markersize": 6, "zorder": 6}


class Guess(W.VBox):
    """Controls that start without a guess; what the three forms share.

    controls: name → control.
    about:    a line above them.
    """

    def __init__(
        self, controls: Mapping[str, W.Widget], width: str, about: str = ""
    ) -> None:
        self.controls = controls
        for control in controls.values():
            control.layout.width, control.layout.max_width = width, "100%"
        heading = (W.HTML(html.escape(about)),) if about else ()
        super().__init__([*heading, *controls.values()])
        self.add_class("fl-guess")

    @property
    def values(self) -> dict[str, object]:
        """The guesses that were entered, by name."""
        entered = {name: control.value for name, control in self.controls.items()}
        return {name: value for name, value in entered.items() if value != NONE}


class Numbers(Guess):
    """Questions that a number answers, or a name.

    questions: question → (low, high, unit) or (low, high, unit, step), a slider, or a
               list of names to choose from.
    """

    def __init__(self, questions: Mapping[str, tuple | list]) -> None:
        self.units = {q: g[2] for q, g in questions.items() if isinstance(g, tuple)}
        super().__init__({q: _control(q, g) for q, g in questions.items()}, "58em")
        width = f"{0.55 * max(len(c.description) for c in self.children):.0f}em"
        for control in self.children:
            control.style.description_width = width

    def on(
        self,
        figure: Picture,
        question: str,
        at: str,
        above: str | None = None,
        panel: int | None = None,
    ) -> Picture:
        """Mark a guessed number on a finished figure, and print how far off it was.

        at:    the name of a line, marked at its end, or of dots, which are all marked.
        above: the name of the line or dots that the guess counts from; None: from 0.
        panel: the number of the axis; None: every axis that has both.
        Returns the figure. An axis that has neither is left as it is: a profile may
        leave a method out. Raises ValueError for a question that was not asked.
        """
        self._expect(question)
        axes = figure.axes if panel is None else [figure.axes[panel]]
        known = [axis for axis in axes if {at, above or at} <= _series(axis).keys()]
        if question in self.values and known:
            with style():
                found = [_mark(a, self.values[question], at, above) for a in known]
            self.compare({question: float(np.mean(found))})
        return figure

    def compare(self, found: Mapping[str, object]) -> None:
        """Print the guesses beside what was found, one line per question.

        found: question → a number; for names, words or a column of numbers by name, or
               "", which only recalls the guess.
        Raises ValueError for a question that was not asked.
        """
        self._expect(*found)
        for question in [name for name in found if name in self.values]:
            print(f"{question}: {self._beside(question, found[question])}")

    def _expect(self, *questions: str) -> None:
        if unknown := [q for q in questions if q not in self.controls]:
            raise ValueError(
                f"expected one of {[*self.controls]}, found {unknown[0]!r}"
            )

    def _beside(self, question: str, found: object) -> str:
        guess = self.values[question]
        if isinstance(found, pd.Series):
            numbers = found.dropna().items()
            found = ", ".join(f"{name} {value:g}" for name, value in numbers)
        if question not in self.units:
            return f"you guessed {guess}" + (f"; here it is {found}" if found else "")
        off, unit = round(guess - found, 1), f" {self.units[question]}".rstrip()
        if np.isnan(found):
            return f"you guessed {guess:g}{unit}; this run leaves it out"
        how = f"{abs(off):g} too {'high' if off > 0 else 'low'}" if off else "no gap"
        return f"you guessed {guess:g}{unit}; here it is {found:.1f} ({how})"


class Order(Guess):
    """An order of names, a place each; a name that is chosen twice changes places.

    about: what comes first.
    """

    def __init__(self, names: Sequence[str], about: str) -> None:
        places = [f"no. {k}" for k in range(1, len(names) + 1)]
        controls = {place: _control(place, list(names)) for place in places}
        super().__init__(controls, "24em", about)
        for control in controls.values():
            control.observe(self._exchange, names="value")

    def _exchange(self, change: Mapping) -> None:
        for control in self.controls.values():
            is_same = control is not change["owner"] and control.value == change["new"]
            if is_same and change["new"] != NONE:
                control.value = change["old"]

    def on(self, figure: Picture) -> Picture:
        """Write the guessed places beside the names in a figure, and print how many
        pairs are the other way round; return the figure.
        """
        places = {place: k for k, place in enumerate(self.controls, 1)}
        mine = {name: places[place] for place, name in self.values.items()}
        for text in figure.findobj(Text):
            if text.get_text() in mine:
                text.set_text(f"{text.get_text()} (you: no. {mine[text.get_text()]})")
        ends = {n: xy[-1, 1] for n, (xy, *_) in _series(figure.axes[-1]).items()}
        pairs = list(combinations([name for name in mine if name in ends], 2))
        wrong = [f"{b} before {a}" for a, b in pairs if ends[a] < ends[b]]
        if pairs:
            said = f": here {'; '.join(wrong)}" if wrong else ""
            print(f"Your order has {len(wrong)} of {len(pairs)} pairs reversed{said}")
        return figure


class Curve(Guess):
    """A curve, guessed with a slider at each of a few places.

    x:       what the places are, in a word, such as "round".
    at:      the places, in order.
    about:   what is guessed, with its unit.
    between: low, high and step of the sliders.
    """

    def __init__(
        self, x: str, at: Sequence[float], about: str, between: tuple[float, ...]
    ) -> None:
        self.at = {f"{x} {place:g}": place for place in at}
        low, high, step = between
        controls = {name: _control(name, (low, high, "", step)) for name in self.at}
        super().__init__(controls, "6.5em", about)
        for control in controls.values():
            control.orientation, control.layout.height = "vertical", "13em"
        heading, *sliders = self.children
        self.children = (heading, W.HBox(sliders))

    def on(
        self, figure: Picture, of: str, places: Sequence[float] | None = None
    ) -> Picture:
        """Draw the guessed curve on a finished figure, dashed, and print how far off
        it was, on average and at most; return the figure.

        of:     the name of the line that was guessed; without it nothing is drawn.
        places: where the axis has the places; None: at their values.
        """
        where = dict(zip(self.at, places or self.at.values(), strict=True))
        axis, guess = figure.axes[0], self.values
        if not guess or of not in _series(axis):
            return figure
        x, y = [where[name] for name in guess], list(guess.values())
        grey = COLOURS["quiet"]
        found = dict(zip(guess, np.interp(x, *_series(axis)[of][0].T), strict=True))
        with style():
            axis.plot(x, y, color=grey, linestyle="--", **HOLLOW)
            _name(axis, x, y, grey)
        off = {name: abs(value - found[name]) for name, value in guess.items()}
        most = max(off, key=off.get)
        print(
            f"Your curve is {sum(off.values()) / len(off):.1f} off on average, most at "
            f"{most}: you guessed {guess[most]:g}, here it is {found[most]:.1f}"
        )
        return figure


def _control(question: str, given: tuple | list) -> W.Widget:
    """A control that starts without a guess."""
    if isinstance(given, list):
        return W.Dropdown(options=[NONE, *given], description=question)
    low, high, unit, step = (*given, 1)[:4]
    values = np.round(np.arange(low, high + step / 2, step), 6).tolist()
    names = [f"{value:{'+' if low < 0 < value else ''}g}" for value in values]
    options = [(NONE, NONE), *zip(names, values, strict=True)]
    about = f"{question} ({unit})" if unit else question
    return W.SelectionSlider(options=options, description=about)


# ---- on a figure --------------------------------------------------------------------
def _series(axis: Axes) -> dict[str, tuple[np.ndarray, str, bool]]:
    """The named series of an axis: points, (N, 2), colour, and whether it is a line."""
    lines = [(line.get_label(), line, True) for line in axis.get_lines()]
    bars = [bars for bars in axis.containers if isinstance(bars, ErrorbarContainer)]
    lines += [(each.get_label(), each.lines[0], False) for each in bars]
    return {
        name: (line.get_xydata(), line.get_color(), is_line)
        for name, line, is_line in lines
        if line is not None and name[:1] != "_"
    }


def _mark(axis: Axes, value: float, at: str, above: str | None) -> float:
    """Mark a guess; the mean of what was found there."""
    (points, colour, is_line), base = _series(axis)[at], np.zeros(1)
    last = slice(-1 if is_line else 0, None)
    if above:
        base = _series(axis)[above][0][last, 1]
    x, found = points[last].T
    y = np.broadcast_to(base + value, x.shape)
    if above:
        axis.vlines(x, y - value, y, colour, ":", linewidth=1.2)
    axis.plot(x, y, color=colour, linestyle="none", **HOLLOW)
    _name(axis, x, y, colour, is_below=y[-1] < found[-1])
    return float(np.nanmean(found - base))


def _name(
    axis: Axes, x: Sequence, y: Sequence, colour: str, is_below: bool = False
) -> None:
    """Make room for marks, and write beside the last one whose they are."""
    (low, high), bottom, top = axis.get_ylim(), np.nanmin(y), np.nanmax(y)
    room = 0.05 * (max(high, top) - min(low, bottom))
    axis.set_ylim(min(low, bottom - room), max(high, top + room))
    look = {"color": colour, "fontsize": SMALL, "ha": "right", "zorder": 7}
    look |= {"path_effects": [withStroke(linewidth=2.5, foreground="white")]}
    look |= {"va": "top" if is_below else "bottom", "textcoords": "offset points"}
    axis.annotate(MINE, (x[-1], y[-1]), (0, -7 if is_below else 7), **look)
