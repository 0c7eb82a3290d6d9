"""Train all clients of a round at once: their parameters lie in one stack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.cancellation import stop_check
from ..core.messages import Broadcast, Message, Stack, Tensors, copies
from ..core.metrics import task
from ..core.rng import Stream, numpy_stream
from ..federation.federation import Batch, Federation, Store, positions
from ..methods import FedAvg
from ..models import Dropout
from ..training.local import (
    ClientContext,
    Learner,
    PrivateState,
    frozen_modules,
    refuse_divergence,
    take_step,
)
from .contract import Answer, Failure, Job
from .forms import Batched, PerClient, Vectorised, form_of
from .local import LocalEngine, intra_op_threads, tf32

STACK_BYTES = {"cpu": 500_000_000, "cuda": 8_000_000_000}
"""What the parameters of the clients that train together may hold."""


def refusal(job: Job) -> str:
    """Why clients of this job cannot be trained in one stack; "" if they can."""
    try:
        _form(job)
    except ValueError as error:
        return str(error)
    return ""


def _form(job: Job) -> Batched | Vectorised:
    """How the clients' losses are found; ValueError with the reason if they cannot."""
    if reason := _obstacle(job):
        raise ValueError(reason)
    return form_of(job)


def _obstacle(job: Job) -> str:
    """What the job's settings show, before anything is tried; "" if nothing.

    A class that overrides the loss must say itself that it is ``stackable``: that all
    the loss knows of a client is its parameters' values, the batch's x and y, what
    every client is told, and ``context.task.loss``, the only mean over samples.
    """
    kind = type(job.method)
    if not kind.stackable:
        return f"{kind.__name__} says that its loss is not stackable"
    if _owner(kind, "loss") not in _owner(kind, "stackable").__mro__:
        return f"{kind.__name__} overrides loss and does not say that it is stackable"
    for hook in ("optimiser", "client_broadcast"):
        if getattr(kind, hook) is not getattr(FedAvg, hook):
            return f"{kind.__name__} overrides {hook}, which is one client's own"
    if job.training.augment is not None:
        return f"{job.training.augment!r} acts on the batch of one client"
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
        """What is seen at a step, x and y (K·B, …), and what it counts, (K, B)."""
        where = (step, slice(self.active[step]), slice(self.width[step]))
        rows = self.rows[where].flatten()
        seen = Batch(store.pictures(rows), store.targets(rows), rows, epoch=0)
        return seen, self.share[where]

    def means(self, logged: list[Tensor]) -> list[float]:
        """Mean over each client's own steps, from values (active,) per step."""
        total = torch.zeros(len(self.steps), device=self.steps.device)
        for values in logged:
            total[: len(values)] += values
        return (total / self.steps).tolist()


class StackedEngine(LocalEngine):
    """All clients of a round train at once, each on its own sequence of batches.

    The same results as :class:`LocalEngine`, to rounding; how, says
    :func:`~fedlab_support.engines.forms.form_of`. All but training is as there.

    ``workers``: threads of each operation; one by default, since several wait for each
    other as soon as somebody else needs a core.
    """

    is_exact = False

    def __init__(self, workers: int | None = None):
        super().__init__(workers)
        self.threads = workers or 1

    def open(self, job: Job) -> None:
        """Take on a job; ValueError says what does not fit."""
        try:
            self.form = _form(job)
        except ValueError as error:
            raise ValueError(
                f"the stacked engine cannot train these clients as one: {error}; use "
                "engine='local', or engine='auto' to stack where that is possible"
            ) from None
        super().open(job)
        kind, base = type(job.method), FedAvg
        if job.training.compile:
            self.form.model.compile()
        self.speaks = (
            kind.before_training is not base.before_training
            or kind.after_training is not base.after_training
        )
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
        job, form, settings = self.job, self.form, self.job.training
        plans = [self._batches(told.round, i) for i in ids]
        plan = Plan(plans, ids, job.federation)
        context = ClientContext(None, told, settings, None, Stream(job.seed, "method"))
        check = stop_check()
        with tf32(job), intra_op_threads(self.threads):
            stack = {name: self._rows(name, ids, told, own) for name in self.trained}
            rows = {name: parameter.data for name, parameter in stack.items()}
            optimiser = job.method.optimiser(list(stack.items()), settings)
            form.hold(stack)
            for step, active in enumerate(plan.active):
                check()
                narrow(stack, optimiser, active)
                batch, share = plan.batch(step, job.federation.store)
                context.task = PerClient(task(job.federation.data.task), share)
                take_step(form, form.model, optimiser, batch, context, context.stream)
            form.hold(dict.fromkeys(stack))
            del stack, optimiser  # gradients and momentum are of no use any more
            for name, value in told.weights.items():
                if name not in rows:
                    rows[name] = value.expand(len(ids), *value.shape)
            shared = {name: rows[name] for name in told.weights}
            weights = Stack(shared, len(ids)).rows()
        means = {name: plan.means(values) for name, values in context.logged.items()}
        return {
            i: (
                weights[k],
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
