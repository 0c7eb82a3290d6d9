"""AFL: minimise the loss on the worst mixture of clients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, expect_count, expect_names
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.received_loss import ReceivedLoss, numbers


def onto_simplex(y: Tensor) -> Tensor:
    """The point of the simplex {λ ≥ 0, Σ λ = 1} nearest to y (K,), in float64."""
    y = y.double() - y.max()  # the projection does not depend on a constant
    u = y.sort(descending=True).values
    # nu_j = (1 - sum_{i≤j} u_i) / j,  rho = max {j: u_j + nu_j > 0}
    nu = (1 - u.cumsum(0)) / torch.arange(1, len(u) + 1)
    rho = int((u + nu > 0).nonzero().max())
    return (y + nu[rho]).clamp(min=0)


@dataclass(frozen=True)
class AFL(ReceivedLoss, FedAvg):
    """FedAvg with weights λ that ascend towards the clients with high loss.

    The server keeps λ for all clients of the run, initially by ``weighting``: equal, or
    the shares of examples, which every client uploads once (8 bytes). A client that
    does not participate counts as one with loss 0, so its λ falls. Messages are
    averaged with λ from before this round's losses, normalised over the participants;
    if all of it is 0, by ``weighting``.

    The step depends on the scale of the loss: with losses near 2.3 and
    ``mixture_lr=0.1``, λ concentrates on one client within a few rounds. The theory
    holds for the average of all rounds' weights; we return the last.

    ``AFL(weighting="examples", memoryless=True)`` is the baseline of FedGCR's code.

    Source: Mohri, Sivek, Suresh, ICML 2019, section 4. The paper takes one stochastic
    step where clients here train locally.
    """

    weighting: str = "equal"  # initial λ: "equal" or "examples"
    mixture_lr: float = setting(0.1, at_least=0)  # step of λ; 0 gives FedAvg
    memoryless: bool = False  # True: each round's step begins at the initial λ

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's number of examples."""
        return {"num_examples": torch.tensor(len(context.client.train))}

    def check_setup(self, tensors: Tensors, model: nn.Module, most: int) -> None:
        """Raise ValueError unless the client can have so many examples."""
        expect_names(tensors, "num_examples")
        expect_count("num_examples", tensors["num_examples"].item(), most)

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """The clients' numbers, in order, and the initial λ, float64 (K,)."""
        each = [Message(i, int(u["num_examples"]), {}) for i, u in uploads.items()]
        clients = torch.tensor([message.client for message in each])
        return {
            "clients": clients,
            "lambda": super().aggregation_weights(Server(0, {}), each),
        }

    def mixture(self, server: Server, messages: list[Message]) -> tuple[Tensor, Tensor]:
        """λ after this round's losses, float64 (K,), and the participants' indices."""
        here = torch.tensor([message.client for message in messages])
        place = torch.searchsorted(server.memory["clients"], here)
        past = server.memory["lambda"]
        losses = torch.zeros_like(past)
        losses[place] = numbers(messages, "loss")
        # λ <- Π(λ + η L); subtracting a constant avoids overflow
        return onto_simplex(past + self.mixture_lr * (losses - losses.max())), place

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """λ_k over the sum of the participants' λ, float64 (m,)."""
        after, place = self.mixture(server, messages)
        mine = (after if self.memoryless else server.memory["lambda"])[place]
        if not mine.any():
            return super().aggregation_weights(server, messages)
        return mine / mine.sum()

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Σ λ_k w_k; the server stores the new λ unless it is memoryless."""
        after = super().aggregate(server, messages)
        if self.memoryless:
            return after
        mixture, _ = self.mixture(server, messages)
        return replace(after, memory={**server.memory, "lambda": mixture})
