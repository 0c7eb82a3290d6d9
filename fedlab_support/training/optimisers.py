"""Optimisers of local training that torch does not have, or not fast enough."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class FusedSGD:
    """``torch.optim.SGD(…, fused=True)`` to the last bit: its kernel and nothing else.

    What torch does around the kernel (profiling, hooks, sorting by device) costs more
    than a step of a small network, and a client takes few steps with each optimiser.

    groups:  dictionaries with ``params``, and ``lr``, ``momentum``, ``weight_decay``
             where they differ from the settings; parameters of one device and type in
             each.
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
                new = [p for p in params if p not in self.state]
                old = [p for p in params if p in self.state] if new else params
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


SMALLEST_NORM = 1e-12
"""Added to the length of a gradient: where it is 0, nobody climbs."""


class SAM:
    """Steps of ``base`` by the gradient at the worst weights nearby.

    base:  any optimiser; it sees that gradient at the weights as they were.
    rho:   how far the climb goes, ≥ 0; at 0 each step is that of ``base``.
    unit:  T(w), for a parameter what counts as one step of the climb, of its shape;
           None: 1 everywhere.

    A parameter without a gradient stays where it is. The loss that comes back is that
    of the weights as they were.
    Source: Foret et al., ICLR 2021, equation 2; with a unit Kwon et al., ICML 2021.
    """

    def __init__(
        self,
        base,
        rho: float,
        unit: Callable[[nn.Parameter], Tensor] | None = None,
    ):
        self.base, self.rho, self.unit = base, rho, unit
        self.param_groups, self.state = base.param_groups, base.state

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """One step; ``closure`` leaves gradients and is called twice."""
        loss = closure()
        every = [p for group in self.param_groups for p in group["params"]]
        params = [p for p in every if p.grad is not None]
        start = [p.detach().clone() for p in params]
        self._climb(params)
        closure()
        with torch.no_grad():  # what was saved: to subtract the climb would round
            for p, value in zip(params, start, strict=True):
                p.copy_(value)
        self.base.step()
        return loss

    @torch.no_grad()
    def _climb(self, params: list[nn.Parameter]) -> None:
        # w <- w + rho T² g / (||T g|| + eps), the norm over all parameters at once
        units = [1.0 if self.unit is None else self.unit(p) for p in params]
        ways = [unit * p.grad for p, unit in zip(params, units, strict=True)]
        length = get_total_norm(ways) + SMALLEST_NORM
        for p, way, unit in zip(params, ways, units, strict=True):
            p.add_(unit * way * (self.rho / length))
