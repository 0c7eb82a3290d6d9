"""TERM: tilt the objective towards clients with high loss, or away from them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.checks import setting
from ..core.messages import Message, Server
from .fedavg import FedAvg
from .shared.received_loss import ReceivedLoss, numbers


@dataclass(frozen=True)
class TERM(ReceivedLoss, FedAvg):
    """FedAvg on the objective (1/t) log Σ p_k exp(t F_k) instead of Σ p_k F_k.

    Its gradient in F gives the weights: a softmax over the round's participants, with
    p_k their shares by ``weighting``. A negative tilt reduces the weight of clients
    with high loss. FedGCR's code has ``tilt=0.01``, which is practically FedAvg.

    The official code estimates the normaliser over rounds, divides by the number of
    participants twice and weights them equally; we follow the equation.

    Source: Li, Beirami, Sanjabi, Smith, ICLR 2021, equation 2 and section 4.
    """

    tilt: float = setting(0.1)  # t; 0 gives FedAvg of the same weighting

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """p_k exp(t F_k) / Σ_j p_j exp(t F_j), float64 (m,)."""
        shares = super().aggregation_weights(server, messages)
        losses = numbers(messages, "loss")
        # t (F_k - F_max) ≤ 0, or with F_min if t < 0, so nothing overflows
        far = losses.max() if self.tilt > 0 else losses.min()
        return (shares.log() + self.tilt * (losses - far)).softmax(0)
