"""The context that hooks receive for one client, and the client's private state."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.messages import Broadcast, Tensors, copies, refuse_nan
from ..core.metrics import Task
from ..core.rng import Stream
from ..federation.federation import Client
from ..federation.samples import Batch, Samples
from .settings import LocalTraining


@dataclass
class PrivateState:
    """What one client keeps between visits; it is never sent.

    weights: the part of the model's state that the method declares private.
    memory:  named tensors that the method's hooks keep.
    """

    weights: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)

    @classmethod
    def after_visit(cls, weights: Tensors, memory: Tensors) -> PrivateState:
        """These weights, and copies of the memory of the visit's context.

        Raises ValueError, naming the tensor, for a NaN or infinite value, and TypeError
        for a memory that holds anything but named tensors.
        """
        state = cls(weights, copies(memory, "context.memory"))
        refuse_nan(state.weights)
        refuse_nan(state.memory)
        return state


@dataclass(eq=False)
class ClientContext:
    """What a method may see of one client, and nothing more.

    client:   the client's data.
    received: the broadcast.
    training: the settings of this round, read-only.
    task:     ``task.loss(output, y)``, ``task.score(output, y)`` and
              ``task.soft(y, num_classes)``.
    stream:   the method's random numbers for this round and client; ``rng`` is its
              generator.
    memory:   private tensors, changed in place, kept only if the visit succeeds, even
              if the server then refuses the message (a real client would not learn of
              that). A loss assigns new tensors and never writes into old ones.
    cache:    tensors that can be recomputed, by ``batch.index``. They stay from round
              to round and may vanish at any time: ``before_training`` removes what
              depends on the received weights. With an augmentation, every step has an
              empty cache.
    deadline: value of ``time.monotonic()`` at which training stops; None: never.
    """

    client: Client
    received: Broadcast
    training: LocalTraining
    task: Task
    stream: Stream
    memory: Tensors = field(default_factory=dict)
    cache: dict = field(default_factory=dict)
    deadline: float | None = None
    logged: defaultdict[str, list[Tensor]] = field(
        default_factory=lambda: defaultdict(list), repr=False
    )
    is_replaying: bool = field(default=False, repr=False)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "training" and name in vars(self):
            raise AttributeError(
                "context.training is the same for every method and read-only; override "
                "the hook `optimiser` for other steps, or pass LocalTraining to the Run"
            )
        super().__setattr__(name, value)

    @property
    def rng(self) -> torch.Generator:
        """The method's own generator (CPU)."""
        return self.stream.generator

    @property
    def num_classes(self) -> int:
        """M, of the whole data set."""
        return self.client.train.store.data.num_classes

    def log(self, name: str, value: Tensor) -> None:
        """Log a scalar, such as a part of the loss; the history has the steps' mean.

        Raises ValueError for the name "loss", which the training loop uses, and
        TypeError for a value that is not a scalar.
        """
        if name == "loss":
            raise ValueError('the loop logs "loss" itself; take another name')
        if value.ndim and self.client is not None:  # a stack logs a value per client
            raise TypeError(
                f"{name!r} must be logged as a scalar tensor, such as a mean; found "
                f"shape {tuple(value.shape)}"
            )
        if not self.is_replaying:
            self.logged[name].append(value.detach())

    def logged_sum(self, parts: Tensors) -> Tensor:
        """The sum of the parts of a loss, each of which is logged under its name."""
        for name, part in parts.items():
            self.log(name, part)
        return sum(parts.values())

    @torch.no_grad()
    def mean_loss(
        self, predict: Callable[[Tensor], Tensor], samples: Samples
    ) -> Tensor:
        """Mean of the task's loss over samples of the client, a float64 scalar.

        predict: maps images to outputs; a model in evaluation mode.
        Raises ValueError if there are no samples.
        """
        if not len(samples):
            raise ValueError(
                f"expected samples of client {self.client.id} to measure a loss on, "
                "found none; Federation.build(…, val=0.1) holds out a tenth"
            )
        batches = samples.batches(self.training.batch_size)
        losses = [self.task.losses(predict(b.x), b.y) for b in batches]
        return torch.cat(losses).double().mean()

    @torch.no_grad()
    def kept(
        self, name: str, compute: Callable[[Batch], Tensor], batch: Batch | None = None
    ) -> Tensor:
        """Cached rows of ``compute``, for a batch or for all training samples.

        All rows are computed once, in order and in batches of the training's size, so
        that the result does not depend on when, and stored in ``cache[name]``, (N, …),
        until that is removed: see ``cache``.
        With an augmentation, the rows of a batch are computed from the batch itself.
        """
        if batch is not None and self.training.augment is not None:
            return compute(batch)
        if name not in self.cache:
            batches = self.client.train.batches(self.training.batch_size)
            self.cache[name] = torch.cat([compute(each) for each in batches])
        return self.cache[name] if batch is None else self.cache[name][batch.index]

    def check_deadline(self) -> None:
        """Raise TimeoutError once the deadline has passed."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeoutError("the visit exceeded its deadline")

    def logged_means(self) -> dict[str, float]:
        """Mean of every logged value over the visit."""
        return {name: torch.stack(v).mean().item() for name, v in self.logged.items()}
