"""Limits of time that mean the same on a slow or busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from matplotlib.figure import Figure

from fedlab_course.plots.style import png

PLAIN_SECONDS = 0.14
"""Of the processor, for `_plain` on two quiet cores."""


def processor_seconds(work: Callable[[], object], times: int = 2) -> float:
    """The least of several tries: other work on the machine can only add to one."""
    taken = []
    for _ in range(times):
        began = time.process_time()
        work()
        taken.append(time.process_time() - began)
    return min(taken)


def slowness() -> float:
    """How many times longer drawing takes now than on two quiet cores, at least 1."""
    return max(1.0, processor_seconds(_plain, 3) / PLAIN_SECONDS)


def _plain() -> None:
    figure = Figure(figsize=(6, 2.5))
    for axes in figure.subplots(1, 3):
        axes.plot([0, 1, 2], [1, 3, 2], label="a line")
        axes.legend()
    png(figure)
