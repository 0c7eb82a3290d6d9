"""SCAFFOLD: control variates correct the drift of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors
from ..federation.samples import Batch
from ..training.context import ClientContext
from ..training.settings import LocalTraining
from .fedavg import FedAvg


@dataclass(frozen=True)
class SCAFFOLD(FedAvg):
    """FedAvg whose clients add c - c_k, all clients' mean gradient less their own.

    The server sends c with the weights, and clients upload how their c_k changed, so
    messages are twice as long in both directions. c and all c_k start at 0; c_k stays
    on the client. Option II: c_k is the mean gradient of the client's last steps. Only
    for plain SGD can it be computed from the change of the weights, so other optimisers
    and momentum are refused. The server's step size is 1.

    Source: Karimireddy et al., ICML 2020, Algorithm 1, option II.
    """

    weighting: str = "equal"  # as in Algorithm 1
    correction: float = setting(1.0, at_least=0, at_most=1)  # of c - c_k; 0: FedAvg

    stackable: ClassVar[bool] = False

    def check_training(self, training: LocalTraining) -> None:
        """Raise ValueError unless the corrected steps are those of plain SGD."""
        if self.correction and (training.optimiser != "sgd" or training.momentum):
            raise ValueError(
                "SCAFFOLD reads the mean gradient from the steps of plain SGD, found "
                f"optimiser={training.optimiser!r}, momentum={training.momentum}; use "
                "LocalTraining(lr=…, optimiser='sgd', momentum=0)"
            )

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """F_k(w) + <c - c_k, w>: the gradient of F_k, plus c - c_k."""
        task_loss = super().loss(model, batch, context)
        c, c_k = context.received.shared, context.memory
        drift = sum(
            ((c.get(name, 0.0) - c_k.get(name, 0.0)) * w).sum()
            for name, w in received_parameters(model, context).items()
        )
        context.log("task_loss", task_loss)
        return task_loss + self.correction * drift

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The change of c_k, to the mean gradient of the client's K steps.

        That is c_k - c + (w_t - w) / (K lr) for a correction of 1. Steps of length 0
        do not show a gradient and change nothing.
        """
        start, c = context.received.weights, context.received.shared
        c_k, params = context.memory, received_parameters(model, context)
        path = len(context.logged["loss"]) * context.training.lr
        if not path:
            return {name: torch.zeros_like(w) for name, w in params.items()}
        changes = {
            name: (start[name] - w.detach()) / path
            - c.get(name, 0.0)
            + (1 - self.correction) * (c.get(name, 0.0) - c_k.get(name, 0.0))
            for name, w in params.items()
        }
        c_k |= {name: c_k.get(name, 0.0) + change for name, change in changes.items()}
        return changes

    def upload_spec(self, model: nn.Module) -> Tensors:
        """A change for every trained parameter, of its shape."""
        return {n: p for n, p in model.named_parameters() if p.requires_grad}

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Average the weights, and add Σ Δc_k / N to c, for N clients in the run."""
        shared = {
            name: server.shared.get(name, 0.0)
            + sum(m.upload[name] for m in messages) / server.num_clients
            for name in messages[0].upload
        }
        return replace(super().aggregate(server, messages), shared=shared)


def received_parameters(model: nn.Module, context: ClientContext) -> Tensors:
    """The parameters that the client received and trains."""
    start = context.received.weights
    return {name: w for name, w in model.named_parameters() if name in start}
