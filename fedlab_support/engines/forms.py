"""How a stack of clients finds its losses: by batched layers, or by torch.func.vmap."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from ..core.messages import Broadcast, Tensors
from ..core.metrics import Task, task
from ..core.rng import Stream
from ..federation.federation import Batch
from ..methods import FedAvg
from ..training.local import ClientContext, frozen_modules
from .batched import batched_form, column_form
from .contract import Job

PICTURES = ((0, 1, 2), (3, 4, 3))
"""Of the two clients that a form is tried on; the last one only fills its row."""

SHARES = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 1 / 2, 0.0))
"""What each of these pictures counts."""

CLOSE, NOTHING = 1e-2, 1e-4
"""Of its own norm, and of the largest, what a gradient may be off: ReLUs may flip."""


@dataclass(frozen=True)
class PerClient:
    """A task whose loss is one number for each client.

    ``share``: what each sample counts, (K, B) or (B,) for one client: 1 / n for the n
    samples of a client's batch, 0 for what only fills its row.
    """

    task: Task
    share: Tensor

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss of each client, (K,), from what stands in one row after another."""
        losses = self.task.losses(output, y)
        return (losses.view(self.share.shape) * self.share).sum(-1)

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """The task's score of each sample."""
        return self.task.score(output, y)

    def soft(self, y: Tensor, num_classes: int) -> Tensor:
        """The task's targets as probabilities."""
        return self.task.soft(y, num_classes)


def place(model: nn.Module, parameters: Tensors) -> None:
    """Let the layers of a model have these parameters, by name, in place of theirs."""
    for name, value in parameters.items():
        layer, _, key = name.rpartition(".")
        model.get_submodule(layer)._parameters[key] = value


class Batched:
    """The task's loss, by a network of batched layers."""

    def __init__(self, method: FedAvg, model: nn.Module):
        self.loss, self.model = method.loss, model

    def hold(self, stack: Tensors) -> None:
        """Use these parameters, (K, …) each."""
        place(self.model, stack)


class Vectorised:
    """Any stackable loss, by torch.func.vmap over the clients."""

    def __init__(self, method: FedAvg, model: nn.Module):
        self.method, self.model = method, model

    def hold(self, stack: Tensors) -> None:
        """Use these parameters, (K, …) each."""
        self.stack = dict(stack)
        place(self.model, stack)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The loss of every client, (K,)."""
        share = context.task.share

        def one(parameters: Tensors, x: Tensor, y: Tensor, share: Tensor):
            """The loss of one client, and what it logs."""
            place(model, parameters)
            own = replace(context, task=PerClient(context.task.task, share), logged={})
            value = self.method.loss(model, Batch(x, y, batch.index, batch.epoch), own)
            return value, {name: logged for name, (logged,) in own.logged.items()}

        rows = [values.unflatten(0, share.shape) for values in batch[:2]]
        values, logged = vmap(one)(self.stack, *rows, share)
        for name, value in logged.items():
            context.log(name, value)
        return values


def form_of(job: Job) -> Batched | Vectorised:
    """The quicker form that gives the network's own gradients.

    Networks of linear, convolution, group and layer normalisation layers have batched
    forms with FedAvg's loss; all else goes through ``torch.func.vmap``. What a forward
    pass does with its layers no look at them can tell: so each form is tried.

    Raises ValueError with the reason when there is none.
    """
    is_plain = type(job.method).loss is FedAvg.loss
    twin = batched_form(job.model) if is_plain else None
    forms = [] if twin is None else [Batched(job.method, twin)]
    if not job.training.compile:
        forms.append(Vectorised(job.method, column_form(job.model)))
    reason = "compile=True needs FedAvg's loss and batched layers"
    for form in forms:
        _switch_to_training(form.model, job.model)
        try:
            reason = _mismatch(job, form)
        except Exception as error:
            first = str(error).partition("\n")[0]
            reason = f"stacked, it ends in {type(error).__name__}: {first}"
        if not reason:
            return form
    raise ValueError(reason)


def _switch_to_training(model: nn.Module, like: nn.Module) -> None:
    """Training mode, but for what is frozen in the network that it is ``like``."""
    frozen = frozen_modules(like)
    model.train()
    for name, module in like.named_modules():
        if module in frozen:
            model.get_submodule(name).eval()


def _mismatch(job: Job, form: Batched | Vectorised) -> str:
    """How two clients with weights and batches of their own fare otherwise than alone.

    "" if they do not.
    """
    store, stack = job.federation.store, _two_clients(job.model)
    if not stack:
        return "the network has nothing to train"
    rows = torch.from_numpy(np.resize(job.federation.rows, 5)).to(store.device)
    shares = torch.tensor(SHARES, device=store.device)
    measured = task(store.data.task)
    wanted = []
    for k, mine in enumerate((rows[:3], rows[3:])):
        model = copy.deepcopy(job.model)
        _switch_to_training(model, job.model)
        place(model, {n: nn.Parameter(v[k].detach()) for n, v in stack.items()})
        before = copy.deepcopy(dict(model.named_buffers()))
        own = {name: model.get_parameter(name) for name in stack}
        wanted.append(_slopes(job, job.method, model, own, mine, measured))
        for name, buffer in model.named_buffers():
            if not buffer.equal(before[name]):
                return f"training changes {name!r}, of which all clients share one"
    form.hold(stack)
    both = rows[torch.tensor(PICTURES).flatten()]
    found = _slopes(job, form, form.model, stack, both, PerClient(measured, shares))
    form.hold(dict.fromkeys(stack))
    for k, slopes in enumerate(wanted):
        largest = max(slope.norm() for slope in slopes.values())
        for name, slope in slopes.items():
            gap = (found[name][k] - slope).norm()
            if not gap <= CLOSE * slope.norm() + NOTHING * largest:
                return f"{name!r} has other gradients than where a client is alone"
    return ""


def _two_clients(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights of a model and, beside each, weights nearby: (2, …)."""
    rng, stack = torch.Generator().manual_seed(0), {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            noise = torch.randn(value.shape, generator=rng).to(value.device)
            near = value + 0.1 * (value.abs().mean() + 0.1) * noise
            stack[name] = nn.Parameter(torch.stack([value, near]).detach())
    return stack


def _slopes(job: Job, teller, model, parameters: dict, rows: Tensor, measured) -> dict:
    """Gradients of the loss that ``teller`` finds on the pictures of some rows."""
    told = Broadcast(1, {n: v.detach() for n, v in job.model.state_dict().items()})
    context = ClientContext(
        None, told, job.training, measured, Stream(job.seed, "method")
    )
    store = job.federation.store
    batch = Batch(store.pictures(rows), store.targets(rows), rows, epoch=0)
    losses = teller.loss(model, batch, context).sum()
    slopes = torch.autograd.grad(losses, [*parameters.values()], allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if slope is None else slope
        for (name, parameter), slope in zip(parameters.items(), slopes, strict=True)
    }
