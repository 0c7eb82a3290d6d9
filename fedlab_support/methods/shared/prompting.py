"""Prompts in a frozen vision transformer, for VPT, FedGR and FedGCR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ...core.checks import setting
from ...federation.samples import Batch
from ...models.prompted_vit import PromptedViT, Prompts
from ...training.context import ClientContext
from ...training.optimisers import Fused
from ...training.settings import LocalTraining, build_optimiser


@dataclass(frozen=True)
class Prompted:
    """A mix-in: the method trains prompts and the head of a frozen transformer."""

    num_prompts: int = setting(4, at_least=0)  # n; 0 trains the head alone
    deep: bool = False  # True: new prompts for each layer
    init: str = setting(  # uniform as in VPT; FedGCR has "normal"
        "vpt", one_of=("vpt", "normal")
    )
    prompt_lr: float | None = setting(  # in all rounds; None: that of the training
        None, above=0
    )

    stackable: ClassVar[bool] = False
    kind: ClassVar[type[Prompts]] = Prompts

    def adapt(self, model: nn.Module) -> nn.Module:
        """Add prompts to the transformer; ValueError for another network."""
        if not isinstance(model, PromptedViT):
            raise ValueError(
                f"{self.label} trains prompts of a frozen vision transformer, found "
                f"{type(model).__name__}; use models.tiny_vit or models.deit_tiny"
            )
        return model.add_prompts(self.num_prompts, self.deep, self.init, self.kind)

    def optimiser(self, named_params, training: LocalTraining) -> Fused:
        """The training's optimiser; prompts may have their own learning rate."""
        rate = self.prompt_lr or training.lr
        return build_optimiser(named_params, training, {"prompts.tokens": rate})


def frozen_features(
    model: nn.Module, context: ClientContext, batch: Batch | None = None
) -> Tensor:
    """Features e of the frozen transformer without prompts, computed once per client.

    batch: rows to return, (B, D); None returns those of all training images, (N, D).
    """
    return context.kept("first pass", lambda b: model.look(b.x), batch)
