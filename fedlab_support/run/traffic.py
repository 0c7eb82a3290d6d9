"""What a round writes into the history about the wire, and about who was left out."""

from __future__ import annotations

import math
import warnings

from ..core.history import History
from ..core.messages import NUM_EXAMPLES_BYTES, Broadcast, Message, Server, nbytes

LOSS_BYTES = 4
"""A client answers the question for its loss with one float32."""


def record_query(record: History, server: Server, losses: dict[int, float]) -> None:
    """The weights went down, one number came back, before anybody was chosen.

    Who is asked again in the same round has the weights already.
    """
    round, asked, size = server.round + 1, who_was_asked(record), nbytes(server.weights)
    for client, loss in losses.items():
        down = 0 if client in asked else size
        record.add_wire(round, client, "down", loss_query=down)
        record.add_wire(round, client, "up", loss_query=LOSS_BYTES)
        if not math.isfinite(loss):
            reason = f"its loss is {loss}, which counts as the highest"
            record.add_event(round, client, "asked for its loss", reason)


def who_was_asked(record: History) -> set[int]:
    """The clients that hold this round's weights because they were asked for a loss."""
    return {client for _, client, _, part, _ in record.traffic if part == "loss_query"}


def record_broadcasts(record: History, broadcasts: dict[int, Broadcast]) -> None:
    """What went down; weights only if no question brought them in this round."""
    asked = who_was_asked(record)
    for client, told in broadcasts.items():
        parts = told.bytes | ({"weights": 0} if client in asked else {})
        record.add_wire(told.round, client, "down", **parts)


def record_message(record: History, round: int, client: int, message: Message) -> None:
    """What came up from a client, whether it will be accepted or not."""
    weights, upload = nbytes(message.weights), nbytes(message.upload)
    parts = {"num_examples": NUM_EXAMPLES_BYTES, "weights": weights, "upload": upload}
    record.add_wire(round, client, "up", **parts)


def record_absence(
    record: History, round: int, client: int, error: Exception, warn: bool = True
) -> None:
    """A client is left out of a round, or in round 0 of the run.

    ``warn``: the reader is warned as well, who may do something about it.
    """
    what = "left out of the round" if round else "left out of the run"
    is_told = isinstance(error, ValueError)
    reason = str(error) if is_told else f"{type(error).__name__}: {error}"
    record.add_event(round, client, what, reason)
    if warn:
        text = f"round {round}: client {client} is {what}: {reason}"
        warnings.warn(text, stacklevel=5)
