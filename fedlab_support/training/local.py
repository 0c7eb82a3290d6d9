"""Local training: the settings, what a method sees of a client, and the only loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Adam, AdamW, Optimizer

from ..core.checks import expect, expect_flags
from ..core.messages import Broadcast, Message, Tensors, copies, refuse_nan
from ..core.metrics import Task
from ..core.rng import Stream, layer_noise, numpy_stream
from ..federation.federation import Client
from ..federation.samples import Batch, Samples
from .optimisers import FusedSGD

PRECISIONS = ("float32", "tf32", "bf16")
_ADAPTIVE = {"adam": Adam, "adamw": AdamW}


@dataclass(frozen=True)
class Augmentation:
    """What clients do to their pictures, features or labels while they train.

    Independent of the method: given as ``LocalTraining(augment=…)``. Its layers lie
    behind stages, ahead of those that the method added there. Each step draws once,
    before the optimiser first asks for the loss, so that every pass of the step sees
    the same; what is drawn acts in training only. This base class changes nothing.
    """

    @property
    def mixes_labels(self) -> bool:
        """Whether labels become class probabilities, float (B, M)."""
        return False

    def check(self, method) -> None:
        """Raise ValueError when ``method`` cannot train with it."""
        if self.mixes_labels and method.needs_classes:
            raise ValueError(
                f"{method!r} needs the one class of every picture, and {self!r} mixes "
                "labels; take an augmentation that leaves labels alone, as MixStyle() "
                "does, or switch off what needs classes in the method"
            )

    def adapt(self, model: nn.Module) -> nn.Module:
        """The network with its layers; called after the method's ``adapt``."""
        return model

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """The batch to train on in this step; its layers learn here what to do.

        ``rng``: the stream (seed, augment, round, client); neutral settings draw
        nothing from it.
        """
        return batch


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains; the same for every method that is compared.

    Raises ValueError for a value out of its range.
    """

    lr: float = 0.05  # learning rate, ≥ 0; 0 leaves the weights as received
    epochs: int = 1  # passes over the client's data per round, ≥ 1
    batch_size: int = 32  # samples per step, ≥ 1
    optimiser: str = "sgd"  # or "adam", or "adamw", whose weights decay on their own
    momentum: float = 0.0  # of SGD, in [0, 1); starts at zero in every visit
    weight_decay: float = 0.0  # ≥ 0
    linear_weight_decay: float | None = None  # on linear layers; None: weight_decay
    precision: str = "float32"  # or "tf32" (GPU), or "bf16": steps under autocast
    compile: bool = False  # True: networks go through torch.compile
    augment: Augmentation | None = None  # as in Mixup(); None: data as they are

    def __post_init__(self) -> None:
        _between("lr", self.lr, 0, math.inf)
        _between("momentum", self.momentum, 0, 1)
        _between("weight_decay", self.weight_decay, 0, math.inf)
        if self.linear_weight_decay is not None:
            _between("linear_weight_decay", self.linear_weight_decay, 0, math.inf)
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a whole number ≥ 1, found {value!r}")
        expect(self, "precision", f"one of {PRECISIONS}", self.precision in PRECISIONS)
        expect_flags(self)
        is_right = isinstance(self.augment, Augmentation | None)
        expect(self, "augment", "None or an augmentation, as in Mixup()", is_right)
        if self.optimiser not in ("sgd", *_ADAPTIVE):
            raise ValueError(
                f"optimiser must be 'sgd', 'adam' or 'adamw', found {self.optimiser!r};"
                " a method brings its own through its hook `optimiser`"
            )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise ValueError(f"{name} must lie in [{low}, {high}), found {value!r}")


def build_optimiser(
    named_params, training: LocalTraining, rates: dict[str, float] | None = None
) -> FusedSGD | Optimizer:
    """A fresh optimiser as ``training`` asks for it.

    - ``named_params``: pairs of name and parameter. ``linear_weight_decay`` acts on the
      matrices of linear layers: the parameters with two dimensions, beside that of the
      clients in a stack of them.
    - ``rates``: names of parameters that have another learning rate, and that rate.
    """
    linear_decay = training.linear_weight_decay
    if linear_decay is None:
        linear_decay = training.weight_decay
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named_params:
        num_dims = parameter.ndim - getattr(parameter, "is_stack", False)
        decay = linear_decay if num_dims == 2 else training.weight_decay
        rate = (rates or {}).get(name, training.lr)
        groups.setdefault((decay, rate), []).append(parameter)
    settings = [
        {"params": params, "weight_decay": decay, "lr": rate}
        for (decay, rate), params in groups.items()
    ]
    if training.optimiser in _ADAPTIVE:
        return _ADAPTIVE[training.optimiser](settings, lr=training.lr, fused=True)
    return FusedSGD(settings, training.lr, training.momentum)


@dataclass
class PrivateState:
    """What one client keeps between visits; it never travels.

    ``weights``: the part of the model's state that the method calls private;
    ``memory``: whatever else its hooks keep, as named tensors.
    """

    weights: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)

    def refuse_nan(self) -> None:
        """Raise ValueError when a value is NaN or infinite; the name is given."""
        refuse_nan(self.weights)
        refuse_nan(self.memory)


@dataclass(eq=False)
class ClientContext:
    """What a method may look at on one client, and nothing more.

    - ``client``: its data; ``received``: the broadcast; ``training``: the settings.
    - ``memory``: private, changed in place, kept only if the visit succeeds (also when
      the server then refuses the message: on a network the client would not know). A
      loss puts new tensors there and leaves the old ones as they are.
    - ``cache``: recomputable tensors by ``batch.index``; may vanish at any time. With
      an augmentation every step has its own: its pictures do not come again.
    - ``task``: ``task.loss(output, y)``, ``task.score(output, y)`` and
      ``task.soft(y, num_classes)``.
    - ``stream``: the method's own random numbers for this round and client; ``rng`` is
      its generator.
    - ``deadline``: when ``time.monotonic()`` passes it, training stops; None: never.
    """

    client: Client
    received: Broadcast
    training: LocalTraining
    task: Task
    stream: Stream
    memory: Tensors = field(default_factory=dict)
    cache: dict = field(default_factory=dict)
    deadline: float | None = None
    logged: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)
    is_replaying: bool = field(default=False, repr=False)

    @property
    def rng(self) -> torch.Generator:
        """The method's own generator (CPU)."""
        return self.stream.generator

    @property
    def num_classes(self) -> int:
        """M, of the whole data set."""
        return self.client.train.store.data.num_classes

    def log(self, name: str, value: Tensor) -> None:
        """Note a part of the loss; the history gets its mean over the steps."""
        if not self.is_replaying:
            self.logged.setdefault(name, []).append(value.detach())

    @torch.no_grad()
    def mean_loss(
        self, predict: Callable[[Tensor], Tensor], samples: Samples
    ) -> Tensor:
        """Mean of the task's loss on samples of the client, a float64 scalar.

        ``predict``: from pictures to output; a model in evaluation mode. Raises
        ValueError without samples.
        """
        if not len(samples):
            raise ValueError(
                f"expected samples of client {self.client.id} to measure a loss on, "
                "found none; Federation.build(…, val=0.1) keeps a tenth back"
            )
        batches = samples.batches(self.training.batch_size)
        losses = [self.task.losses(predict(b.x), b.y) for b in batches]
        return torch.cat(losses).double().mean()

    @torch.no_grad()
    def kept(
        self, name: str, compute: Callable[[Batch], Tensor], batch: Batch | None = None
    ) -> Tensor:
        """What ``compute`` gives, row by row, for a batch or for all training samples.

        Computed once for all of them, in sequence and in batches of the training's
        size, so that the bits do not depend on when; ``cache[name]``, (N, …), keeps it.
        With an augmentation, a batch's rows are those of the batch as it is.
        """
        if batch is not None and self.training.augment is not None:
            return compute(batch)
        if name not in self.cache:
            batches = self.client.train.batches(self.training.batch_size)
            self.cache[name] = torch.cat([compute(each) for each in batches])
        return self.cache[name] if batch is None else self.cache[name][batch.index]

    def check_deadline(self) -> None:
        """Raise TimeoutError when the visit has taken too long."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise TimeoutError("the visit exceeded its deadline")

    def logged_means(self) -> dict[str, float]:
        """Mean of every logged value over the visit."""
        return {name: torch.stack(v).mean().item() for name, v in self.logged.items()}


def frozen_modules(model: nn.Module) -> list[nn.Module]:
    """Modules whose parameters are all frozen, with everything inside them.

    They stay in evaluation mode, and neither their parameters nor their buffers
    travel. A module without any parameter belongs to the one that holds it.
    """
    parameters = list(model.parameters())
    if parameters and not any(p.requires_grad for p in parameters):
        return list(model.modules())
    return list(chain.from_iterable(map(frozen_modules, model.children())))


def trained_names(model: nn.Module) -> list[str]:
    """Names of the state that training changes: all but what is frozen."""
    frozen = {id(p) for p in model.parameters() if not p.requires_grad}
    for module in frozen_modules(model):
        frozen |= {id(b) for b in module.buffers(recurse=False)}
    state = model.state_dict(keep_vars=True)
    return [name for name, value in state.items() if id(value) not in frozen]


class Learner:
    """A model, with what does not change from visit to visit.

    Hooks may change values and whole tensors of the model, but not its layers.
    """

    def __init__(self, model: nn.Module, compile: bool = False):
        if compile:
            model.compile()
        self.model, self.frozen = model, frozen_modules(model)
        self.trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
        self.smallest_batch = 2 if any(m not in self.frozen for m in norms) else 1
        self._modes = {mode: self._flags(mode) for mode in (True, False)}
        self._held, self._unsaved = {}, []  # tables of the modules, not tensors
        for prefix, module in model.named_modules(remove_duplicate=False):
            for table in (module._parameters, module._buffers):
                for key in [key for key, value in table.items() if value is not None]:
                    if key in module._non_persistent_buffers_set:
                        self._unsaved.append((table, key, table[key].clone()))
                    else:
                        name = f"{prefix}.{key}" if prefix else key
                        self._held[name] = (table, key)

    @torch.no_grad()
    def load(self, *trees: Tensors) -> None:
        """Bring the model's state to named tensors, in place; later trees win.

        Buffers that the state dict leaves out start anew.
        """
        state = {name: value for tree in trees for name, value in tree.items()}
        held = [table[key] for table, key in map(self._held.__getitem__, state)]
        if state:
            torch._foreach_copy_(held, list(state.values()))
        for table, key, initial in self._unsaved:
            table[key].copy_(initial)

    def copies(self, names) -> Tensors:
        """Copies of the named parts of the model's state."""
        found = {name: self._held[name] for name in names}
        form = torch.contiguous_format
        return {
            name: table[key].detach().clone(memory_format=form)
            for name, (table, key) in found.items()
        }

    def train(self) -> nn.Module:
        """The model, in training mode but for what is frozen."""
        return self._switch(True)

    def eval(self) -> nn.Module:
        """The model, in evaluation mode."""
        return self._switch(False)

    def _flags(self, is_training: bool) -> list[tuple[dict, bool]]:
        """The attributes of every module, and what a mode makes of its flag."""
        self.model.train(is_training)
        for module in self.frozen:
            module.train(False)
        return [(vars(module), module.training) for module in self.model.modules()]

    def _switch(self, is_training: bool) -> nn.Module:
        # noted once, and set past Module.__setattr__, which is slow
        for attributes, flag in self._modes[is_training]:
            attributes["training"] = flag
        return self.model


