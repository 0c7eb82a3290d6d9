"""Train all clients of a round at once: one model, vectorised over their parameters.

A stack holds a parameter of all K clients as one tensor (K, …). ``torch.func.vmap``
evaluates the loss of every client on its own batch, and one backward pass through the
sum gives each client its own gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.cancellation import stop_check
from ..core.messages import Broadcast, Message, Tensors, copies
from ..core.metrics import Task, task
from ..core.rng import Stream, numpy_stream
from ..federation.federation import Federation
from ..federation.samples import Batch, Store, positions
from ..methods import FedAvg
from ..models import Dropout
from ..training.context import ClientContext, PrivateState
from ..training.learner import Learner, frozen_modules
from ..training.loop import refuse_divergence, take_step
from .contract import Answer, Failure, Job
from .local import LocalEngine, intra_op_threads, tf32

STACK_BYTES = {"cpu": 500_000_000, "cuda": 8_000_000_000}
"""Most bytes of parameters that are trained in one stack."""

TRIAL_SAMPLES = ((0, 1, 2), (3, 4, 3))
"""The samples of the trial's two clients; the second client's last one is padding."""

TRIAL_SHARES = ((1 / 3, 1 / 3, 1 / 3), (1 / 2, 1 / 2, 0.0))
"""The share of each of these samples in its client's loss."""

RELATIVE, ABSOLUTE = 1e-2, 1e-4
"""Tolerance of the trial, relative to a gradient's norm and to the largest norm.

Generous, since rounding may flip a ReLU.
"""


@dataclass(frozen=True)
class Weighted:
    """A task whose loss weights the samples of one client's padded batch.

    share: weight of each sample, (B,): 1 / n for the client's n samples, 0 for padding.
    """

    task: Task
    share: Tensor

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss over the samples that are not padding."""
        return (self.task.losses(output, y) * self.share).sum()

    def score(self, output: Tensor, y: Tensor) -> Tensor:
        """The task's score of each sample."""
        return self.task.score(output, y)

    def soft(self, y: Tensor, num_classes: int) -> Tensor:
        """The task's targets as probabilities."""
        return self.task.soft(y, num_classes)


def place(model: nn.Module, parameters: dict[str, Tensor | None]) -> None:
    """Replace parameters of a model, by name."""
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


def training_copy(model: nn.Module) -> nn.Module:
    """A copy of the model for ``vmap``, in training mode but for its frozen modules."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if type(layer) is nn.GroupNorm:
            layer.__class__ = GroupNorm
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

        batch: x and y are (K, B, …). visit: its task's ``share`` is (K, B).
        """

        def one(parameters: Tensors, x: Tensor, y: Tensor, share: Tensor):
            """The loss of one client, and the values it logs."""
            place(model, parameters)
            own = replace(context, task=Weighted(context.task.task, share), logged={})
            value = self.method.loss(model, Batch(x, y, batch.index, batch.epoch), own)
            return value, {name: logged for name, (logged,) in own.logged.items()}

        values, logged = vmap(one)(self.stack, batch.x, batch.y, context.task.share)
        for name, value in logged.items():
            context.log(name, value)
        return values


def refusal(job: Job) -> str:
    """Why the clients of this job cannot be trained in one stack; "" if they can."""
    if reason := _obstacle(job):
        return reason
    try:
        return _mismatch(job)
    except Exception as error:
        first = str(error).partition("\n")[0]
        return f"stacked, it ends in {type(error).__name__}: {first}"


def _obstacle(job: Job) -> str:
    """The reason that the job's settings show, before anything is tried; "" if none.

    A class that overrides the loss must declare itself ``stackable``: of the client,
    its loss uses only the values of its parameters, the batch's x and y, the broadcast
    that all clients share, and ``context.task.loss``, the only mean over samples.
    """
    kind = type(job.method)
    if not kind.stackable:
        return f"{kind.__name__} says that its loss is not stackable"
    if _owner(kind, "loss") not in _owner(kind, "stackable").__mro__:
        return f"{kind.__name__} overrides loss and does not say that it is stackable"
    for hook in ("optimiser", "client_broadcast"):
        if kind.overrides(hook):
            return f"{kind.__name__} overrides {hook}, which is one client's own"
    if job.training.augment is not None:
        return f"{job.training.augment!r} acts on the batch of one client"
    if job.training.compile:
        return "compile=True compiles the network of one client"
    if job.deadline is not None:
        return "a deadline is one client's own, and here all take the same time"
    each = job.model.named_parameters
    if len([*each()]) < len([*each(remove_duplicate=False)]):
        return "two layers of the network share a parameter"
    frozen = frozen_modules(job.model)
    for name, module in job.model.named_modules():
        if isinstance(module, _BatchNorm) and module not in frozen:
            return f"{name!r} is a BatchNorm, whose batch would be all clients'"
        if isinstance(module, Dropout) and module.p > 0:
            return f"{name!r} draws noise, which comes from every client's own stream"
    return ""


