"""Decide whether a job can be stacked, and whether stacking is faster.

Settings rule out most jobs. For the others, the gradients of two stacked clients are
compared with the gradients of each client alone.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from ..core.messages import Broadcast, Tensors
from ..core.rng import Stream
from ..models import Dropout
from ..training.context import ClientContext
from ..training.learner import Learner, batch_norms
from .batch_plan import batch_of_rows
from .contract import Job
from .vectorised import StackedLoss, WeightedTask, set_parameters, training_copy

TRIAL_SAMPLES = ((0, 1, 2), (3, 4, 3))
"""The samples of the trial's two clients; the second client's last one is padding."""

TRIAL_SHARES = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 1 / 2, 0.0))
"""The share of each of these samples in its client's loss."""

RELATIVE, ABSOLUTE = 1e-2, 1e-4
"""Tolerance of the trial, relative to a gradient's norm and to the largest norm.

It is generous because rounding may flip a ReLU.
"""


def refusal(job: Job) -> str:
    """Return why a job cannot be stacked; "" if it can."""
    if reason := _obstacle(job):
        return reason
    try:
        return _gradient_mismatch(job)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        return f"when stacked, it raises {type(error).__name__}: {first_line}"


def _obstacle(job: Job) -> str:
    """Return what in the settings rules out stacking; "" if nothing does.

    A class that overrides the loss must declare itself ``stackable``: see ``FedAvg``.
    """
    kind = type(job.method)
    if not kind.stackable:
        return f"{kind.__name__} declares that its loss is not stackable"

    def depth(name: str) -> int:
        """The position of the first class that defines ``name``; 0: the method's."""
        return next(n for n, base in enumerate(kind.__mro__) if name in vars(base))

    for hook in ("loss", "before_training"):
        if depth(hook) < depth("stackable"):
            return f"{kind.__name__} overrides {hook} without declaring it stackable"
    for hook in ("optimiser", "client_broadcast"):
        if kind.overrides(hook):
            return f"{kind.__name__} overrides {hook}, which differs between clients"
    if job.training.augment is not None:
        return f"{job.training.augment!r} acts on the batch of one client"
    if job.training.compile:
        return "compile=True compiles the network of one client"
    if job.deadline is not None:
        return "a deadline applies to one client, and stacked clients train together"
    parameters = job.model.named_parameters
    if len([*parameters()]) < len([*parameters(remove_duplicate=False)]):
        return "two layers of the network share a parameter"
    own = set(job.initial_private) - {name for name, _ in parameters()}
    if own:
        return f"{min(own)!r} is a private buffer, and stacked clients share buffers"
    if norms := [*batch_norms(job.model)]:
        return f"{norms[0]!r} is a BatchNorm, which would normalise over all clients"
    for name, module in job.model.named_modules():
        if isinstance(module, Dropout) and module.p > 0:
            return f"{name!r} draws noise, and every client has its own random stream"
    return ""


@torch.enable_grad()
def _gradient_mismatch(job: Job) -> str:
    """Return where gradients of two stacked clients differ from each client alone.

    "" if they agree. The layers alone do not show what a forward pass computes, so two
    clients with different weights and batches are compared.
    """
    store, stack = job.federation.store, {}
    for name, value in job.model.named_parameters():
        if value.requires_grad:
            stack[name] = nn.Parameter(torch.stack([value, 0.9 * value]).detach())
    rows = torch.from_numpy(np.resize(job.federation.rows, 5)).to(store.device)
    shares = torch.tensor(TRIAL_SHARES, device=store.device)
    expected = []
    for k, client_rows in enumerate((rows[:3], rows[3:])):
        model = Learner(copy.deepcopy(job.model)).train()
        own = {n: nn.Parameter(v[k].detach()) for n, v in stack.items()}
        set_parameters(model, own)
        before = copy.deepcopy(dict(model.named_buffers()))
        expected.append(
            _gradients(job, job.method, model, own, client_rows, store.task)
        )
        for name, buffer in model.named_buffers():
            if not buffer.equal(before[name]):
                return (
                    f"training changes the buffer {name!r}, which stacked clients share"
                )
    model, loss = training_copy(job.model), StackedLoss(job.method, stack)
    stacked_rows = rows[torch.tensor(TRIAL_SAMPLES)]
    found = _gradients(
        job, loss, model, stack, stacked_rows, WeightedTask(store.task, shares)
    )
    for k, gradients in enumerate(expected):
        largest = max(gradient.norm() for gradient in gradients.values())
        for name, gradient in gradients.items():
            difference = (found[name][k] - gradient).norm()
            if not difference <= RELATIVE * gradient.norm() + ABSOLUTE * largest:
                return f"{name!r} has other gradients than when a client trains alone"
    return ""


def _gradients(
    job: Job, method, model: nn.Module, parameters: dict, rows: Tensor, measured
) -> Tensors:
    """Gradients of a loss at the samples of some rows of the store, by name."""
    received, stream = Broadcast(1, job.model.state_dict()), Stream(job.seed, "method")
    # no client and no memory, so that a loss which reads one of them is refused
    settings = job.training
    context = ClientContext(None, received, settings, measured, stream, memory=None)
    batch = batch_of_rows(job.federation.store, rows)
    loss = method.loss(model, batch, context).sum()
    wanted = [*parameters.values()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return dict(zip(parameters, found, strict=True))


def is_faster(job: Job) -> bool:
    """Whether stacking is faster: on a GPU always, on a CPU without convolutions.

    On a CPU, convolutions of all clients at once take as long as one after the other.
    """
    is_gpu = job.federation.store.device.type != "cpu"
    layers = [m for m in job.model.modules() if isinstance(m, nn.Conv2d)]
    return is_gpu or not any(m.weight.requires_grad for m in layers)
