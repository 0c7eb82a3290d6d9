"""FedGR: clients, and groups of similar clients, count more when their loss is high."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from ..core.messages import Tensors
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.grouping import GroupReweighting, class_balanced_mean
from .shared.prompting import Prompted, frozen_features


@dataclass(frozen=True)
class FedGR(GroupReweighting, Prompted, FedAvg):
    """VPT with the group reweighting of FedGCR.

    A client uploads its loss under the received model and the mean of its frozen
    features, by which the server groups clients; the last upload represents a client
    that does not participate. With ``reweight=False`` or ``q=-1`` it is VPT.

    We follow the paper; weights are divided by their sum, as in the code. ``FedGCR``
    lists the other differences of the code.

    Source: Cheng et al., AAAI 2024, section "Group reweighting".
    """

    needs_classes: ClassVar[bool] = True  # the representation is balanced by class

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The representation: class-balanced mean of the frozen features, (D,)."""
        if not self.reweight:
            return {}
        features = frozen_features(model, context)
        return {"representation": class_balanced_mean(features, context)}
