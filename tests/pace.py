"""Limits of time that mean the same on a slow or busy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from matplotlib.figure import Figure

from fedlab_course.plots.style import png

PLAIN_SECONDS = 0.14
"""Of the processor, for `_plain` on two quiet cores."""


def processor_seconds(work: Callable[[], object]) -> float:
    """What ``work`` takes of the processor, measured once."""
    began = time.process_time()
    work()
    return time.process_time() - began


def quiet_seconds(work: Callable[[], object], limit: float) -> float:
    """What ``work`` would take of the processor on two quiet cores.

    The median of five ratios to `_plain`, which is measured right after ``work``, since
    other work on the machine slows both. Three below ``limit`` end the measurement,
    since the median of five is then below it, too.
    """
    found = []
    while len(found) < 5 and sum(seconds < limit for seconds in found) < 3:
        mine, plain = processor_seconds(work), processor_seconds(_plain)
        found.append(PLAIN_SECONDS * mine / plain)
    return statistics.median(found)


def slowness() -> float:
    """How many times longer drawing takes now than on two quiet cores, at least 1."""
    plain = statistics.median(processor_seconds(_plain) for _ in range(3))
    return max(1.0, plain / PLAIN_SECONDS)


def _plain() -> None:
    figure = Figure(figsize=(6, 2.5))
    for axes in figure.subplots(1, 3):
        axes.plot([0, 1, 2], [1, 3, 2], label="a line")
        axes.legend()
    png(figure)
