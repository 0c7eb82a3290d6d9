"""Prompts in a frozen vision transformer, for VPT, FedGR and FedGCR.

``method`` stands for any of them: it has the fields ``num_prompts``, ``deep``, ``init``
and ``prompt_lr``.
"""

from __future__ import annotations

from torch import Tensor, nn

from ...federation.samples import Batch
from ...models.prompted_vit import PromptedViT, Prompts
from ...training.context import ClientContext
from ...training.settings import LocalTraining, build_optimiser


def add_prompts(method, model: nn.Module, kind: type[Prompts] = Prompts) -> nn.Module:
    """Insert the method's prompts; ValueError for a network without a frozen ViT."""
    if not isinstance(model, PromptedViT):
        raise ValueError(
            f"{method.label} trains prompts of a frozen vision transformer, found "
            f"{type(model).__name__}; use models.tiny_vit or models.deit_tiny"
        )
    return model.add_prompts(method.num_prompts, method.deep, method.init, kind)


def prompt_optimiser(method, named_params, training: LocalTraining):
    """The training's optimiser; prompts may have their own learning rate."""
    rate = method.prompt_lr or training.lr
    return build_optimiser(named_params, training, {"prompts.tokens": rate})


def frozen_features(
    model: nn.Module, context: ClientContext, batch: Batch | None = None
) -> Tensor:
    """Features e of the frozen transformer without prompts, computed once per client.

    batch: rows to return, (B, D); None returns those of all training images, (N, D).
    """
    return context.kept("first pass", lambda b: model.look(b.x), batch)
