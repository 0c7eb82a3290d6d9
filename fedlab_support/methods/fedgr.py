"""FedGR: clients, and groups of similar clients, count more when they fall behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import expect, expect_count, expect_fractions
from ..core.messages import Message, Server, Tensors
from ..federation.samples import Batch
from ..models.prompted_vit import Prompts
from ..training.local import ClientContext
from .shared.clustering import cluster_means
from .shared.grouping import ALGORITHMS, group_weights, groups_of, regrouped
from .shared.received_loss import ReceivedLoss
from .vpt import VPT


@dataclass(frozen=True)
class FedGR(ReceivedLoss, VPT):
    """VPT with the group reweighting of FedGCR, and the groups that FedGCR builds on.

    A client says the loss of the received model and the mean of its frozen features,
    from which the server finds groups. Absent clients stand for what they said last.
    With ``reweight=False`` or ``q=-1`` it is VPT.

    We follow the paper; the weights are divided by their sum, as in the code. Losses
    are measured in round 1, too.

    Source: Cheng et al., AAAI 2024, section "Group reweighting".
    """

    reweight: bool = True  # False: weights as FedAvg has them
    num_groups: int = 5  # T', ≥ 1
    clustering: str = "gmm"  # or "kmeans", "finch"
    q: float = 1.0  # power of the loss less one, ≥ -1; -1 gives FedAvg's weights
    delta: float = 0.5  # what beta tends to, in [0, 1]; 0: groups do not count
    gamma: float = 0.5  # how slowly, in [0, 1]; 1: it stays 0. The code has 0.9
    rounds_ahead: int = 0  # of beta's schedule, ≥ 0; 1 as in the code

    needs_classes: ClassVar[bool] = True  # which the representation is balanced by

    def __post_init__(self) -> None:
        super().__post_init__()
        expect_count(self, 1, "num_groups")
        expect_count(self, 0, "rounds_ahead")
        is_known = self.clustering in ALGORITHMS
        expect(self, "clustering", f"one of {ALGORITHMS}", is_known)
        expect(self, "q", "≥ -1 and finite", -1 <= self.q < math.inf)
        expect_fractions(self, "delta", "gamma")

    @property
    def needs_groups(self) -> bool:
        """Whether clients say what they are like: for the weights, or for prompts."""
        return self.reweight or self.kind is not Prompts

    def beta(self, round: int) -> float:
        """How much groups count in round r ≥ 1: delta (1 - gamma^(r-1))."""
        return self.delta * (1 - self.gamma ** (round - 1 + self.rounds_ahead))

    def first_pass(
        self, model, context: ClientContext, batch: Batch | None = None
    ) -> Tensor:
        """The frozen features e of a batch, (B, D), or of all the client's pictures."""
        return context.kept("first pass", lambda b: model.look(b.x), batch)

    def traits(self, model: nn.Module, context: ClientContext) -> Tensor:
        """By what a client is grouped, for each of its pictures: (N, D)."""
        return self.first_pass(model, context)

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """L_k of the received model, a float64 scalar."""
        return super().before_training(model, context) if self.reweight else {}

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The mean of the means of the client's classes, (D,)."""
        if not self.needs_groups:
            return {}
        # (4): 1/C_k sum_c 1/|D_kc| sum_{x of c} h_x
        _, y = context.client.train.targets.unique(return_inverse=True)
        return {"representation": cluster_means(self.traits(model, context), y).mean(0)}

    def upload_spec(self, model: nn.Module) -> Tensors:
        """D numbers, and the loss."""
        form = super().upload_spec(model) if self.reweight else {}
        if self.needs_groups:
            form["representation"] = model.head.weight[0].detach()
        return form

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """The loss is a number ≥ 0."""
        super().check_upload({n: v for n, v in tensors.items() if n == "loss"}, model)

    def aggregation_weights(
        self, server: Server, messages: Sequence[Message]
    ) -> Tensor:
        """By the losses of clients and of their groups, which `aggregate` has found."""
        shares = super().aggregation_weights(server, messages)
        if not self.reweight:
            return shares
        groups = groups_of(server.memory, [m.client for m in messages])
        losses = torch.stack([m.upload["loss"] for m in messages])
        beta = self.beta(server.round + 1)
        return group_weights(shares, losses, groups, beta, self.q)

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """Find the groups, then average."""
        if self.needs_groups:
            said = {m.client: m.upload["representation"] for m in messages}
            how = (self.num_groups, self.clustering)
            server = replace(server, memory=regrouped(server.memory, said, *how))
        return super().aggregate(server, messages)

    def server_metrics(self, server: Server, messages: Sequence[Message]) -> Tensors:
        """Each participant's group, and what it counted."""
        if not self.needs_groups:
            return {}
        groups = groups_of(server.memory, [m.client for m in messages])
        return {"group": groups, "weight": self.aggregation_weights(server, messages)}