def _mismatch(job: Job) -> str:
    """How gradients of two stacked clients differ from those of each client alone.

    "" if they do not. Layers do not show what a forward pass does with them, so two
    clients with different weights and batches are tried.
    """
    store, stack = job.federation.store, _two_clients(job.model)
    if not stack:
        return "the network has nothing to train"
    rows = torch.from_numpy(np.resize(job.federation.rows, 5)).to(store.device)
    shares = torch.tensor(TRIAL_SHARES, device=store.device)
    measured = task(store.data.task)
    expected = []
    for k, own_rows in enumerate((rows[:3], rows[3:])):
        model = Learner(copy.deepcopy(job.model)).train()
        own = {n: nn.Parameter(v[k].detach()) for n, v in stack.items()}
        place(model, own)
        before = copy.deepcopy(dict(model.named_buffers()))
        expected.append(_gradients(job, job.method, model, own, own_rows, measured))
        for name, buffer in model.named_buffers():
            if not buffer.equal(before[name]):
                return f"training changes {name!r}, of which all clients share one"
    model, loss = training_copy(job.model), StackedLoss(job.method, stack)
    both = rows[torch.tensor(TRIAL_SAMPLES)]
    found = _gradients(job, loss, model, stack, both, Weighted(measured, shares))
    for k, gradients in enumerate(expected):
        largest = max(gradient.norm() for gradient in gradients.values())
        for name, gradient in gradients.items():
            gap = (found[name][k] - gradient).norm()
            if not gap <= RELATIVE * gradient.norm() + ABSOLUTE * largest:
                return f"{name!r} has other gradients than where a client is alone"
    return ""


