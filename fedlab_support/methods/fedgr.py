"""FedGR: clients, and groups of similar clients, count more when their loss is high."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from ..core.checks import setting
from ..core.messages import Tensors
from ..models.prompted_vit import INITS
from ..training.context import ClientContext
from ..training.optimisers import FusedSGD
from ..training.settings import LocalTraining
from .fedavg import FedAvg
from .shared.grouping import ALGORITHMS, GroupReweighting, class_balanced_mean
from .shared.prompting import add_prompts, frozen_features, prompt_optimiser


@dataclass(frozen=True)
class FedGR(GroupReweighting, FedAvg):
    """VPT with the group reweighting of FedGCR.

    A client uploads its loss under the received model and the mean of its frozen
    features, by which the server groups clients. A client that does not take part is
    represented by its last upload. With ``reweight=False`` or ``q=-1`` it is VPT.

    We follow the paper; the weights are divided by their sum, as in the code. The code
    differs in three more points: losses are those of the previous round's average,
    quantised to 100 / floor(100 / L) and 1 in round 1; a group's loss weights its
    clients by data; a client's representation is the mean over three batches.

    Source: Cheng et al., AAAI 2024, section "Group reweighting".
    """

    num_prompts: int = setting(4, at_least=0)  # n; 0 trains the head alone
    deep: bool = False  # True: new prompts for each layer
    init: str = setting("vpt", one_of=INITS)  # uniform as in VPT; FedGCR has "normal"
    prompt_lr: float | None = setting(None, above=0)  # None: that of the training
    reweight: bool = True  # False: weights as in FedAvg
    num_groups: int = setting(5, at_least=1)  # T'
    clustering: str = setting("gmm", one_of=ALGORITHMS)  # of the representations
    q: float = setting(1.0, at_least=-1)  # power of the loss - 1; -1 is FedAvg
    delta: float = setting(0.5, at_least=0, at_most=1)  # limit of beta; 0: no groups
    gamma: float = setting(0.5, at_least=0, at_most=1)  # 1: beta stays 0; code: 0.9
    rounds_ahead: int = setting(0, at_least=0)  # of beta's schedule; 1 as in the code

    stackable: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True  # the representation is balanced by class

    def adapt(self, model: nn.Module) -> nn.Module:
        """Put prompts into the transformer; ValueError for another network."""
        return add_prompts(self, model)

    def optimiser(self, named_params, training: LocalTraining) -> FusedSGD | Optimizer:
        """The usual optimiser, with the prompts' own learning rate if there is one."""
        return prompt_optimiser(self, named_params, training)

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The representation: class-balanced mean of the frozen features, (D,)."""
        if not self.reweight:
            return {}
        features = frozen_features(model, context)
        return {"representation": class_balanced_mean(features, context)}
