"""Send requests to nodes and collect their replies."""

from __future__ import annotations

import time
from dataclasses import dataclass

from flwr.app import Message as Envelope
from flwr.app import RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ..contract import Failure

POLL_SECONDS = 0.3
"""Seconds between two polls for replies; Flower itself polls every 3 seconds."""

LOST = {
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
}
"""Errors that Flower returns for a node that is gone or too late."""


@dataclass(frozen=True)
class Lost(Failure):
    """The node did not reply: it is gone, or the message expired."""


class PendingRequests:
    """Requests that were sent and not yet replied to.

    lifetime:  seconds after which Flower drops a message.
    waiting:   the node of each message id.
    """

    def __init__(self, grid: Grid, lifetime: float):
        self.grid, self.lifetime = grid, lifetime
        self.waiting: dict[str, int] = {}

    def send(self, kind: str, contents: dict[int, RecordDict], round: int) -> None:
        """Send each node its content; ``kind`` selects the client app's function."""
        messages = [
            Envelope(content, node, kind, ttl=self.lifetime, group_id=str(round))
            for node, content in contents.items()
        ]
        if messages:
            self.grid.push_messages(messages)
        for node, message in zip(contents, messages, strict=True):
            self.waiting[message.metadata.message_id] = node

    def replies(self) -> dict[int, RecordDict | Failure]:
        """Replies that arrived since the last call; waits briefly if there are none."""
        found: dict[int, RecordDict | Failure] = {}
        if not self.waiting:
            return found
        for message in self.grid.pull_messages(list(self.waiting)):
            node = self.waiting.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if message.has_error():
                error = message.error
                kind = Lost if error.code in LOST else Failure
                found[node] = kind(error.reason or f"Flower's error {error.code}")
            else:
                found[node] = message.content
        if not found:
            time.sleep(POLL_SECONDS)
        return found
