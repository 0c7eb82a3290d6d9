"""FedProx: a proximal term that ties local weights to the received ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local objective penalises the distance from the received weights.

    We follow the paper, which squares the distance. The code of several later papers
    (FedBN, FedFA) uses the norm instead, a pull of constant strength:
    ``penalty="norm"``. That code skips the penalty at the first batch of every epoch;
    here it is skipped only where the distance is 0, which is the same with one epoch.

    Source: Li et al., MLSys 2020, equation 2.
    """

    mu: float = setting(0.01, at_least=0)  # strength; 0 gives FedAvg
    penalty: str = setting("squared", one_of=("squared", "norm"))  # of the distance

    stackable: ClassVar[bool] = True

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """F_k(w) + mu/2 · ||w - w_t||², over trained parameters that were received."""
        task_loss = super().loss(model, batch, context)
        anchor = context.received.weights
        distance = sum(
            (parameter - anchor[name]).square().sum()
            for name, parameter in model.named_parameters()
            if name in anchor
        )
        if self.penalty == "norm":
            # the root has no gradient at 0
            distance = torch.where(distance > 0, distance, 1).sqrt() * (distance > 0)
        context.log("task_loss", task_loss)
        return task_loss + self.mu / 2 * distance
