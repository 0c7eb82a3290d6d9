"""Cancel a round in progress from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_EVENT: ContextVar[threading.Event | None] = ContextVar("stop_event", default=None)


class Stopped(Exception):  # noqa: N818 - not an error
    """The round was cancelled between two clients; the run is as before the round."""


@contextmanager
def stopping_on(event: threading.Event) -> Iterator[None]:
    """Cancel rounds that this thread runs inside the block once ``event`` is set."""
    token = _EVENT.set(event)
    try:
        yield
    finally:
        _EVENT.reset(token)


def stop_check() -> Callable[[], None]:
    """A function that raises Stopped, in any thread, once this thread's event is set.

    Outside a ``stopping_on`` block it never does.
    """
    event = _EVENT.get()

    def check() -> None:
        if event is not None and event.is_set():
            raise Stopped("the round was stopped and discarded")

    return check
