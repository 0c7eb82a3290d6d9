"""Record in the history what a round sends, and which clients it leaves out."""

from __future__ import annotations

import math
import warnings

from ..core.history import History
from ..core.messages import NUM_EXAMPLES_BYTES, Broadcast, Message, Tensors, nbytes

LOSS_BYTES = 4
"""A client uploads its loss as one float32."""

MEAN_BYTES = 8
"""A node uploads means, for the curves, as float64: of logged values and of scores."""


def record_node_evaluation(
    record: History, round: int, weights: Tensors, clients
) -> None:
    """Record that nodes received the weights, and sent mean loss and score back."""
    size = nbytes(weights)
    for client in clients:
        record.add_wire(round, client, "down", evaluation=size)
        record.add_wire(round, client, "up", evaluation=2 * MEAN_BYTES)


def record_loss_query(
    record: History, round: int, weights: Tensors, losses: dict[int, float]
) -> None:
    """Record that clients received the weights and uploaded their loss.

    losses:  mean training loss by client. A client that is queried again in the same
             round already has the weights, so nothing is sent to it.
    """
    size = nbytes(weights)
    queried = queried_clients(record)
    for client, loss in losses.items():
        down = 0 if client in queried else size
        record.add_wire(round, client, "down", loss_query=down)
        record.add_wire(round, client, "up", loss_query=LOSS_BYTES)
        if not math.isfinite(loss):
            reason = f"its loss is {loss}, which counts as the highest"
            record.add_event(round, client, "asked for its loss", reason)


def queried_clients(record: History) -> set[int]:
    """Clients that received this round's weights with a query for their loss."""
    return {client for _, client, _, part, _ in record.traffic if part == "loss_query"}


def record_broadcasts(record: History, broadcasts: dict[int, Broadcast]) -> None:
    """Record the bytes sent to each client; weights only if no query sent them."""
    queried = queried_clients(record)
    for client, broadcast in broadcasts.items():
        parts = broadcast.bytes | ({"weights": 0} if client in queried else {})
        record.add_wire(broadcast.round, client, "down", **parts)


def record_message(record: History, round: int, client: int, message: Message) -> None:
    """Record the bytes of a client's message, accepted or not."""
    weights, upload = nbytes(message.weights), nbytes(message.upload)
    parts = {"num_examples": NUM_EXAMPLES_BYTES, "weights": weights, "upload": upload}
    record.add_wire(round, client, "up", **parts)


def record_excluded(
    record: History, round: int, client: int, error: Exception, warn: bool = True
) -> None:
    """Record that a client is left out of a round, or in round 0 of the whole run.

    error:  the reason; its type is recorded as well unless it is a ValueError.
    warn:   also issue a warning.
    """
    what = "left out of the round" if round else "left out of the run"
    is_value_error = isinstance(error, ValueError)
    reason = str(error) if is_value_error else f"{type(error).__name__}: {error}"
    record.add_event(round, client, what, reason)
    if warn:
        text = f"round {round}: client {client} is {what}: {reason}"
        warnings.warn(text, stacklevel=7)
