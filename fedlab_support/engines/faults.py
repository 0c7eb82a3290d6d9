"""Faults on purpose: clients that drop out, come late, or send nonsense."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import torch

from ..checks import expect
from ..messages import Broadcast, Message
from ..streams import numpy_stream
from ..training import PrivateState
from .contract import Answer, Engine, Failure, Job

DROPPED, LATE = "injected: dropped out", "injected: came after the deadline"


@dataclass(frozen=True)
class Faults:
    """How likely a client of a round fails, and in which way; at most one a visit.

    Every draw is a function of the run's seed, the round and the client.
    """

    drop: float = 0.0  # never answers and does not train
    late: float = 0.0  # trains, and answers too late
    nan: float = 0.0  # sends NaN in place of a tensor
    malformed: float = 0.0  # sends wrong names, shapes, types, or numbers of examples

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            expect(self, each.name, "a probability in 0…1", 0 <= value <= 1)
        if sum(getattr(self, each.name) for each in fields(self)) > 1:
            raise ValueError(f"probabilities must sum to at most 1, found {self}")

    def draw(self, seed: int, round: int, client: int) -> str:
        """The name of the fault of this visit, "" for none."""
        rng = numpy_stream(seed, "faults", round, client)
        names = [each.name for each in fields(self)]
        edges = np.cumsum([getattr(self, name) for name in names])
        hit = int(np.searchsorted(edges, rng.random(), side="right"))
        return [*names, ""][hit]


class FaultyEngine:
    """Another engine whose clients fail as ``faults`` say."""

    def __init__(self, engine: Engine, faults: Faults):
        self.engine, self.faults = engine, faults

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def open(self, job: Job) -> None:
        """Open the engine behind."""
        self.seed = job.seed
        self.engine.open(job)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, Answer]:
        """Visit the clients that did not drop out; spoil what the faulty ones say."""
        fault = {
            i: self.faults.draw(self.seed, told.round, i)
            for i, told in broadcasts.items()
        }
        there = {i: b for i, b in broadcasts.items() if fault[i] != "drop"}
        answers = self.engine.train(there, private) if there else {}
        rng = {
            i: numpy_stream(self.seed, "faults", b.round, i)
            for i, b in broadcasts.items()
        }
        return {i: self._spoiled(answers.get(i), fault[i], rng[i]) for i in broadcasts}

    def _spoiled(self, answer: Answer | None, fault: str, rng) -> Answer:
        if answer is None:
            return Failure(DROPPED)
        if not fault or isinstance(answer, Failure):
            return answer
        if fault == "late":
            return Failure(LATE)
        message, kept = answer
        ways = (spoil_nan,) if fault == "nan" else WAYS
        return ways[rng.integers(len(ways))](message), kept


def spoil_nan(message: Message) -> Message:
    """One weight tensor full of NaN."""
    name, value = next(iter(message.weights.items()))
    return _with(message, name, torch.full_like(value, float("nan")))


def _with(message: Message, name: str, value) -> Message:
    return replace(message, weights={**message.weights, name: value})


def _first(change: Callable) -> Callable[[Message], Message]:
    def spoil(message: Message) -> Message:
        """The first weight tensor changed."""
        name, value = next(iter(message.weights.items()))
        return _with(message, name, change(value))

    return spoil


WAYS = (
    _first(lambda value: value.flatten()[:1]),
    _first(lambda value: value.to(torch.float16)),
    lambda message: _with(message, "unheard_of", torch.zeros(1)),
    lambda message: replace(message, num_examples=0),
    lambda message: replace(message, num_examples=10**15),
)
"""The malformed messages: a shape, a type, a name, no examples, absurdly many."""
