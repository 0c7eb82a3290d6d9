"""FedAdam, FedYogi and FedAdagrad: an adaptive optimiser on the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.checks import setting
from ..core.messages import Message, Server, wide
from .fedavg import FedAvg

SQUARES = {
    "adam": lambda v, square, decay: decay * v + (1 - decay) * square,
    "yogi": lambda v, square, decay: v - (1 - decay) * square * (v - square).sign(),
    "adagrad": lambda v, square, decay: v + square,
}
"""The next v, from v, the squared step of the mean, and beta_2."""


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """FedAvg whose server takes the clients' mean step as a gradient, for Adam.

    ``rule="yogi"`` is FedYogi; ``rule="adagrad"`` is FedAdagrad, which the paper trains
    with ``momentum=0``. There is no bias correction, and v starts at tau²; hence
    ``momentum=0, decay=1, server_lr=2 * tau`` gives FedAvg. Running statistics and
    other buffers are averaged only. Algorithm 2 weights clients equally: for that, set
    ``weighting="equal"``.

    Source: Reddi et al., *Adaptive Federated Optimization*, ICLR 2021, Algorithm 2.
    """

    rule: str = setting("adam", one_of=tuple(SQUARES))  # how v follows the steps
    server_lr: float = setting(0.01, above=0)  # eta, roughly the largest step a round
    momentum: float = setting(0.9, at_least=0, below=1)  # beta_1, of m
    decay: float = setting(0.99, at_least=0, at_most=1)  # beta_2, of v; not in Adagrad
    tau: float = setting(1e-3, above=0)  # much smaller steps are not scaled up to eta

    @property
    def label(self) -> str:
        """The name that the paper gives the rule."""
        return f"Fed{self.rule.capitalize()}"

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Take an adaptive step: w <- w + eta m / (√v + tau)."""
        after = super().aggregate(server, messages)
        weights, memory = dict(after.weights), dict(server.memory)
        for name in server.parameters:
            w = server.weights[name]
            step = wide(after.weights[name]) - w
            m = memory.get(f"m.{name}", torch.zeros_like(step))
            v = memory.get(f"v.{name}", torch.full_like(step, self.tau**2))
            m = self.momentum * m + (1 - self.momentum) * step
            v = SQUARES[self.rule](v, step.square(), self.decay)
            after_step = w + self.server_lr * m / (v.sqrt() + self.tau)
            weights[name] = after_step.to(w.dtype)
            memory |= {f"m.{name}": m, f"v.{name}": v}
        return replace(after, weights=weights, memory=memory)