def train_locally(method, learner: Learner, context: ClientContext, seed: int) -> None:
    """Train the model in place on the client's data: the only training loop.

    Optimisers are new at every visit. A trailing batch of one sample is left out when
    the model has BatchNorm, which needs two. Raises FloatingPointError when the loss
    is not finite, ValueError when the client has too few samples for one batch,
    TimeoutError past the visit's deadline.
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
        parameter.grad = None  # as large as the model, and of no use any more
    refuse_divergence(sum(map(float, context.logged["loss"])))


def _augmented(
    batches: Iterable[Batch], model: nn.Module, context: ClientContext, seed: int
) -> Iterator[Batch]:
    """The batches as the augmentation makes them, each when its step begins."""
    if (augment := context.training.augment) is None:
        yield from batches
        return
    rng = numpy_stream(seed, "augment", context.received.round, context.client.id)
    kept = context.cache
    for batch in batches:
        context.cache = {}  # what is kept belongs to the pictures as they were
        yield augment.apply(model, batch, context, rng)
    context.cache = kept


def refuse_divergence(loss: float) -> None:
    """Raise FloatingPointError when a visit's losses, or their mean, are not finite."""
    if not math.isfinite(loss):
        raise FloatingPointError(f"local loss became {loss}; lower the learning rate")


