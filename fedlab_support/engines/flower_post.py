"""Messages to nodes, and their replies as they come."""

from __future__ import annotations

import time

from .contract import Failure
from .flower_records import Envelope, Grid, RecordDict

POLL_SECONDS = 0.3
"""Between two looks for replies; Flower's own waiting looks every 3 seconds."""


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
                failed = letter.has_error()
                found[node] = Failure(_reason(letter)) if failed else letter.content
        if not found:
            time.sleep(POLL_SECONDS)
        return found


def _reason(letter: Envelope) -> str:
    return letter.error.reason or f"Flower's error {letter.error.code}"
