"""Chapter 01: FedProx as a class, checked on one batch and on two rounds."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from fedlab_support import (
    FedAvg,
    Federation,
    FedProx,
    LocalTraining,
    Run,
    leave_out,
    load,
)
from fedlab_support.core.messages import Broadcast
from fedlab_support.engines.contract import Job

from ..checking.exercise import Wrong, call, exercise
from ..checking.table import Mistakes, Rules, compare, read

MOVED = 0.2
"""How far every weight is moved from the one that was received."""


@exercise
def proximal(answer: type[FedAvg]) -> str:
    """Check FedProx as a class: its loss away from the broadcast, then two rounds."""
    mu = 0.3
    if not callable(answer):
        raise Wrong(f"expected a class, found {type(answer).__name__} object")
    method = call(lambda: answer(mu=mu), given="mu=0.3", by=answer)
    if not isinstance(method, FedAvg):
        raise Wrong("expected a class that inherits from fl.FedAvg")
    if isinstance(method, FedProx):
        raise Wrong("subclass fl.FedAvg: a subclass of fl.FedProx has its loss already")
    _check_penalty(method, mu)
    ends = [after_two_rounds(each) for each in (FedProx(mu=mu), method)]
    if not torch.allclose(*ends, 5e-3, 5e-3):  # training amplifies rounding
        raise Wrong(
            "the loss is right on one batch, but after two rounds the weights are not "
            "those of FedProx: does your class change anything else, or keep something "
            "from one client to the next?"
        )
    return "the loss and, after two rounds, all weights are those of the package"


def small_network(image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """A network with buffers, which the penalty must leave out."""
    layers = (
        nn.Flatten(),
        nn.Linear(784, 5),
        nn.BatchNorm1d(5),
        nn.Linear(5, num_classes),
    )
    return nn.Sequential(*layers)


def three_clients() -> Federation:
    """Sixty scanned digits, dealt unequally."""
    data = load("digits")
    return Federation.build(data, np.split(leave_out(data)[:60], [30, 40]))


def after_two_rounds(method: FedAvg, buffers: bool = True) -> Tensor:
    """All weights, as one vector, after two rounds of a learner's method.

    buffers: False leaves out BatchNorm's running statistics.
    Raises Wrong when the method raises.
    """

    def train() -> Tensor:
        pieces = method, three_clients(), small_network, LocalTraining(0.1, 2, 8)
        run = Run(*pieces, workers=1, on_failure="raise")
        run.step(evaluate=False).step(evaluate=False)
        names = run.server.weights if buffers else run.server.parameters
        return torch.cat([run.server.weights[n].double().flatten() for n in names])

    given = "two rounds of your method on three clients"
    return call(train, given=given, by=method)


def _check_penalty(method: FedAvg, mu: float) -> None:
    """Raise Wrong unless the loss exceeds FedAvg's by mu / 2 · ||w - received||²."""
    model = small_network((1, 28, 28), 10).eval()
    received = {n: t.detach().clone() for n, t in model.state_dict().items()}
    if abs(_penalty(method, model, received).item()) > 1e-5:
        raise Wrong(
            "at the received weights the distance is 0, so the loss is that of FedAvg; "
            "yours differs"
        )
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor += MOVED
    found = _penalty(method, model, received)
    count = sum(p.numel() for p in model.parameters())
    buffers = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    otherwise = "something is added to the loss, but not mu / 2 times the squared "
    otherwise += "distance"
    right, mistakes = mu / 2 * count * MOVED**2, _wrong_penalties(mu, count, buffers)
    compare(found, right, mistakes, otherwise, rtol=1e-3, atol=1e-5)
    first = next(model.parameters())
    (slope,) = torch.autograd.grad(found, first, allow_unused=True)
    pull = torch.full_like(first, mu * MOVED)
    if slope is None or not torch.allclose(slope, pull, atol=1e-4):
        raise Wrong(
            "the value is right, but its gradient is not: is the model's own weight "
            "detached?"
        )


def _penalty(method: FedAvg, model: nn.Module, received: dict[str, Tensor]) -> Tensor:
    """A method's loss minus FedAvg's, on the samples of one client."""
    federation = three_clients()
    job = Job(method, model, federation, LocalTraining(), seed=0)
    context = job.context(Broadcast(1, received, {}), 0, {}, {})
    batch = federation.client(0).train.whole()
    given = "a model, a batch and the context of a client"
    loss = call(method.loss, model, batch, context, given=given)
    read(loss, torch.zeros(()), Rules(), "loss")
    return loss - FedAvg().loss(model, batch, context)


def _wrong_penalties(mu: float, count: int, buffers: int) -> Mistakes:
    square = count * MOVED**2
    return [
        (mu * square, "the penalty is twice as strong as in the equation: where is the "
         "half?"),
        (square / 2, "the penalty does not depend on mu"),
        (0.0, "away from the received weights nothing is added: is the model compared "
         "with itself? The received weights are in context.received.weights"),
        (mu / 2 * square**0.5, "this is the norm; the equation squares it"),
        (mu * square**0.5, "this is the norm; the equation squares it, and has a half"),
        (mu / 2 * MOVED**2, "this is the mean over the entries; the equation sums "
         "them"),
        (mu / 2 * (square + buffers * MOVED**2), "the running statistics are in it; "
         "the norm runs over parameters only"),
        (-mu / 2 * square, "the sign is wrong: this rewards a large distance"),
    ]  # fmt: skip
