"""FedGCR: prompts for each type of picture, and weights for groups that fall behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..core.checks import expect, expect_not_negative
from ..core.messages import Server, Tensors
from ..federation.samples import Batch
from ..models.prompted_vit import Prompts, TypePrompts
from ..training.local import ClientContext
from .fedgr import FedGR
from .shared.grouping import centres, contrast, groups_of


@dataclass(frozen=True)
class FedGCR(FedGR):
    """FedGR with group customisation (FedGC): prompts that depend on the picture.

    GC-Net turns a picture's frozen features into h, which moves its prompts. Clients
    are grouped by their mean h; two contrastive losses draw h to the centre of the
    client's group, and features to those of the received model, away from what the
    client had at the end of its last visit. Without such a past, as in round 1, or
    without a group, these losses are left out.

    ``reweight=False`` is FedGC, ``customise=False`` FedGR of the same ``init``, and
    both VPT. We follow the paper, but for cosines instead of dot products, which
    overflow: so does the code. It also takes h from the received model, which is one
    GC-Net for all; in the paper each client's is its own by then, and groups follow
    the clients' training as much as their pictures.

    Source: Cheng et al., AAAI 2024; code at celinezheng/fedgcr c59d480.
    """

    init: str = "normal"
    customise: bool = True  # False: the same prompts for all pictures, as in FedGR
    gc_weight: float = 0.5  # lambda1, ≥ 0; 0 leaves it out
    ra_weight: float = 0.1  # lambda2, ≥ 0; 0 leaves it out
    temperature: float = 0.5  # tau of both, ≥ 0.001
    group_early: bool = False  # True: by the received model's h, as in the code

    def __post_init__(self) -> None:
        super().__post_init__()
        is_steered = self.num_prompts > 0 or not self.customise
        expect(self, "num_prompts", "≥ 1 where they are customised", is_steered)
        expect_not_negative(self, "gc_weight", "ra_weight")
        is_warm = 1e-3 <= self.temperature < math.inf
        expect(self, "temperature", "≥ 0.001 and finite", is_warm)

    @property
    def kind(self) -> type[Prompts]:
        """Of prompts."""
        return TypePrompts if self.customise else Prompts

    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """The centres (T', D), and which of them is the client's, int64 (1,)."""
        memory = server.memory
        if not (memory and self.customise and self.gc_weight):
            return {}
        is_known = client_id in memory["clients"]
        own = {"group": groups_of(memory, [client_id])} if is_known else {}
        return {"centres": centres(memory)} | own

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """L_k as FedGR says it, from z_0, which serves the loss again."""
        context.cache.pop("received", None)
        context.cache.pop("previous", None)
        if not (self.reweight and self.customise):
            return super().before_training(model, context)
        output = model.head(self.second_pass("received", model, context))
        losses = context.task.losses(output, context.client.train.targets)
        return {"loss": losses.detach().double().mean()}

    def second_pass(
        self, when: str, model, context: ClientContext, batch=None
    ) -> Tensor:
        """Features z_0 by the prompts as "received", or z_prev by the "previous".

        ``batch``: None for all of the client's pictures.
        """
        told = context.received.weights if when == "received" else context.memory
        e = partial(self.first_pass, model, context)
        return context.kept(when, lambda b: model.steered_by(told, b.x, e(b)), batch)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE + lambda1 · GC + lambda2 · RA."""
        if not self.customise:
            return super().loss(model, batch, context)
        told, memory, tau = context.received.shared, context.memory, self.temperature
        h = model.prompts.customise(self.first_pass(model, context, batch))
        z = model.steered(batch.x, model.prompts.moved(h))
        parts = {"task_loss": context.task.loss(model.head(z), batch.y)}
        if self.gc_weight and "group" in told and "representation" in memory:
            # H_i among h_prev, H_1, …, H_T'
            known = torch.cat([memory["representation"][None], told["centres"]])
            parts["gc"] = self.gc_weight * contrast(h, known, 1 + told["group"], tau)
        if self.ra_weight and "representation" in memory:
            z_0 = self.second_pass("received", model, context, batch)
            z_prev = self.second_pass("previous", model, context, batch)
            known, first = torch.stack([z_0, z_prev], 1), batch.index.new_zeros(1)
            parts["ra"] = self.ra_weight * contrast(z, known, first, tau)
        for name, part in parts.items():
            context.log(name, part)
        return sum(parts.values())

    def traits(self, model: nn.Module, context: ClientContext) -> Tensor:
        """h, or without GC-Net the frozen features."""
        e = super().traits(model, context)
        if not self.customise:
            return e
        return model.customised(e, context.received.weights if self.group_early else {})

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """As FedGR; the representation and the prompts as they are now are kept."""
        said = super().after_training(model, context)
        if self.customise:
            context.memory |= said | dict(model.prompts.named_parameters("prompts"))
        return said
