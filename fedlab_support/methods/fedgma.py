"""FedGMA: damp the server's step for parameters on whose sign clients disagree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.checks import setting
from ..core.messages import Message, Server
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedGMA(FedAvg):
    """FedAvg whose mean step is damped, per entry, where clients' signs disagree.

    Every client has one vote; the mean itself is weighted as in FedAvg. The agreement
    of an entry is |sum of signs| / K; from ``tau`` on, the entry takes the whole step.
    With 20 clients and random signs the expected agreement is 0.18, and the mean factor
    of a step 0.24.

    Buffers are averaged only; the benchmark's code masks them as well. By mistake, its
    mask is 1 + A where clients agree and 0 elsewhere: ``mask="benchmark_bug"``, as in
    FISC's tables.

    Source: Tenison et al., TMLR 2023; code of inouye-lab/FedDG_Benchmark at da58f76.
    """

    tau: float = setting(0.4, at_least=0, at_most=1)  # agreement; 0 gives FedAvg
    mask: str = setting(  # below tau: agreement ("soft") or 0 ("hard"); or a known bug
        "soft", one_of=("soft", "hard", "benchmark_bug")
    )
    server_lr: float = setting(1.0, above=0)  # step of the server; 1 gives FedAvg

    def mask_of(self, steps: Sequence[Tensor]) -> Tensor:
        """The factor of the mean step for each entry, from the steps of K clients."""
        # A = |sum_k sign(step_k)| / K; compared as integers, as tau K may be one
        votes = sum(step.sign().int() for step in steps).abs()
        is_free = votes >= math.ceil(self.tau * len(steps) - 1e-9)
        agreement = votes / len(steps)
        if self.mask == "benchmark_bug":
            return is_free * (1 + agreement)
        return torch.where(is_free, 1.0, agreement * (self.mask == "soft"))

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """W <- w + eta M · (mean - w), for parameters; buffers are the mean."""
        after = super().aggregate(server, messages)
        weights = dict(after.weights)
        for name in server.parameters:
            w = server.weights[name]
            mask = self.mask_of([m.weights[name] - w for m in messages]).to(w.dtype)
            # exact where eta M is 0 or 1
            weights[name] = torch.lerp(w, after.weights[name], self.server_lr * mask)
        return replace(after, weights=weights)
