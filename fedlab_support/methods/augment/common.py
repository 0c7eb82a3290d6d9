"""Shared by augmentations: random draws, mixed labels, and inserting layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from torch import Tensor, nn

from ...federation.samples import Batch
from ...models.layers.mixing import PairLayer, Pairs
from ...models.stages import insert, stage_numbers
from ...training.context import ClientContext
from ...training.learner import frozen_modules

NAME = "augment"
"""Name of an augmentation's layer among the layers added to a stage."""


def happens(p: float, rng: np.random.Generator) -> bool:
    """True with probability ``p``; nothing is drawn for 0 and 1."""
    return p > 0 and (p == 1 or rng.random() < p)


def mixed_labels(batch: Batch, pairs: Pairs, context: ClientContext) -> Tensor:
    """The batch's labels as class probabilities, mixed by ``pairs``: float (B, M, …).

    Cross-entropy is linear in them: lambda CE(y) + (1 - lambda) CE(y_pi).
    """
    return pairs.mix(context.task.soft(batch.y, context.num_classes))


def place(
    model: nn.Module, stages: Iterable[int], layer: Callable[[int], nn.Module]
) -> nn.Module:
    """Insert ``layer(number)`` directly after each of ``stages``; return the model.

    Raises ValueError for a stage that the model does not have, and for a frozen stage,
    which stays in evaluation mode, where such layers do nothing.
    """
    for number in stage_numbers(model, stages) if stages else ():
        insert(model, number, NAME, added := layer(number), first=True)
        if any(module is added for module in frozen_modules(model)):
            raise ValueError(
                f"expected a trained stage for an augmentation, stage {number} is "
                "frozen; choose stages that are trained"
            )
    return model


def pair(model: nn.Module, stage: int, pairs: Pairs | None) -> None:
    """Set the pairs that the layer after ``stage`` mixes; None mixes nothing."""
    layer: PairLayer = model.stages[stage - 1].added.get_submodule(NAME)
    layer.pairs = pairs
