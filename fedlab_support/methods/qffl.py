"""q-FFL: weight clients by a power of their loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.received_loss import ReceivedLoss, numbers


@dataclass(frozen=True)
class QFFL(ReceivedLoss, FedAvg):
    """FedAvg that weights clients by the q-th power of their loss and shortens steps.

    With L = 1/lr, g_k = L (w - w_k) and h_k = q F_k^(q-1) ||g_k||² + L F_k^q, q-FedAvg
    steps by -Σ F_k^q g_k / Σ h_k. Equivalently, it moves from w towards the mean with
    weights a_k ∝ F_k^q by the share Σ L F_k^q / Σ h_k. Buffers become that mean.
    Participants count equally, as in the paper, which samples them by size;
    ``weighting="examples"`` is for rounds with all clients.

    With an adaptive optimiser, as in FedGCR's experiments, g_k is not a gradient; L is
    still 1/lr. FedGCR's code applies the power to h only and adds norms of single
    tensors; we follow the paper.

    Source: Li et al., ICLR 2020, Algorithm 2.
    """

    weighting: str = "equal"  # "equal" or "examples"
    q: float = setting(1.0, at_least=0)  # fairness; 0 gives FedAvg
    epsilon: float = setting(1e-10, above=0)  # added to losses; larger helps for q < 1

    label: ClassVar[str] = "q-FFL"

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """||w - w_k|| / √lr over all parameters, which is ||g_k|| / √L; 8 bytes."""
        start, lr = context.received.weights, context.training.lr
        steps = [p - start[n] for n, p in model.named_parameters() if n in start]
        square = sum(step.detach().double().square().sum() for step in steps)
        return {"walk": (square / (lr or 1.0)).sqrt()}  # with lr 0 the distance is 0

    def upload_spec(self, model: nn.Module) -> Tensors:
        """Two numbers: the loss, and the distance over the root of lr."""
        form = super().upload_spec(model)
        return form | {"walk": form["loss"]}

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """a_k = p_k F_k^q / Σ_j p_j F_j^q, float64 (m,)."""
        log = (numbers(messages, "loss") + self.epsilon).log()
        # p_k (F_k / F_max)^q, which cannot overflow
        shares = super().aggregation_weights(server, messages)
        pull = shares * (self.q * (log - log.max())).exp()
        return pull / pull.sum()

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Move from w towards the mean by a share in 0…1."""
        losses = numbers(messages, "loss") + self.epsilon
        a, walk = self.aggregation_weights(server, messages), numbers(messages, "walk")
        # Σ p_k L F_k^q / Σ p_k h_k = 1 / (1 + Σ q a_k ||g_k||² / (L F_k))
        slowing = (self.q * a / losses).sqrt() * walk
        share = float(1 / (1 + slowing.square().sum()))
        old, after = server.weights, super().aggregate(server, messages)
        mean = after.weights
        moved = {n: torch.lerp(old[n], mean[n], share) for n in server.parameters}
        return replace(after, weights=mean | moved)
