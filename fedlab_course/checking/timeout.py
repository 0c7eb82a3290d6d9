"""Run learners' code with a time limit.

The code runs in a thread of its own, so the caller gets a reply in time whatever the
code does: in a notebook's main thread, under papermill and inside another thread.
"""

from __future__ import annotations

import contextvars
import ctypes
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from types import FrameType

THREAD_NAME = "answer"
ATTEMPTS = 10
"""Attempts to stop a thread; code that catches every exception needs several."""


class Stopped(SystemExit):
    """Raised inside work that took too long; a thread ends on it silently."""


class TooLong(Exception):  # noqa: N818 - a verdict, not a failure
    """The work took too long.

    stack: where it was when the time ran out: frames with lines, innermost first.
    """

    def __init__(self, stack: list[tuple[FrameType, int]]):
        super().__init__()
        self.stack = stack


def within(seconds: float, work: Callable[[], object]) -> object:
    """Return what `work()` returns, or raise what it raises.

    Raises TooLong after `seconds` and stops the work. A single call that never returns
    to Python cannot be stopped; it is left behind.
    """
    outcome: Future = Future()
    context = contextvars.copy_context()

    def fulfil() -> None:
        try:
            outcome.set_result(context.run(work))
        except BaseException as error:  # the waiting thread raises every kind again
            outcome.set_exception(error)

    thread = threading.Thread(target=fulfil, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        wait([outcome], seconds)
        if not outcome.done():
            frame = sys._current_frames().get(thread.ident)
            raise TooLong(list(traceback.walk_stack(frame)) if frame else [])
        return outcome.result()
    finally:
        _stop(thread, outcome)


def _stop(thread: threading.Thread, outcome: Future) -> None:
    """Raise Stopped in the thread until it ends; does nothing once work is done."""
    for _ in range(ATTEMPTS):
        if outcome.done():
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped)
        )
        thread.join(0.05)
