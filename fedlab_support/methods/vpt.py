"""VPT: train only a few input tokens and the head of a frozen transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from ..core.checks import setting
from ..models.prompted_vit import INITS
from ..training.optimisers import FusedSGD
from ..training.settings import LocalTraining
from .fedavg import FedAvg
from .shared.prompting import add_prompts, prompt_optimiser


@dataclass(frozen=True)
class VPT(FedAvg):
    """FedAvg of prompts and head on a frozen vision transformer.

    FedGCR and the methods that it is compared with train the same network; other
    methods get it from their model factory, as in ``partial(tiny_vit, prompts=4)``.
    Apart from the network it is FedAvg; ``num_prompts=0`` is linear probing.

    The paper tunes SGD's learning rate; FedGCR's baselines train with
    ``LocalTraining(optimiser="adamw", lr=1e-3, weight_decay=0.01)``.

    Source: Jia et al., ECCV 2022.
    """

    num_prompts: int = setting(4, at_least=0)  # n; 0 is FedAvg of the head alone
    deep: bool = False  # True: new prompts for each layer
    init: str = setting("vpt", one_of=INITS)  # uniform as in VPT; FedGCR has "normal"
    prompt_lr: float | None = setting(None, above=0)  # None: that of the training

    stackable: ClassVar[bool] = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """Add prompts to the transformer; ValueError for another network."""
        return add_prompts(self, model)

    def optimiser(self, named_params, training: LocalTraining) -> FusedSGD | Optimizer:
        """The training's optimiser, with the prompts' learning rate if it is set."""
        return prompt_optimiser(self, named_params, training)
