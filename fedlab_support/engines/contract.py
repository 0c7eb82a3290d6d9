"""What a run asks of an engine, and what an engine knows of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from ..core.messages import Broadcast, Message, Tensors, copies
from ..core.metrics import Scores, task
from ..core.rng import Stream, torch_stream
from ..federation.federation import Federation, Samples
from ..training.local import ClientContext, Learner, LocalTraining, PrivateState
from ..training.privacy import Privacy


@dataclass(frozen=True)
class Failure:
    """A visit that did not succeed, and why."""

    reason: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The visit that ended with ``error``."""
        return cls(f"{type(error).__name__}: {error}")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Weights to be measured on samples.

    ``client`` names whose samples these are, and ``part`` which of them ("train" or
    "val"): an engine without the client's data passes the question on to who has it.
    ``is_personal``: the client's private weights are used; where they are at hand they
    lie in ``weights`` already.
    """

    weights: Tensors
    samples: Samples
    client: int | None = None
    part: str = ""
    is_personal: bool = False


@dataclass(frozen=True, eq=False)
class Job:
    """All that a visit needs beside the broadcast and the client's private state."""

    method: Any
    model: nn.Module  # as adapted, with its initial state
    federation: Federation
    training: LocalTraining
    seed: int
    private_names: tuple[str, ...] = ()
    initial_private: Tensors = field(default_factory=dict)
    deadline: float | None = None  # seconds that a visit may train
    privacy: Privacy | None = None

    def context(
        self, broadcast: Broadcast, client_id: int, memory: Tensors, cache: dict
    ):
        """What the method will see of client ``client_id``; memory is copied."""
        end = None if self.deadline is None else time.monotonic() + self.deadline
        return ClientContext(
            client=self.federation.client(client_id),
            received=broadcast,
            training=self.training,
            task=task(self.federation.data.task),
            stream=Stream(self.seed, "method", broadcast.round, client_id),
            memory=copies(memory),
            cache=cache,
            deadline=end,
        )

    def large_first(self, client_ids: Iterable[int]) -> list[int]:
        """The sequence of visits: by number of samples, then by client."""
        sizes = self.federation.sizes
        return sorted(client_ids, key=lambda i: (-sizes[i], i))

    def load(self, learner: Learner, *trees: Tensors) -> None:
        """Bring a worker's model to ``trees``, with nothing left of the last visit."""
        learner.load(self.initial_private, *trees)

    def protect(self, message: Message, received: Broadcast) -> Message:
        """The message as it leaves the client: clipped and noisy where asked for."""
        if self.privacy is None:
            return message
        where = (received.round, message.client)
        noise = torch_stream(self.seed, "privacy", *where)
        return self.privacy.protect(message, received.weights, noise)


SetupResult = tuple[Tensors, PrivateState] | Failure
TrainingResult = tuple[Message, PrivateState] | Failure
"""What a client says, and what is kept for it (nothing, where it keeps that itself)."""


class Engine(Protocol):
    """How a cohort is visited. Clients that fail answer with a :class:`Failure`."""

    holds_clients: bool
    """Whether clients' data and private state are in this process."""

    is_exact: bool
    """Whether results are the local engine's to the last bit, not only to rounding."""

    job: Job
    """What it has taken on last."""

    def open(self, job: Job) -> None:
        """Take on a job; ValueError says why this engine cannot do it."""

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """What each client says once, before round 1."""

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """One visit to every client that has a broadcast."""

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score of every sample, for each request."""