def take_step(
    method, model, optimiser, batch: Batch, context: ClientContext, noise
) -> None:
    """One step of the optimiser, which may ask for the loss several times.

    Only the first call of the closure updates buffers (running statistics) and the
    client's memory, and logs; later calls replay the same noise from the same memory
    and leave both as the first did, so that an optimiser that looks at the loss twice,
    and moves nowhere between, equals one that looks once.
    The losses of several clients, (K,), are those of parameters that share nothing.
    """
    streams, memory = (noise, context.stream), dict(context.memory)
    before = [stream.mark() for stream in streams]
    context.is_replaying = False

    def closure() -> Tensor:
        """Gradients and loss at the current weights."""
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
        (loss.sum() if loss.ndim else loss).backward()
        context.log("loss", loss)
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


def train_client(
    method, learner: Learner, context: ClientContext, seed: int, private_names
) -> tuple[Message, PrivateState]:
    """One client's part of a round: arrive, train, report.

    The learner holds the weights as received. Returns what the client says and what it
    keeps. Any exception means that the visit failed and leaves no trace.
    """
    upload = method.before_training(learner.eval(), context)
    train_locally(method, learner, context, seed)
    upload = {**upload, **method.after_training(learner.eval(), context)}
    kept = PrivateState(learner.copies(private_names), copies(context.memory))
    kept.refuse_nan()
    message = Message(
        client=context.client.id,
        num_examples=len(context.client.train),
        weights=learner.copies(context.received.weights),
        upload=copies(upload),
        metrics=context.logged_means(),
    )
    return message, kept
