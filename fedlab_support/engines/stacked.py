"""Train all clients of a round at once: one model, vectorised over their parameters.

A stack holds a parameter of all K clients as one tensor (K, …). ``torch.func.vmap``
evaluates the loss of every client on its own batch, and one backward pass through the
sum gives each client its own gradient.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from ..core.cancellation import stop_check
from ..core.messages import Broadcast, Message, Tensors, unwritten
from ..core.rng import Stream, numpy_stream
from ..federation.samples import positions
from ..training.context import ClientContext, PrivateState
from ..training.learner import Learner
from ..training.loop import copied_result, refuse_divergence, take_step
from .batch_plan import BatchPlan
from .contract import Failure, Job, TrainingResult
from .local import LocalEngine, is_on_cpu, received
from .process import intra_op_threads, tf32
from .stackable import refusal
from .vectorised import (
    StackedLoss,
    WeightedTask,
    keep_first,
    set_parameters,
    training_copy,
)

STACK_BYTES = {"cpu": 500_000_000, "gpu": 8_000_000_000}
"""Most bytes of parameters that are trained in one stack."""


class StackedEngine(LocalEngine):
    """Train all clients of a round at once, each on its own sequence of batches.

    Gives the results of ``LocalEngine`` up to rounding, and inherits everything
    but training from it.

    workers: intra-op threads; one by default, because several threads wait for each
             other as soon as another program needs a core.
    """

    is_exact = False

    def __init__(self, workers: int | None = None):
        super().__init__(workers)
        self.threads = workers or 1

    def open(self, job: Job) -> None:
        """Prepare for a job; ValueError gives the reason if it cannot be stacked."""
        if reason := refusal(job):
            raise ValueError(
                f"the stacked engine cannot train these clients as one: {reason}; use "
                "engine='local', or engine='auto' to stack where that is possible"
            )
        super().open(job)
        self.model = training_copy(job.model)
        hooks = ("before_training", "after_training")
        self.has_hooks = any(map(job.method.overrides, hooks))
        trained = {n: p for n, p in job.model.named_parameters() if p.requires_grad}
        self.trained = list(trained)
        limit = STACK_BYTES["cpu" if is_on_cpu(job.federation) else "gpu"]
        client_bytes = sum(parameter.nbytes for parameter in trained.values())
        self.stack_size = max(1, limit // client_bytes)

    def train(
        self, broadcasts: dict[int, Broadcast], private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Train every client that has a broadcast, in stacks of at most STACK_BYTES."""
        results: dict[int, TrainingResult] = {}
        ids = self.job.large_first(broadcasts)  # most steps first
        empty = PrivateState()
        private = {i: private.get(i, empty) for i in ids}
        with unwritten("what clients receive", received(broadcasts)):
            for start in range(0, len(ids), self.stack_size):
                stacked = ids[start : start + self.stack_size]
                results |= self._train_stack(stacked, broadcasts[ids[0]], private)
        return results

    def _train_stack(
        self, ids: list[int], broadcast: Broadcast, private: dict[int, PrivateState]
    ) -> dict[int, TrainingResult]:
        """Call the hooks client by client, before and after training the stack."""
        job, method = self.job, self.job.method

        def before_training(learner: Learner, i: int) -> tuple[ClientContext, Tensors]:
            """The context of one client, and what its hook uploads."""
            context = self._context(learner, broadcast, i, private[i])
            return context, copied_result(method, "before_training", learner, context)

        def after_training(learner: Learner, i: int) -> tuple[ClientContext, Tensors]:
            """The same context, and what both hooks upload."""
            (context, upload), (weights, state, _) = before[i], trained[i]
            job.load(learner, weights, state)
            more = copied_result(method, "after_training", learner, context)
            return context, upload | more

        def result(i: int) -> TrainingResult:
            """The message of one client, and its new private state."""
            weights, state, metrics = trained[i]
            refuse_divergence(metrics["loss"])
            memory, upload = private[i].memory, {}
            if self.has_hooks:
                context, upload = after[i]
                memory = context.memory
                metrics = metrics | context.logged_means()
            kept = PrivateState.after_visit(state, memory)
            size = int(job.federation.sizes[i])
            message = Message(i, size, weights, upload, metrics)
            return job.protect(message, broadcast), kept

        before = self._each(before_training, ids) if self.has_hooks else {}
        results = {i: r for i, r in before.items() if isinstance(r, Failure)}
        ready = [i for i in ids if i not in results]
        trained = self._train(ready, broadcast, private) if ready else {}
        after = self._each(after_training, ready) if self.has_hooks else {}
        for i in ready:
            try:
                results[i] = (
                    after[i] if isinstance(after.get(i), Failure) else result(i)
                )
            except Exception as error:
                results[i] = Failure.of(error)
        return results

    def _train(
        self, ids: list[int], broadcast: Broadcast, private: dict[int, PrivateState]
    ) -> dict[int, tuple[Tensors, Tensors, dict[str, float]]]:
        """Weights, private state and mean logged values of every client."""
        job, model, store = self.job, self.model, self.job.federation.store
        settings = job.training.at(broadcast.round)
        batches = [self._batches(broadcast.round, i) for i in ids]
        plan = BatchPlan(batches, ids, job.federation)
        stream = Stream(job.seed, "method")
        context = ClientContext(None, broadcast, settings, None, stream)
        check = stop_check()
        with tf32(job), intra_op_threads(self.threads):
            stack = {
                name: self._start(name, ids, broadcast, private)
                for name in self.trained
            }
            rows = {name: parameter.data for name, parameter in stack.items()}
            optimiser = job.method.optimiser(list(stack.items()), settings)
            loss = StackedLoss(job.method, stack)
            for step, num_active in enumerate(plan.num_active):
                check()
                keep_first(stack, optimiser, num_active)
                batch, share = plan.batch(step, store)
                context.task = WeightedTask(store.task, share)
                take_step(loss, model, optimiser, batch, context, stream)
            set_parameters(model, dict.fromkeys(stack))
            del stack, loss, optimiser  # frees gradients and momentum
            for name, value in broadcast.weights.items():
                if name not in rows:
                    rows[name] = value.expand(len(ids), *value.shape)
            views = {name: rows[name].unbind() for name in broadcast.weights}
        means = {name: plan.means(values) for name, values in context.logged.items()}
        return {
            i: (
                {name: view[k] for name, view in views.items()},
                {name: rows[name][k].clone() for name in job.initial_private},
                {name: values[k] for name, values in means.items()},
            )
            for k, i in enumerate(ids)
        }

    def _batches(self, round: int, client_id: int) -> list[np.ndarray]:
        """The client's batches in order: positions among its own samples."""
        order = numpy_stream(self.job.seed, "order", round, client_id)
        training = self.job.training
        num = int(self.job.federation.sizes[client_id])
        batches = positions(num, training.batch_size, training.epochs, order)
        return [index for index, _ in batches]

    def _start(self, name: str, ids, broadcast: Broadcast, private) -> nn.Parameter:
        """One parameter of all clients before training, (K, …)."""
        if name in broadcast.weights:
            start = broadcast.weights[name]
            rows = start.expand(len(ids), *start.shape)
        else:
            initial = self.job.initial_private[name]
            rows = torch.stack([private[i].weights.get(name, initial) for i in ids])
        parameter = nn.Parameter(rows.clone(memory_format=torch.contiguous_format))
        parameter.is_stack = True
        return parameter
