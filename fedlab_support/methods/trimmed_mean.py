"""Trimmed mean and median: each weight's average over the clients in the middle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.checks import setting
from ..core.messages import Message, Server
from .fedavg import FedAvg


def middle(server: Server, messages: list[Message], cut: int) -> Server:
    """The server with each entry's mean, without ``cut`` values at either end."""
    weights = dict(server.weights)
    for name, value in server.weights.items():
        if value.is_floating_point():
            rows = torch.stack([m.weights[name] for m in messages]).sort(0).values
            kept = rows[cut : len(rows) - cut].double()
            weights[name] = kept.mean(0).to(value.dtype)
    return replace(server, weights=weights)


@dataclass(frozen=True)
class TrimmedMean(FedAvg):
    """FedAvg without the largest and the smallest values of each entry.

    For every entry of the weights, a fraction ``share`` of the clients' values, rounded
    down, is dropped at either end, and the others count equally. With two malicious
    clients among ten, a share of 0.2 bounds what they can do; ``max_update`` of ``Run``
    only stops extreme updates. Rare but honest values are dropped as well.

    Source: Yin et al., ICML 2018, Definition 2 and Algorithm 1, option II.
    """

    weighting: str = setting("equal", one_of=("equal",))  # all count alike
    share: float = setting(0.1, at_least=0, below=0.5)  # at either end; 0 gives FedAvg

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """W <- the mean of each entry's middle values."""
        return middle(server, messages, int(self.share * len(messages) + 1e-9))


@dataclass(frozen=True)
class FedMedian(FedAvg):
    """FedAvg with the median of each entry: the mean of the one or two in the middle.

    Source: Yin et al., ICML 2018, Definition 1 and Algorithm 1, option I.
    """

    weighting: str = setting("equal", one_of=("equal",))  # all count alike

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """W <- the median of each entry."""
        return middle(server, messages, (len(messages) - 1) // 2)