def _two_clients(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trained parameters of a model and, beside each, values nearby: (2, …)."""
    rng, stack = torch.Generator().manual_seed(0), {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            noise = torch.randn(value.shape, generator=rng).to(value.device)
            near = value + 0.1 * (value.abs().mean() + 0.1) * noise
            stack[name] = nn.Parameter(torch.stack([value, near]).detach())
    return stack


def _gradients(
    job: Job, method, model: nn.Module, parameters: dict, rows: Tensor, measured
) -> Tensors:
    """Gradients of a loss at the samples of some rows of the store, by name."""
    weights = {n: v.detach() for n, v in job.model.state_dict().items()}
    received, stream = Broadcast(1, weights), Stream(job.seed, "method")
    context = ClientContext(None, received, job.training, measured, stream)
    losses = method.loss(model, _batch(job.federation.store, rows), context).sum()
    found = torch.autograd.grad(losses, [*parameters.values()], allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(parameters.items(), found, strict=True)
    }


def _batch(store: Store, rows: Tensor) -> Batch:
    """The samples of some rows of the store, (B,) or (K, B)."""
    x, y = store.inputs(rows.flatten()), store.targets(rows.flatten())
    return Batch(x.unflatten(0, rows.shape), y.unflatten(0, rows.shape), rows, epoch=0)


def pays(job: Job) -> bool:
    """Whether stacking is worth it: on a GPU, and on a CPU without convolutions.

    There, all clients' convolutions at once are no faster than one after the other.
    """
    is_gpu = job.federation.store.device.type != "cpu"
    layers = [m for m in job.model.modules() if isinstance(m, nn.Conv2d)]
    return is_gpu or not any(m.weight.requires_grad for m in layers)


def _owner(kind: type, name: str) -> type:
    return next(parent for parent in kind.__mro__ if name in vars(parent))


class Plan:
    """Who sees which samples at which step: every client its own sequence of batches.

    ``plans``: for each client of ``ids`` its batches, positions among its own samples.
    ``rows`` and ``share`` (T, K, B): positions in the store, and what each counts;
    ``active`` and ``width`` (T,): clients that still train, most samples of a batch.
    Clients must come with the most steps first.
    """

    def __init__(
        self,
        plans: Sequence[Sequence[np.ndarray]],
        ids: Sequence[int],
        federation: Federation,
    ):
        counts = np.zeros((len(plans), len(plans[0]), 1), dtype=np.int64)
        for k, plan in enumerate(plans):
            counts[k, : len(plan), 0] = [len(index) for index in plan]
        is_seen = np.arange(counts.max()) < counts
        own = np.zeros(is_seen.shape, dtype=np.int64)  # what fills up counts 0
        own[is_seen] = np.concatenate([index for plan in plans for index in plan])
        first = federation.starts[ids] + federation.num_val[ids]
        rows = federation.rows[own + first[:, None, None]].swapaxes(0, 1)
        device = federation.store.device
        share = (is_seen / np.maximum(counts, 1)).astype(np.float32)
        steps = (counts > 0).sum((1, 2))
        self.active = (counts > 0).sum((0, 2)).tolist()
        self.width = counts.max((0, 2)).tolist()
        self.rows = torch.from_numpy(rows).to(device)
        self.share = torch.from_numpy(share.swapaxes(0, 1)).to(device)
        self.steps = torch.from_numpy(steps).to(device)

    def batch(self, step: int, store: Store) -> tuple[Batch, Tensor]:
        """The batch of a step, x and y (K, B, …), and its samples' shares, (K, B)."""
        where = (step, slice(self.active[step]), slice(self.width[step]))
        return _batch(store, self.rows[where]), self.share[where]

    def means(self, logged: list[Tensor]) -> list[float]:
        """Mean over each client's own steps, from values (active,) per step."""
        total = torch.zeros(len(self.steps), device=self.steps.device)
        for values in logged:
            total[: len(values)] += values
        return (total / self.steps).tolist()


class StackedEngine(LocalEngine):
    """All clients of a round train at once, each on its own sequence of batches.

    The same results as :class:`LocalEngine`, to rounding. Everything but training is
    inherited from it.

    workers: intra-op threads; one by default, because several wait for each other as
             soon as another program needs a core.
    """

    is_exact = False

    def __init__(self, workers: int | None = None):
        super().__init__(workers)
        self.threads = workers or 1

    def open(self, job: Job) -> None:
        """Take on a job; ValueError gives the reason if it cannot be stacked."""
        if reason := refusal(job):
            raise ValueError(
                f"the stacked engine cannot train these clients as one: {reason}; use "
                "engine='local', or engine='auto' to stack where that is possible"
            )
        super().open(job)
        self.model = training_copy(job.model)
        hooks = ("before_training", "after_training")
        self.speaks = any(map(job.method.overrides, hooks))
        self.trained = [n for n, p in job.model.named_parameters() if p.requires_grad]
        room = STACK_BYTES[job.federation.store.device.type]
        one = sum(job.model.get_parameter(name).nbytes for name in self.trained)
        self.at_once = max(1, room // one)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, Answer]:
        """Train every client that has a broadcast, as many at once as there is room."""
        answers: dict[int, Answer] = {}
        ids = self.job.large_first(broadcasts)  # most steps first
        nothing = PrivateState()
        own = {i: private.get(i, nothing) for i in ids}
        for start in range(0, len(ids), self.at_once):
            some = ids[start : start + self.at_once]
            answers |= self._together(some, broadcasts[ids[0]], own)
        return answers

    def _together(
        self, ids: list[int], told: Broadcast, own: dict[int, PrivateState]
    ) -> dict[int, Answer]:
        """Visits to some clients: each arrives alone, all train, each reports alone."""
        job, method = self.job, self.job.method

        def before_training(learner: Learner, i: int) -> tuple[ClientContext, Tensors]:
            """What one client measures before training."""
            job.load(learner, told.weights, own[i].weights)
            context = job.context(told, i, own[i].memory, self.caches.of(i))
            return context, copies(method.before_training(learner.eval(), context))

        def after_training(learner: Learner, i: int) -> tuple[ClientContext, Tensors]:
            """What one client says besides its weights."""
            (context, said), (weights, state, _) = arrived[i], trained[i]
            job.load(learner, weights, state)
            return context, said | copies(
                method.after_training(learner.eval(), context)
            )

        def answer(i: int) -> Answer:
            """One client's message, and what it keeps."""
            weights, state, metrics = trained[i]
            refuse_divergence(metrics["loss"])
            kept, upload = own[i].memory, {}
            if self.speaks:
                context, upload = said[i]
                kept, metrics = copies(context.memory), metrics | context.logged_means()
            kept = PrivateState(state, kept)
            kept.refuse_nan()
            size = int(job.federation.sizes[i])
            return job.protect(Message(i, size, weights, upload, metrics), told), kept

        arrived = self._each(before_training, ids) if self.speaks else {}
        answers = {i: a for i, a in arrived.items() if isinstance(a, Failure)}
        there = [i for i in ids if i not in answers]
        trained = self._train(there, told, own) if there else {}
        said = self._each(after_training, there) if self.speaks else {}
        for i in there:
            try:
                answers[i] = said[i] if isinstance(said.get(i), Failure) else answer(i)
            except Exception as error:
                answers[i] = Failure.of(error)
        return answers

    def _train(
        self, ids: list[int], told: Broadcast, own: dict[int, PrivateState]
    ) -> dict[int, tuple[Tensors, Tensors, dict[str, float]]]:
        """Weights, private state and mean logged values of every client."""
        job, model, settings = self.job, self.model, self.job.training
        plans = [self._batches(told.round, i) for i in ids]
        plan = Plan(plans, ids, job.federation)
        context = ClientContext(None, told, settings, None, Stream(job.seed, "method"))
        check = stop_check()
        with tf32(job), intra_op_threads(self.threads):
            stack = {name: self._rows(name, ids, told, own) for name in self.trained}
            rows = {name: parameter.data for name, parameter in stack.items()}
            optimiser = job.method.optimiser(list(stack.items()), settings)
            loss = StackedLoss(job.method, stack)
            for step, active in enumerate(plan.active):
                check()
                narrow(stack, optimiser, active)
                batch, share = plan.batch(step, job.federation.store)
                context.task = Weighted(task(job.federation.data.task), share)
                take_step(loss, model, optimiser, batch, context, context.stream)
            place(model, dict.fromkeys(stack))
            del stack, loss, optimiser  # gradients and momentum, no longer needed
            for name, value in told.weights.items():
                if name not in rows:
                    rows[name] = value.expand(len(ids), *value.shape)
            views = {name: rows[name].unbind() for name in told.weights}
        means = {name: plan.means(values) for name, values in context.logged.items()}
        return {
            i: (
                {name: view[k] for name, view in views.items()},
                {name: rows[name][k].clone() for name in job.private_names},
                {name: values[k] for name, values in means.items()},
            )
            for k, i in enumerate(ids)
        }

    def _batches(self, round: int, client_id: int) -> list[np.ndarray]:
        """The client's own sequence of batches: positions among its samples."""
        order = numpy_stream(self.job.seed, "order", round, client_id)
        training = self.job.training
        num = int(self.job.federation.sizes[client_id])
        found = positions(num, training.batch_size, training.epochs, order)
        return [index for index, _ in found]

    def _rows(self, name: str, ids, told: Broadcast, own) -> nn.Parameter:
        """One parameter of all clients as they start, (K, …)."""
        if name in told.weights:
            start = told.weights[name]
            rows = start.expand(len(ids), *start.shape)
        else:
            initial = self.job.initial_private[name]
            rows = torch.stack([own[i].weights.get(name, initial) for i in ids])
        parameter = nn.Parameter(rows.clone(memory_format=torch.contiguous_format))
        parameter.is_stack = True
        return parameter


def narrow(stack: dict[str, nn.Parameter], optimiser, active: int) -> None:
    """Go on with the first ``active`` clients; the others' rows stay as they are."""
    for parameter in stack.values():
        if len(parameter) > active:
            parameter.data = parameter.data[:active]
            state = optimiser.state[parameter]
            for key, value in state.items():
                if isinstance(value, Tensor) and value.ndim:
                    state[key] = value[:active]
