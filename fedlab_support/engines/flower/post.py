"""Messages to nodes, and their replies as they come."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..contract import Failure
from .records import Envelope, ErrorCode, Grid, RecordDict

POLL_SECONDS = 0.3
"""Between two looks for replies; Flower's own waiting looks every 3 seconds."""

LOST = frozenset(
    (
        ErrorCode.MESSAGE_UNAVAILABLE,
        ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
        ErrorCode.NODE_UNAVAILABLE,
    )
)
"""Flower's own answers in the name of a node that is gone or too late."""


@dataclass(frozen=True)
class Lost(Failure):
    """No word from the node: it is gone, or the message outlived its time."""


class Post:
    """Messages that are under way, and their replies as they come."""

    def __init__(self, grid: Grid, lifetime: float):
        self.grid, self.lifetime = grid, lifetime
        self.waiting: dict[str, int] = {}

    def send(self, kind: str, contents: dict[int, RecordDict], round: int) -> None:
        """Send each node its content; ``kind`` chooses what the client app does."""
        letters = {
            node: Envelope(content, node, kind, ttl=self.lifetime, group_id=str(round))
            for node, content in contents.items()
        }
        if letters:
            self.grid.push_messages(list(letters.values()))
        for node, letter in letters.items():
            self.waiting[letter.metadata.message_id] = node

    def replies(self) -> dict[int, RecordDict | Failure]:
        """What has come since; waits a moment when nothing has."""
        found: dict[int, RecordDict | Failure] = {}
        for letter in self.grid.pull_messages(list(self.waiting)):
            node = self.waiting.pop(letter.metadata.reply_to_message_id, None)
            if node is not None:
                found[node] = _failure(letter) if letter.has_error() else letter.content
        if not found:
            time.sleep(POLL_SECONDS)
        return found


def _failure(letter: Envelope) -> Failure:
    error = letter.error
    kind = Lost if error.code in LOST else Failure
    return kind(error.reason or f"Flower's error {error.code}")
