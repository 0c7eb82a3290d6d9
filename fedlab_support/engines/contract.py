"""The interface between a run and its engine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from ..core.messages import Broadcast, Message, Tensors, copies
from ..core.metrics import Scores
from ..core.rng import Stream, torch_stream
from ..federation.federation import Federation
from ..federation.samples import Samples
from ..training.context import ClientContext, PrivateState
from ..training.learner import Learner
from ..training.privacy import Privacy
from ..training.settings import LocalTraining


@dataclass(frozen=True)
class Failure:
    """A client that failed, and the reason.

    error:  the exception, if the client's code raised it in this process.
    """

    reason: str
    error: BaseException | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure of a client whose training raised ``error``."""
        return cls(f"{type(error).__name__}: {error}", error)


CONDITIONS = (FloatingPointError, TimeoutError, MemoryError)
"""Errors of settings or machines; the others are mistakes in code or data."""
SLIPS = (NameError, TypeError, AttributeError, LookupError)
"""Mistakes in code, even where their texts differ: a KeyError names a client's key."""


def raise_mistakes(results: dict[int, Any], num_clients: int, at_once: bool) -> None:
    """Raise the error of the first client, with its traceback, if all failed alike.

    results:      by client; those of one round. A failure without an exception, such
                  as a dropout, is evidence neither for a mistake nor against one.
    num_clients:  of the run. One client of many is no evidence of a mistake, so a round
                  of one client raises only if the run has no other.
    at_once:      raise the error of the first client that failed, whatever it is.

    Divergence and missed deadlines do not count as mistakes.
    """
    failed = {i: r for i, r in sorted(results.items()) if isinstance(r, Failure)}
    errors = {i: r.error for i, r in failed.items() if r.error is not None}
    if not errors:
        return
    first = next(iter(errors))
    are_slips = all(isinstance(error, SLIPS) for error in errors.values())
    are_alike = are_slips or len({failed[i].reason for i in errors}) == 1
    is_everybody = len(failed) == len(results) and len(errors) >= min(2, num_clients)
    is_mistake = not isinstance(errors[first], CONDITIONS)
    if at_once or (is_everybody and are_alike and is_mistake):
        raise errors[first]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A request to evaluate weights on samples.

    weights:      with the client's private weights, where the server has these.
    samples:      the samples to evaluate on.
    client:       owner of the samples; None for test and held-out samples.
    part:         the client's "train", "val" or "test"; an engine without its data
                  sends the request to the node that has them.
    private:      what the server has of the client's private state, whose weights are
                  to be used; None: not these.
    """

    weights: Tensors
    samples: Samples
    client: int | None = None
    part: str = ""
    private: PrivateState | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """All that training needs besides the broadcast and the client's private state."""

    method: Any
    model: nn.Module  # as adapted, with its initial state
    federation: Federation
    training: LocalTraining
    seed: int
    initial_private: Tensors = field(default_factory=dict)  # weights of every client
    deadline: float | None = None  # seconds that a client may train
    privacy: Privacy | None = None

    def context(
        self, broadcast: Broadcast, client_id: int, memory: Tensors, cache: dict
    ):
        """The context that the method's hooks receive; memory is copied."""
        end = None if self.deadline is None else time.monotonic() + self.deadline
        return ClientContext(
            client=self.federation.client(client_id),
            received=broadcast,
            training=self.training.at(broadcast.round),
            task=self.federation.store.task,
            stream=Stream(self.seed, "method", broadcast.round, client_id),
            memory=copies(memory, "context.memory"),
            cache=cache,
            deadline=end,
        )

    def large_first(self, client_ids: Iterable[int]) -> list[int]:
        """Client numbers with the most samples first; ties by number."""
        sizes = self.federation.sizes
        return sorted(client_ids, key=lambda i: (-sizes[i], i))

    def load(self, learner: Learner, *trees: Tensors) -> None:
        """Load ``trees`` into a worker's model, over the initial private weights."""
        learner.load(self.initial_private, *trees)

    def protect(self, message: Message, received: Broadcast) -> Message:
        """The message that the client uploads: clipped and noisy if privacy is set."""
        if self.privacy is None:
            return message
        rng = None
        if self.privacy.seeded:
            rng = torch_stream(self.seed, "privacy", received.round, message.client)
        return self.privacy.protect(message, received.weights, rng)


SetupResult = tuple[Tensors, PrivateState] | Failure
TrainingResult = tuple[Message, PrivateState] | Failure
"""A message and the private state, a receipt if a node keeps it; or a Failure."""


class Engine(Protocol):
    """Train and evaluate clients. A client that fails returns a ``Failure``."""

    holds_clients: bool
    """Whether clients' data and private state are in this process."""

    is_exact: bool
    """Whether results equal the local engine's bit for bit, not only up to rounding."""

    job: Job
    """The job that was opened last."""

    def open(self, job: Job) -> None:
        """Prepare for a job; ValueError gives the reason if that is impossible."""

    def client_setup(
        self, client_ids: Sequence[int], broadcast: Broadcast
    ) -> dict[int, SetupResult]:
        """The setup upload of each client, once before round 1."""

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Train every client that has a broadcast."""

    def evaluate(self, requests: Sequence[Evaluation], round: int) -> list[Scores]:
        """Loss and score of every sample, for each request."""
