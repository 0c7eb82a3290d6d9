"""A client that sends poison, for tests."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedlab_support.core.messages import Message, Tensors
from fedlab_support.engines import Failure, LocalEngine


def _scaled(tensors: Tensors, number: float) -> Tensors:
    return {
        name: torch.full_like(value, number) if value.is_floating_point() else value
        for name, value in tensors.items()
    }


def _negative(weights: Tensors) -> Tensors:
    return {
        name: -value if name.endswith("running_var") else value
        for name, value in weights.items()
    }


def poisoned(message: Message, way: str) -> Message:
    """The message with poison in its weights, its buffers or its upload."""
    weights, upload = message.weights, message.upload
    return {
        "1e10": lambda: replace(message, weights=_scaled(weights, 1e10)),
        "1e38": lambda: replace(message, weights=_scaled(weights, 1e38)),
        "nan": lambda: replace(message, weights=_scaled(weights, float("nan"))),
        "negative": lambda: replace(message, weights=_negative(weights)),
        "upload": lambda: replace(message, upload=_scaled(upload, 1e10)),
        "absent": lambda: None,
    }[way]()


class Poisoner(LocalEngine):
    """The local engine, in which one client's messages are poisoned.

    ways:  one per round, in turn; "absent": it fails.
    """

    def __init__(self, client: int, *ways: str):
        super().__init__(workers=1)
        self.client, self.ways = client, ways

    def train(self, broadcasts, private):
        """Train all clients; the poisoner's message is another one."""
        results = super().train(broadcasts, private)
        if self.client in results and not isinstance(results[self.client], Failure):
            round = broadcasts[self.client].round
            message, kept = results[self.client]
            found = poisoned(message, self.ways[(round - 1) % len(self.ways)])
            is_absent = found is None
            results[self.client] = Failure("absent") if is_absent else (found, kept)
        return results
