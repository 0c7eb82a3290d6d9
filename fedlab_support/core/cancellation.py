"""Giving up a round that is in progress, from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ASKED: ContextVar[threading.Event | None] = ContextVar("asked_to_stop", default=None)


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The round was given up between two visits; the run is as it was before it."""


@contextmanager
def stopping_on(event: threading.Event) -> Iterator[None]:
    """Let rounds that this thread makes inside the block end once ``event`` is set."""
    token = _ASKED.set(event)
    try:
        yield
    finally:
        _ASKED.reset(token)


def stop_check() -> Callable[[], None]:
    """A function for any thread that raises Stopped once this thread's round must end.

    Outside a ``stopping_on`` block it never does.
    """
    event = _ASKED.get()

    def check() -> None:
        if event is not None and event.is_set():
            raise Stopped("the round was stopped; nothing of it is kept")

    return check
