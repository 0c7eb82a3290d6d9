"""FedAvgM: momentum on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.checks import setting
from ..core.messages import Message, Server, wide
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """FedAvg with heavy-ball momentum on the server.

    ``momentum=0, server_lr=1`` gives FedAvg. Running statistics and other buffers are
    averaged only: momentum could push a running variance below zero.

    FedFA's code applies a momentum of 0.01 to every entry of the state; here it acts on
    parameters only, as in the paper.

    Source: Hsu, Qi, Brown, arXiv:1909.06335, 2019, section 4.3.
    """

    momentum: float = setting(0.9, at_least=0, below=1)  # beta; 0 gives FedAvg
    server_lr: float = setting(1.0, above=0)  # step of the server; 1 gives FedAvg

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Take a step with momentum: v <- beta v + (w - mean), w <- w - eta v."""
        mean = super().aggregate(server, messages).weights
        weights, memory = dict(mean), dict(server.memory)
        for name in server.parameters:
            w, key = server.weights[name], f"velocity.{name}"
            gap = wide(w) - mean[name]
            past = self.momentum * server.memory.get(key, torch.zeros_like(gap))
            memory[key] = past + gap
            # w - eta (past + w - mean) = lerp(w, mean, eta) - eta past: exact at eta 1
            weights[name] = torch.lerp(w, mean[name], self.server_lr)
            weights[name] -= self.server_lr * past
        return replace(server, weights=weights, memory=memory)
