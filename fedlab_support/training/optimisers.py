"""Optimisers for local training that torch lacks, or has only in a slower form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..core.messages import wide


class Fused:
    """An optimiser that calls a fused kernel of torch.

    The overhead of torch's own classes (profiling, hooks, sorting by device) exceeds
    the cost of a step of a small network, and a client takes few steps with each
    optimiser. Their first step also imports torch's compiler, which takes two seconds.

    groups:  dictionaries with ``params``, and what differs from ``defaults``;
             parameters of one device and type in each.
    """

    def __init__(self, groups: Iterable[dict], **defaults: float):
        self.param_groups = [defaults | group for group in groups]
        self.state: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take a step with the gradients that ``closure`` computes; return its loss."""
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                params = [p for p in group["params"] if p.grad is not None]
                new = [p for p in params if p not in self.state]
                old = [p for p in params if p in self.state] if new else params
                for some, is_first in ((old, False), (new, True)):
                    if some:
                        self._update(some, group, is_first)
        return loss

    def _update(self, params: list[nn.Parameter], group: dict, is_first: bool) -> None:
        """Apply the kernel to some parameters."""
        raise NotImplementedError


class FusedSGD(Fused):
    """``torch.optim.SGD(…, fused=True)``, with bitwise equal results."""

    def __init__(self, groups: Iterable[dict], lr: float, momentum: float = 0.0):
        super().__init__(groups, lr=lr, momentum=momentum, weight_decay=0.0)

    def _update(self, params: list[nn.Parameter], group: dict, is_first: bool) -> None:
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


class FusedAdam(Fused):
    """``torch.optim.Adam(…, fused=True)``, with bitwise equal results.

    decoupled: weight decay as in ``torch.optim.AdamW``.
    """

    def __init__(self, groups: Iterable[dict], lr: float, decoupled: bool = False):
        super().__init__(groups, lr=lr, weight_decay=0.0)
        self.kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def _update(self, params: list[nn.Parameter], group: dict, is_first: bool) -> None:
        # m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g²;  both divided by 1 - b^t
        for p in params if is_first else ():
            means = {"mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
            self.state[p] = means | {"step": torch.zeros((), device=p.device)}
        states = [self.state[p] for p in params]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        self.kernel(
            params,
            [p.grad for p in params],
            [state["mean"] for state in states],
            [state["square"] for state in states],
            [],
            steps,
            lr=group["lr"],
            beta1=0.9,
            beta2=0.999,
            weight_decay=group["weight_decay"],
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


SMALLEST_NORM = 1e-12
"""Added to the norm of a gradient, to avoid a division by zero."""


class SAM:
    """Sharpness-aware steps: ``base`` steps with the gradient at perturbed weights.

    base:  any optimiser; it applies that gradient to the original weights.
    rho:   norm of the perturbation, ≥ 0; at 0 each step is that of ``base``.
    unit:  T(w), the scale of the perturbation for a parameter, of its shape; None: 1
           everywhere.

    A parameter without a gradient is not perturbed. The returned loss is that of the
    original weights.
    Source: Foret et al., ICLR 2021, equation 2; with a unit Kwon et al., ICML 2021.
    """

    def __init__(
        self, base, rho: float, unit: Callable[[nn.Parameter], Tensor] | None = None
    ):
        self.base, self.rho, self.unit = base, rho, unit
        self.param_groups, self.state = base.param_groups, base.state

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """Take a step; ``closure`` computes the gradients and is called twice."""
        loss = closure()
        every = [p for group in self.param_groups for p in group["params"]]
        params = [p for p in every if p.grad is not None]
        start = [p.detach().clone() for p in params]
        self._perturb(params)
        closure()
        with torch.no_grad():  # exact, unlike subtracting the perturbation
            for p, value in zip(params, start, strict=True):
                p.copy_(value)
        self.base.step()
        return loss

    @torch.no_grad()
    def _perturb(self, params: list[nn.Parameter]) -> None:
        # w <- w + rho T² g / (||T g|| + eps), the norm over all parameters at once
        units = [1.0 if self.unit is None else self.unit(p) for p in params]
        scaled = [unit * p.grad for p, unit in zip(params, units, strict=True)]
        norm = wide(get_total_norm(scaled)) + SMALLEST_NORM
        for p, gradient, unit in zip(params, scaled, units, strict=True):
            p.add_(unit * gradient * (self.rho / norm))
