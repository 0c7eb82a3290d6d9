"""Injected faults: clients that drop out, miss the deadline or upload bad values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from ..core.checks import Settings, setting
from ..core.messages import Broadcast, Message
from ..core.rng import numpy_stream
from ..training.context import PrivateState
from .contract import Engine, Failure, TrainingResult

REASONS = {
    "drop": "dropped out (an injected fault)",
    "late": "still training at the deadline (an injected fault)",
}


@dataclass(frozen=True)
class Faults(Settings):
    """Probabilities that a selected client fails in a round, in at most one way.

    drop:       the client uploads nothing and does not train.
    late:       the same, with the deadline as the reason.
    nan:        it trains, and one uploaded value, if any, is NaN or infinite.
    malformed:  it trains, and its message has one of the mistakes in WAYS.

    Every client receives the broadcast. Each fault is a function of the run's seed, the
    round and the client. Raises ValueError for a probability outside 0…1 and for a sum
    above 1.
    """

    drop: float = setting(0.0, at_least=0, at_most=1)  # 0: no client drops out
    late: float = setting(0.0, at_least=0, at_most=1)  # 0: no client is late
    nan: float = setting(0.0, at_least=0, at_most=1)  # 0: all values are finite
    malformed: float = setting(0.0, at_least=0, at_most=1)  # 0: all are well formed

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.fsum(asdict(self).values()) > 1:
            raise ValueError(f"probabilities must sum to at most 1, found {self}")

    def draw(self, seed: int, round: int, client: int) -> str:
        """The name of the client's fault in this round, "" for none."""
        return self._draw(seed, round, client)[0]

    def _draw(self, seed, round, client) -> tuple[str, np.random.Generator]:
        """The fault, and the stream that decides its details."""
        rng = numpy_stream(seed, "faults", round, client)
        names, edges = zip(*asdict(self).items(), strict=True)
        hit = np.searchsorted(np.cumsum(edges), rng.random(), side="right")
        return (*names, "")[hit], rng

    def spoil(self, seed: int, round: int, message: Message):
        """The message that the server receives; ``message`` itself if it has no fault.

        Tensors of ``message`` are not changed.
        """
        fault, rng = self._draw(seed, round, message.client)
        if fault == "nan":
            return with_nan(message, rng)
        if fault == "malformed":
            ways = WAYS if message.weights else OF_THE_MESSAGE
            return malformed(message, ways[rng.integers(len(ways))], rng)
        return message


def train_with_faults(
    engine: Engine,
    faults: Faults | None,
    broadcasts: dict[int, Broadcast],
    private: dict[int, PrivateState],
) -> dict[int, TrainingResult]:
    """As ``engine.train``, but clients drop out and messages are spoiled by faults."""
    if faults is None:
        return engine.train(broadcasts, private)
    seed, present, absent = engine.job.seed, {}, {}
    for i, broadcast in broadcasts.items():
        if (fault := faults.draw(seed, broadcast.round, i)) in REASONS:
            absent[i] = Failure(REASONS[fault])
        else:
            present[i] = broadcast
    results = engine.train(present, private) if present else {}
    for i, result in results.items():
        if not isinstance(result, Failure):
            message, kept = result
            results[i] = faults.spoil(seed, present[i].round, message), kept
    return results | absent


def with_nan(message: Message, rng: np.random.Generator) -> Message:
    """One value of one floating tensor of weights or upload is NaN, inf or -inf."""
    parts = {"weights": message.weights, "upload": message.upload}
    places = [
        (part, name)
        for part, tensors in parts.items()
        for name, value in tensors.items()
        if value.is_floating_point() and value.numel()
    ]
    if not places:
        return message
    part, name = places[rng.integers(len(places))]
    value = parts[part][name].clone(memory_format=torch.contiguous_format)
    value.view(-1)[rng.integers(value.numel())] = rng.choice([np.nan, np.inf, -np.inf])
    return replace(message, **{part: {**parts[part], name: value}})


OF_A_WEIGHT = ("missing name", "unknown name", "shape", "type", "no tensor")
OF_THE_MESSAGE = ("no examples", "too many examples", "other sender", "no message")
WAYS = OF_A_WEIGHT + OF_THE_MESSAGE
"""Mistakes of a malformed message; some need a weight, which is chosen at random."""


def malformed(message: Message, way: str, rng: np.random.Generator):
    """The message with one mistake, or an object that is not a message."""
    weights = dict(message.weights)
    if way in OF_THE_MESSAGE:
        return {
            "no examples": replace(message, num_examples=0),
            "too many examples": replace(message, num_examples=10**15),
            "other sender": replace(message, client=message.client + 1),
            "no message": weights,
        }[way]
    name = list(weights)[rng.integers(len(weights))]
    value = weights.pop(name)
    changed = {
        "missing name": weights,
        "unknown name": message.weights | {f"{name}?": value},
        "shape": weights | {name: value[None]},
        "type": weights | {name: value.to(torch.int8)},
        "no tensor": weights | {name: None},
    }
    return replace(message, weights=changed[way])
