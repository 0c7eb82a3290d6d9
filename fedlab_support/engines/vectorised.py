"""The loss and the model of a stack: one forward pass for K clients' parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F

from ..core.messages import Tensors
from ..core.metrics import Task
from ..federation.samples import Batch
from ..methods import FedAvg
from ..training.context import ClientContext
from ..training.learner import Learner


@dataclass(frozen=True)
class WeightedTask:
    """The loss of a task, weighting the samples of a padded batch.

    share: weight of each sample, (B,): 1 / n for the client's n samples, 0 for padding.
    """

    task: Task
    share: Tensor

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the samples that are not padding."""
        return (self.task.losses(output, y) * self.share).sum()


def set_parameters(model: nn.Module, parameters: dict[str, Tensor | None]) -> None:
    """Replace parameters of a model by name."""
    for name, value in parameters.items():
        layer, _, key = name.rpartition(".")
        model.get_submodule(layer)._parameters[key] = value


class GroupNorm(nn.GroupNorm):
    """``nn.GroupNorm``, whose own kernel vmap cannot batch on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …), normalised in groups of channels, scaled and shifted."""
        groups = x.unflatten(1, (self.num_groups, -1)).flatten(2)
        y = F.layer_norm(groups, groups.shape[2:], eps=self.eps).view(x.shape)
        if not self.affine:
            return y
        shape = (-1,) + (1,) * (x.ndim - 2)
        return y * self.weight.view(shape) + self.bias.view(shape)


class Linear(nn.Linear):
    """``nn.Linear``, whose gradient vmap would return transposed, to be copied."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, in) → (B, out)."""
        if x.ndim != 2 or self.bias is None:
            return super().forward(x)
        return (self.weight @ x.mT).mT + self.bias


IN_STACKS = {nn.GroupNorm: GroupNorm, nn.Linear: Linear}
"""Layers that have a faster form in a stack."""


def training_copy(model: nn.Module) -> nn.Module:
    """A copy for ``vmap``, in training mode except for frozen modules."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        layer.__class__ = IN_STACKS.get(type(layer), type(layer))
    return Learner(model).train()


@dataclass(frozen=True)
class StackedLoss:
    """A method's loss, evaluated for all clients of a stack.

    stack: trained parameters by name, (K, …) each.
    """

    method: FedAvg
    stack: dict[str, nn.Parameter]

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The loss of every client, (K,).

        batch:    x and y are (K, B, …).
        context:  its task's ``share`` is (K, B).
        """

        def client_loss(parameters: Tensors, x: Tensor, y: Tensor, share: Tensor):
            """The loss of one client, and the values it logs."""
            set_parameters(model, parameters)
            weighted = WeightedTask(context.task.task, share)
            own = replace(context, task=weighted, logged=defaultdict(list))
            value = self.method.loss(model, Batch(x, y, batch.index, batch.epoch), own)
            return value, {name: logged for name, (logged,) in own.logged.items()}

        values, logged = vmap(client_loss)(
            self.stack, batch.x, batch.y, context.task.share
        )
        for name, value in logged.items():
            context.log(name, value)
        return values


def keep_first(stack: dict[str, nn.Parameter], optimiser, num: int) -> None:
    """Continue with the first `num` clients; the rows of the others stay unchanged."""
    for parameter in stack.values():
        if len(parameter) > num:
            parameter.data = parameter.data[:num]
            state = optimiser.state[parameter]
            for key, value in state.items():
                if isinstance(value, Tensor) and value.ndim:
                    state[key] = value[:num]
