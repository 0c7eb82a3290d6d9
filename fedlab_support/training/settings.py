"""How clients train: the settings that every compared method shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from ..core.checks import Range, Settings, setting
from ..federation.samples import Batch
from .optimisers import Fused, FusedAdam, FusedSGD

if TYPE_CHECKING:
    from .context import ClientContext


@dataclass(frozen=True)
class Augmentation(Settings):
    """A change to a client's images, features or labels during local training.

    It is independent of the method: ``LocalTraining(augment=…)``. Its layers follow
    stages of the network, ahead of those that the method inserted there. Random
    numbers are drawn once per step, before the optimiser first evaluates the loss, so
    that every evaluation within the step uses the same; evaluation is not augmented.
    This base class changes nothing.
    """

    @property
    def mixes_labels(self) -> bool:
        """Whether labels become class probabilities, float (B, M)."""
        return False

    def check(self, method) -> None:
        """Raise ValueError when ``method`` cannot train with it."""
        if self.mixes_labels and method.needs_classes:
            raise ValueError(
                f"{method!r} needs one class per image, and {self!r} mixes labels; use "
                "an augmentation that keeps labels, such as MixStyle(), or switch off "
                "the part of the method that needs classes"
            )

    def adapt(self, model: nn.Module) -> nn.Module:
        """The network with the layers inserted; called after the method's ``adapt``."""
        return model

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """The batch to train on in this step; sets up the inserted layers for it.

        rng: the stream (seed, augment, round, client); neutral settings draw nothing.
        """
        return batch


@dataclass(frozen=True)
class LocalTraining(Settings):
    """How a client trains; the same for every method in a comparison.

    Raises ValueError for a value outside its range.
    """

    lr: float = setting(0.05, at_least=0)  # learning rate; 0: weights as received
    epochs: int = setting(1, at_least=1)  # passes over the client's data per round
    batch_size: int = setting(32, at_least=1)  # samples per step
    optimiser: str = setting(  # or "adam", or "adamw" with decoupled weight decay
        "sgd",
        one_of=("sgd", "adam", "adamw"),
        hint="a method brings its own through its hook `optimiser`",
    )
    momentum: float = setting(0.0, at_least=0, below=1)  # of SGD; reset at every visit
    weight_decay: float = setting(0.0, at_least=0)  # 0: none
    linear_weight_decay: float | None = setting(  # on linear layers; None: weight_decay
        None, at_least=0
    )
    precision: str = setting(  # or "tf32" (GPU), or "bf16": steps under autocast
        "float32", one_of=("float32", "tf32", "bf16")
    )
    compile: bool = False  # True: networks go through torch.compile
    augment: Augmentation | None = setting(  # None: no augmentation
        None,
        holds=lambda augment: isinstance(augment, Augmentation),
        allowed="an instance of a subclass of Augmentation, as Mixup() is",
    )
    schedule: Callable[[int], float] | None = setting(  # None: lr in every round
        None,
        holds=lambda function: callable(function) and not isinstance(function, type),
        allowed="a function from the round to a factor of lr, as in Cosine(rounds=100)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum and self.optimiser != "sgd":
            raise ValueError(
                f"momentum belongs to optimiser 'sgd', found momentum={self.momentum} "
                f"with {self.optimiser!r}; leave it at 0"
            )

    def at(self, round: int) -> LocalTraining:
        """The settings of one round: ``lr`` times what the schedule returns for it."""
        if self.schedule is None or round < 1:  # 0: the setup
            return self
        factor = self.schedule(round)
        if not Range(at_least=0).contains(factor, "float"):
            raise ValueError(
                f"schedule must return a factor of lr ≥ 0 and finite, found {factor!r} "
                f"for round {round}"
            )
        return replace(self, lr=self.lr * float(factor), schedule=None)


def build_optimiser(
    named_params, training: LocalTraining, rates: dict[str, float] | None = None
) -> Fused:
    """A new optimiser with the settings of ``training``.

    named_params: pairs of name and parameter. ``linear_weight_decay`` applies to the
                  matrices of linear layers, that is, to parameters with two dimensions
                  (not counting the dimension of stacked clients).
    rates:        learning rates of parameters that have their own, by name.
    """
    linear_decay = training.linear_weight_decay
    if linear_decay is None:
        linear_decay = training.weight_decay
    groups: dict[tuple, list[nn.Parameter]] = {}  # a GPU's kernels take one type each
    for name, parameter in named_params:
        num_dims = parameter.ndim - getattr(parameter, "is_stack", False)
        decay = linear_decay if num_dims == 2 else training.weight_decay
        rate = (rates or {}).get(name, training.lr)
        groups.setdefault((decay, rate, parameter.dtype), []).append(parameter)
    settings = [
        {"params": params, "weight_decay": decay, "lr": rate}
        for (decay, rate, _), params in groups.items()
    ]
    if training.optimiser == "sgd":
        return FusedSGD(settings, training.lr, training.momentum)
    return FusedAdam(settings, training.lr, decoupled=training.optimiser == "adamw")
