"""FedGCR: prompts that adapt to each type of image, and weights for lagging groups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import expect, setting
from ..core.messages import Server, Tensors
from ..federation.samples import Batch
from ..models.prompted_vit import Prompts, TypePrompts
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.grouping import (
    GroupReweighting,
    centres,
    class_balanced_mean,
    contrast,
    groups_of,
)
from .shared.prompting import Prompted, frozen_features


@dataclass(frozen=True)
class FedGCR(GroupReweighting, Prompted, FedAvg):
    """Group customisation (FedGC) and group reweighting (FedGR) of prompts.

    GC-Net maps an image's frozen features to h, which shifts its prompts. The server
    groups clients by their mean h. Two contrastive losses pull h towards the centre of
    the client's group, and features towards those of the received model and away from
    those of the client's model after its last visit. On a first visit both are left
    out, and without a group the first is. ``reweight=False`` is FedGC,
    ``customise=False`` is FedGR with the same ``init``, and both together are VPT.

    We follow the paper, but with cosines, as in the code; dot products overflow. The
    code computes h with the received model, so that one GC-Net serves all clients
    (``group_early=True``); in the paper each client's GC-Net has been trained by then.

    The code further differs as follows. The second loss has no temperature. Both losses
    are scaled by 0.1, the first also by a factor that rises from 0.5 to 1, the second
    by 0.5. A representation is the mean over three batches. Losses are those of the
    previous round's average, quantised to 100 / floor(100 / L) and 1 in round 1; in a
    group they are weighted by data. h is tiled so that prompts receive the h of other
    images, round 1 adds the loss of the prompts without h, and z_0 is one round old.

    Source: Cheng et al., AAAI 2024; code at celinezheng/fedgcr c59d480.
    """

    init: str = "normal"  # start of the prompts; "vpt": larger and uniform, as in VPT
    customise: bool = True  # False: the same prompts for all images, as in FedGR
    gc_weight: float = setting(0.5, at_least=0)  # lambda1, of h's contrast; 0: none
    ra_weight: float = setting(0.1, at_least=0)  # lambda2, of z's contrast; 0: none
    temperature: float = setting(0.5, at_least=1e-3)  # tau of both contrastive losses
    group_early: bool = False  # True: group by the received model's h, as in the code

    needs_classes: ClassVar[bool] = True  # the representation is balanced by class

    def __post_init__(self) -> None:
        super().__post_init__()
        can_shift = self.num_prompts > 0 or not self.customise
        expect(self, "num_prompts", "≥ 1 where they are customised", can_shift)

    @property
    def groups_clients(self) -> bool:
        """Whether the server groups clients: for the weights, or for the prompts."""
        return self.reweight or self.customise

    @property
    def kind(self) -> type[Prompts]:
        """The class of the prompts, which has the GC-Net."""
        return TypePrompts if self.customise else Prompts

    # ---- down -----------------------------------------------------------------------
    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """The centres (T', D), and the index of the client's, int64 (1,)."""
        memory = server.memory
        if not (memory and self.customise and self.gc_weight):
            return {}
        is_known = client_id in memory["clients"]
        own = {"group": groups_of(memory, [client_id])} if is_known else {}
        return {"centres": centres(memory)} | own

    # ---- on the client --------------------------------------------------------------
    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """L_k of the received model, from features z_0 that the loss uses again."""
        context.cache.pop("received", None)
        context.cache.pop("previous", None)
        if not (self.reweight and self.customise):
            return super().before_training(model, context)
        output = model.head(self.second_pass("received", model, context))
        losses = context.task.losses(output, context.client.train.targets)
        return {"loss": losses.detach().double().mean()}

    def second_pass(
        self, prompts: str, model, context: ClientContext, batch: Batch | None = None
    ) -> Tensor:
        """Features z_0 with the "received" prompts, or z_prev with the "previous".

        batch: rows to return; None returns those of all training images.
        """
        is_new = prompts == "received"
        weights = context.received.weights if is_new else context.memory
        e = partial(frozen_features, model, context)
        return context.kept(
            prompts, lambda b: model.steered_by(weights, b.x, e(b)), batch
        )

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE + lambda1 · GC + lambda2 · RA."""
        if not self.customise:
            return super().loss(model, batch, context)
        shared, memory = context.received.shared, context.memory
        tau, has_past = self.temperature, "representation" in context.memory
        h = model.prompts.customise(frozen_features(model, context, batch))
        z = model.steered(batch.x, model.prompts.moved(h))
        context.log("prompt_norm", model.prompts.tokens.norm(dim=-1).mean())
        context.log("shift_norm", h.norm(dim=-1).mean())
        parts = {"task_loss": context.task.loss(model.head(z), batch.y)}
        if self.gc_weight and "group" in shared and has_past:
            # H_i among h_prev, H_1, …, H_T'
            known = torch.cat([memory["representation"][None], shared["centres"]])
            parts["gc"] = self.gc_weight * contrast(h, known, 1 + shared["group"], tau)
        if self.ra_weight and has_past:
            z_0 = self.second_pass("received", model, context, batch)
            z_prev = self.second_pass("previous", model, context, batch)
            known, first = torch.stack([z_0, z_prev], 1), batch.index.new_zeros(1)
            parts["ra"] = self.ra_weight * contrast(z, known, first, tau)
        return context.logged_sum(parts)

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The representation: class-balanced mean of h, or of e without GC-Net, (D,).

        The client keeps it, and its prompts as they are now.
        """
        if not self.groups_clients:
            return {}
        features = frozen_features(model, context)
        if self.customise:
            weights = context.received.weights if self.group_early else {}
            features = model.customised(features, weights)
        upload = {"representation": class_balanced_mean(features, context)}
        if self.customise:
            context.memory |= upload | dict(model.prompts.named_parameters("prompts"))
        return upload
