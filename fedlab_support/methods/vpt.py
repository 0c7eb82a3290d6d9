"""VPT: of a frozen transformer only a few input tokens and the head are learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.optim import Optimizer

from ..core.checks import setting
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

    num_prompts: int = setting(4, at_least=0)  # n; 0 is FedAvg of the head alone
    deep: bool = False  # True: new prompts for each layer
    init: str = setting(  # uniform, as VPT draws them; or "normal", as FedGCR
        "vpt", one_of=INITS
    )
    prompt_lr: float | None = setting(  # of the prompts; None: that of the training
        None, above=0
    )

    stackable: ClassVar[bool] = False
    kind: ClassVar[type[Prompts]] = Prompts

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
