"""Local training: the only training loop, and one client's part of a round."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..core.messages import Message, Tensors, copies
from ..core.rng import Stream, layer_noise, numpy_stream
from ..federation.samples import Batch
from .context import ClientContext, PrivateState
from .learner import Learner
from .settings import LocalTraining


def train_locally(method, learner: Learner, context: ClientContext, seed: int) -> None:
    """Train the model in place on the client's data: the only training loop.

    Every visit has a new optimiser. A last batch of one sample is skipped if the model
    trains BatchNorm layers, which need two. Raises FloatingPointError if the loss is
    not finite, ValueError if the client has too few samples for a step, and
    TimeoutError past the deadline.
    """
    where = (context.received.round, context.client.id)
    order = numpy_stream(seed, "order", *where)
    noise = Stream(seed, "layers", *where)
    optimiser = method.optimiser(learner.trained, context.training)
    learner.train()
    size, epochs = context.training.batch_size, context.training.epochs
    samples, smallest = context.client.train, learner.smallest_batch
    with layer_noise(noise):
        batches = samples.batches(size, epochs, order, smallest)
        for batch in _augmented(batches, learner.model, context, seed):
            take_step(method, learner.model, optimiser, batch, context, noise)
            context.check_deadline()
    if "loss" not in context.logged:
        raise ValueError(
            f"client {context.client.id} has {len(samples)} samples and made no step; "
            "BatchNorm needs batches of at least two"
        )
    for _, parameter in learner.trained:
        parameter.grad = None  # as large as the model, and no longer needed
    refuse_divergence(sum(map(float, context.logged["loss"])))


def _augmented(
    batches: Iterable[Batch], model: nn.Module, context: ClientContext, seed: int
) -> Iterator[Batch]:
    """The batches after augmentation, each augmented when its step begins."""
    if (augment := context.training.augment) is None:
        yield from batches
        return
    rng = numpy_stream(seed, "augment", context.received.round, context.client.id)
    kept = context.cache
    for batch in batches:
        context.cache = {}  # cached rows belong to the images before augmentation
        found = augment.apply(model, batch, context, rng)
        if (found.x.dtype, found.x.shape) != (batch.x.dtype, batch.x.shape):
            raise TypeError(
                f"{type(augment).__name__}.apply must keep the type and shape of x, "
                f"{batch.x.dtype} {tuple(batch.x.shape)}; found {found.x.dtype} "
                f"{tuple(found.x.shape)}"
            )
        yield found
    context.cache = kept


def refuse_divergence(loss: float) -> None:
    """Raise FloatingPointError unless the loss of a visit is finite."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"local loss became {loss}; lower the learning rate")


def take_step(
    method, model, optimiser, batch: Batch, context: ClientContext, noise
) -> None:
    """One step of the optimiser, which may evaluate the closure several times.

    Only the first evaluation updates buffers (running statistics) and the client's
    memory, and logs. Later evaluations replay the same noise from the same memory and
    leave both as they were after the first. So an optimiser that evaluates the loss
    twice at the same point equals one that evaluates it once.
    A loss of shape (K,) belongs to K stacked clients, whose parameters are independent.
    """
    streams, memory = (noise, context.stream), dict(context.memory)
    before = [stream.mark() for stream in streams]
    context.is_replaying = False

    def closure() -> Tensor:
        """Compute loss and gradients at the current weights."""
        settled = None
        if context.is_replaying:
            settled = [buffer.clone() for buffer in model.buffers()], context.memory
            context.memory = dict(memory)
            for stream, mark in zip(streams, before, strict=True):
                stream.rewind(mark)
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        with _autocast(context.training, batch.x):
            loss = method.loss(model, batch, context)
        is_stack = context.client is None
        if not isinstance(loss, Tensor) or (loss.ndim and not is_stack):
            shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
            raise TypeError(
                f"{method.label}.loss must return a scalar tensor, found "
                f"{type(loss).__name__}{shape}"
            )
        (loss.sum() if loss.ndim else loss).backward()
        if not context.is_replaying:
            context.logged["loss"].append(loss.detach())
        if settled is not None:
            buffers, context.memory = settled
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
        context.is_replaying = True
        return loss.detach()

    optimiser.step(closure)
    context.is_replaying = False


def _autocast(training: LocalTraining, x: Tensor):
    if training.precision != "bf16":
        return nullcontext()
    return torch.autocast(x.device.type, dtype=torch.bfloat16)


def copied_result(
    method, hook: str, learner: Learner, context: ClientContext
) -> Tensors:
    """Copies of the tensors that a hook returns for a model in evaluation mode."""
    found = getattr(method, hook)(learner.eval(), context)
    return copies(found, f"the result of {method.label}.{hook}")


def train_client(
    method, learner: Learner, context: ClientContext, seed: int, private_names
) -> tuple[Message, PrivateState]:
    """One client's part of a round: before_training, local training, after_training.

    The learner holds the weights as received. Returns the message and the client's new
    private state. Any exception means that the visit failed and changes nothing.
    """
    upload = copied_result(method, "before_training", learner, context)
    train_locally(method, learner, context, seed)
    upload |= copied_result(method, "after_training", learner, context)
    kept = PrivateState.after_visit(learner.copies(private_names), context.memory)
    message = Message(
        client=context.client.id,
        num_examples=len(context.client.train),
        weights=learner.copies(context.received.weights),
        upload=upload,
        metrics=context.logged_means(),
    )
    return message, kept
