"""FedDG-GA: more weight for clients whose loss rises most by averaging."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors
from ..federation.federation import Federation
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.received_loss import numbers


@dataclass(frozen=True)
class FedDGGA(FedAvg):
    """FedAvg whose aggregation weights follow the clients' generalisation gaps.

    A client measures two losses on its validation samples: of the averaged model when
    it arrives, and of its own model after training. Its gap is the first loss of one
    round minus the second loss of the last round in which it participated. This avoids
    sending the averaged model twice; if all clients take part in every round, as in the
    paper, and ``rounds`` is set, the weights equal the paper's. In a cohort only
    clients that participated before change their weight, and the cohort's weights are
    normalised to 1; gaps then also grow with the rounds missed.

    The official code does not centre the gaps (``centred=False``) and has a third of
    the step; FISC's version uses training losses. By default the step is constant. In
    the paper it falls as 1 - r / R over rounds r = 0, 1, … of R: set ``rounds`` to R.

    Source: Zhang et al., CVPR 2023; code at 8d03a24.
    """

    weighting: str = setting("equal", one_of=("equal",))  # before gaps are known
    step: float = setting(0.2, at_least=0)  # d, largest change of a weight; 0: none
    rounds: int | None = setting(None, at_least=1)  # R of the step; None: constant
    centred: bool = True  # False: gaps are not compared with their mean

    label: ClassVar[str] = "FedDG-GA"
    stackable: ClassVar[bool] = True
    val_share: ClassVar[float] = 0.2

    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError unless every client has validation samples."""
        super().check_federation(federation)
        if len(without := np.flatnonzero(federation.num_val == 0)):
            raise ValueError(
                "FedDG-GA measures gaps on validation samples of every client, found "
                f"{len(without)} clients with none, the first {without[:5]}; "
                "Federation.build(…, val=0.2) holds out a fifth of each, rounded down"
            )

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """Equal weights, (K,); no client's own loss is known yet."""
        num = max(uploads) + 1
        zeros = torch.zeros(num, dtype=torch.float64)
        known = torch.zeros(num, dtype=torch.bool)
        return {"weights": zeros + 1 / num, "own_loss": zeros, "is_known": known}

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The loss of the averaged model on the client's validation samples."""
        return {"received_loss": context.mean_loss(model, context.client.val)}

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The loss of the client's own model on the same samples."""
        return {"own_loss": context.mean_loss(model, context.client.val)}

    def upload_spec(self, model: nn.Module) -> Tensors:
        """Two losses, float64."""
        loss = next(model.parameters()).new_zeros((), dtype=torch.float64)
        return {"received_loss": loss, "own_loss": loss}

    def adjust(
        self, weights: Tensor, clients: Tensor, gaps: Tensor, step: float
    ) -> Tensor:
        """The weights (K,) after gaps (m,) in loss of ``clients``, (m,)."""
        # a' = a + d (G - mean G) / max |G - mean G|, then a = max(a', 0) / sum
        change = gaps - gaps.mean() if self.centred else gaps
        most, noise = change.abs().max(), 1e-12 * gaps.abs().max()
        if most <= noise:  # gaps differ by rounding only
            return weights
        return _shares(weights.index_add(0, clients, step * change / most).clamp(min=0))

    def _adjusted(self, server: Server, messages: list[Message]) -> Tensor:
        """The weights (K,) of all clients after this round's gaps."""
        memory = server.memory
        back = [m for m in messages if memory["is_known"][m.client]]
        if not back:
            return memory["weights"]
        clients = torch.tensor([m.client for m in back])
        past = server.round - 1  # rounds whose gaps have been used
        share = max(0.0, 1 - past / self.rounds) if self.rounds else 1.0
        gaps = numbers(back, "received_loss") - memory["own_loss"][clients]
        return self.adjust(memory["weights"], clients, gaps, self.step * share)

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """The weights of this round's clients, normalised to 1."""
        return _shares(self._adjusted(server, messages)[[m.client for m in messages]])

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """FedAvg with these weights; record them and the losses of own models."""
        memory, clients = server.memory, [m.client for m in messages]
        own, known = memory["own_loss"].clone(), memory["is_known"].clone()
        own[clients] = numbers(messages, "own_loss")
        known[clients] = True
        weights = self._adjusted(server, messages)
        memory = {"weights": weights, "own_loss": own, "is_known": known}
        return replace(super().aggregate(server, messages), memory=memory)


def _shares(weights: Tensor) -> Tensor:
    """Weights ≥ 0 that sum to 1; equal ones where all are 0."""
    total = weights.sum()
    return weights / total if total > 0 else torch.full_like(weights, 1 / len(weights))
