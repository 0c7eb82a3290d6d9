"""Optimisers of local training that torch does not have, or not fast enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class FusedSGD:
    """``torch.optim.SGD(…, fused=True)`` to the last bit: its kernel and nothing else.

    What torch does around the kernel (profiling, hooks, sorting by device) costs more
    than a step of a small network, and a client takes few steps with each optimiser.

    ``groups``: dictionaries with ``params``, and ``lr``, ``momentum``, ``weight_decay``
    where they differ from the settings; parameters of one device and type in each.
    """

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float = 0.0):
        settings = {"lr": lr, "momentum": momentum, "weight_decay": 0.0}
        self.param_groups = [settings | group for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step on the gradients that ``closure`` leaves; its loss comes back."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                old = [p for p in params if p in self.state]
                new = [p for p in params if p not in self.state]
                for some, is_first in ((old, False), (new, True)):
                    if some:
                        self._move(some, group, is_first)
        return loss

    def _move(self, params: list[nn.Parameter], group: dict, is_first: bool) -> None:
        """Move some parameters by the kernel."""
        # v <- m v + (g + d w), from v = g + d w at first;  w <- w - eta v
        for p in params if is_first else ():
            buffer = {"momentum_buffer": torch.empty_like(p)}
            self.state[p] = buffer if group["momentum"] else {}
        torch._fused_sgd_(
            params,
            [p.grad for p in params],
            [buffer for p in params for buffer in self.state[p].values()],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=is_first and group["momentum"] != 0,
        )
