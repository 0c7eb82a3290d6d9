"""VPT: of a frozen transformer only a few input tokens and the head are learned."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from ..core.checks import expect, expect_count
from ..models.prompted_vit import INITS, PromptedViT, Prompts
from ..training.local import LocalTraining, build_optimiser
from ..training.optimisers import FusedSGD
from .fedavg import FedAvg


@dataclass(frozen=True)
class VPT(FedAvg):
    """FedAvg of prompts and head on a frozen vision transformer.

    The base of FedGCR and of all it is compared with: another method gets the same
    network from its factory, as in ``partial(tiny_vit, prompts=4)``. There, and here
    with ``num_prompts=0``, all else is FedAvg; without prompts it is linear probing.

    The paper tunes SGD's learning rate; FedGCR's baselines train with
    ``LocalTraining(optimiser="adamw", lr=1e-3, weight_decay=0.01)``.

    Source: Jia et al., ECCV 2022.
    """

    num_prompts: int = 4  # n, ≥ 0; 0 is FedAvg of the head alone
    deep: bool = False  # True: new prompts for each layer
    init: str = "vpt"  # uniform, as VPT draws them; or "normal", as FedGCR
    prompt_lr: float | None = None  # of the prompts, > 0; None: that of the training

    stackable: ClassVar[bool] = False
    kind: ClassVar[type[Prompts]] = Prompts

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_count(self, 0, "num_prompts")
        expect(self, "init", f"one of {INITS}", self.init in INITS)
        is_rate = self.prompt_lr is None or 0 < self.prompt_lr < math.inf
        expect(self, "prompt_lr", "None, or > 0 and finite", is_rate)

    def adapt(self, model: nn.Module) -> nn.Module:
        """Put prompts into the transformer; ValueError for another network."""
        if not isinstance(model, PromptedViT):
            raise ValueError(
                f"{self.label} steers a frozen vision transformer, found "
                f"{type(model).__name__}; take models.tiny_vit or models.deit_tiny"
            )
        return model.add_prompts(self.num_prompts, self.deep, self.init, self.kind)

    def optimiser(self, named_params, training: LocalTraining) -> FusedSGD | Optimizer:
        """The usual one, with a learning rate of the prompts' own if there is one."""
        rate = self.prompt_lr or training.lr
        return build_optimiser(named_params, training, {"prompts.tokens": rate})
