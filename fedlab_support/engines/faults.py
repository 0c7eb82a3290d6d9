"""Faults on purpose: clients that drop out, come late, or send nonsense."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from ..core.checks import expect
from ..core.messages import Broadcast, Message
from ..core.rng import numpy_stream
from ..training.local import PrivateState
from .contract import Engine, Failure, Job, TrainingResult

REASONS = {
    "drop": "dropped out (a fault on purpose)",
    "late": "still trained at the deadline (a fault on purpose)",
}


@dataclass(frozen=True)
class Faults:
    """How likely a client of a round fails, and in which way; at most one a visit.

    Who drops out or is late sends nothing and keeps nothing of the visit; such a client
    is not visited at all. Who sends nonsense has trained, and keeps its private memory
    as after any visit. All of them were sent the broadcast.

    Every fault is a function of the run's seed, the round and the client. Raises
    ValueError for a probability outside 0…1 and for more than 1 together.
    """

    drop: float = 0.0  # never answers
    late: float = 0.0  # stops at the deadline, as with Run(deadline=...)
    nan: float = 0.0  # one value of its weights or report is NaN or infinite
    malformed: float = 0.0  # one of WAYS: names, shapes, types, counts, senders

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            expect(self, each.name, "a probability in 0…1", 0 <= value <= 1)
        if math.fsum(self._chances().values()) > 1:
            raise ValueError(f"probabilities must sum to at most 1, found {self}")

    def _chances(self) -> dict[str, float]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def draw(self, seed: int, round: int, client: int) -> str:
        """The name of this visit's fault, "" for none."""
        return self._draw(seed, round, client)[0]

    def _draw(self, seed: int, round: int, client: int):
        """The fault, and the stream that decides its details."""
        rng = numpy_stream(seed, "faults", round, client)
        names, edges = zip(*self._chances().items(), strict=True)
        hit = np.searchsorted(np.cumsum(edges), rng.random(), side="right")
        return (*names, "")[hit], rng

    def spoil(self, seed: int, round: int, message: Message):
        """What the server gets in place of ``message``; its tensors stay as they are.

        A message without a fault comes back itself.
        """
        fault, rng = self._draw(seed, round, message.client)
        if fault == "nan":
            return with_nan(message, rng)
        if fault == "malformed":
            return malformed(message, WAYS[rng.integers(len(WAYS))], rng)
        return message


class FaultyEngine:
    """Another engine whose clients fail as ``faults`` say, once they train."""

    def __init__(self, engine: Engine, faults: Faults):
        self.engine, self.faults = engine, faults

    def __getattr__(self, name: str):
        if name == "engine":  # a copy has none yet
            raise AttributeError(name)
        return getattr(self.engine, name)

    def open(self, job: Job) -> None:
        """Open the engine behind."""
        self.seed = job.seed
        self.engine.open(job)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Visit who is there; spoil what the faulty ones say."""
        seed, faults = self.seed, self.faults
        drawn = {i: faults.draw(seed, b.round, i) for i, b in broadcasts.items()}
        there = {i: b for i, b in broadcasts.items() if drawn[i] not in REASONS}
        answers = self.engine.train(there, private) if there else {}
        absent = {i: Failure(REASONS[drawn[i]]) for i in broadcasts if i not in there}
        spoiled = {
            i: (faults.spoil(seed, there[i].round, answer[0]), answer[1])
            for i, answer in answers.items()
            if not isinstance(answer, Failure)
        }
        return answers | spoiled | absent


def with_nan(message: Message, rng: np.random.Generator) -> Message:
    """One value of one floating tensor of weights or report is NaN, inf or -inf."""
    parts = {"weights": message.weights, "upload": message.upload}
    places = [
        (part, name)
        for part, tensors in parts.items()
        for name, value in tensors.items()
        if value.is_floating_point() and value.numel()
    ]
    part, name = places[rng.integers(len(places))]
    value = parts[part][name].clone(memory_format=torch.contiguous_format)
    value.view(-1)[rng.integers(value.numel())] = rng.choice([np.nan, np.inf, -np.inf])
    return replace(message, **{part: {**parts[part], name: value}})


WAYS = (
    *("missing name", "unknown name", "shape", "type", "no tensor"),
    *("no examples", "too many examples", "other sender", "no message"),
)
"""What may be wrong with a malformed message; the first five with a random weight."""


def malformed(message: Message, way: str, rng: np.random.Generator):
    """The message with one thing wrong, or something that is no message."""
    weights = dict(message.weights)
    name = list(weights)[rng.integers(len(weights))]
    value = weights.pop(name)
    return {
        "missing name": replace(message, weights=weights),
        "unknown name": replace(message, weights=message.weights | {f"{name}?": value}),
        "shape": replace(message, weights=weights | {name: value[None]}),
        "type": replace(message, weights=weights | {name: value.to(torch.int8)}),
        "no tensor": replace(message, weights=weights | {name: None}),
        "no examples": replace(message, num_examples=0),
        "too many examples": replace(message, num_examples=10**15),
        "other sender": replace(message, client=message.client + 1),
        "no message": weights,
    }[way]
