"""Local training: the settings, what a method sees of a client, and the only loop."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD, Adam, Optimizer

from .federation import Batch, Client
from .messages import Broadcast, Message, Tensors, copies, refuse_nan
from .metrics import Classification
from .streams import layer_noise, numpy_stream, torch_stream


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains; the same for every method that is compared.

    Raises ValueError for a value out of its range.
    """

    lr: float = 0.05  # learning rate, ≥ 0; 0 leaves the weights as received
    epochs: int = 1  # passes over the client's data per round, ≥ 1
    batch_size: int = 32  # samples per step, ≥ 1
    optimiser: str = "sgd"  # or "adam"
    momentum: float = 0.0  # of SGD, in [0, 1); starts at zero in every visit
    weight_decay: float = 0.0  # ≥ 0
    linear_weight_decay: float | None = None  # on linear layers; None: weight_decay

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
        if self.optimiser not in ("sgd", "adam"):
            raise ValueError(
                f"optimiser must be 'sgd' or 'adam', found {self.optimiser!r}; a "
                "method brings its own through its hook `optimiser`"
            )


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise ValueError(f"{name} must lie in [{low}, {high}), found {value!r}")


def build_optimiser(named_params, training: LocalTraining) -> Optimizer:
    """A fresh optimiser as ``training`` asks for it.

    ``named_params``: pairs of name and parameter. ``linear_weight_decay`` acts on the
    matrices of linear layers: the parameters with two dimensions.
    """
    linear_decay = training.linear_weight_decay
    if linear_decay is None:
        linear_decay = training.weight_decay
    groups: dict[float, list[nn.Parameter]] = {}
    for _, parameter in named_params:
        decay = linear_decay if parameter.ndim == 2 else training.weight_decay
        groups.setdefault(decay, []).append(parameter)
    settings = [{"params": p, "weight_decay": decay} for decay, p in groups.items()]
    if training.optimiser == "adam":
        return Adam(settings, lr=training.lr, fused=True)
    return SGD(settings, lr=training.lr, momentum=training.momentum, fused=True)


@dataclass
class PrivateState:
    """What one client keeps between visits; it never travels.

    ``weights``: the part of the model's state that the method calls private;
    ``memory``: whatever else its hooks keep, as named tensors.
    """

    weights: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)


@dataclass(eq=False)
class Visit:
    """What a method may look at on one client, and nothing more.

    - ``client``: its data; ``received``: the broadcast; ``training``: the settings.
    - ``memory``: private, changed in place, kept only if the visit succeeds (also when
      the server then refuses the message: on a network the client would not know).
    - ``cache``: recomputable tensors by ``batch.index``; may vanish at any time.
    - ``task``: ``task.loss(output, y)`` and ``task.score(output, y)``.
    - ``rng``: the method's own stream of random numbers for this round and client.
    - ``deadline``: when ``time.monotonic()`` passes it, training stops; None: never.
    """

    client: Client
    received: Broadcast
    training: LocalTraining
    task: Classification
    rng: torch.Generator
    memory: Tensors = field(default_factory=dict)
    cache: dict = field(default_factory=dict)
    deadline: float | None = None
    logged: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)
    is_replaying: bool = field(default=False, repr=False)

    def log(self, name: str, value: Tensor) -> None:
        """Note a part of the loss; the history gets its mean over the steps."""
        if not self.is_replaying:
            self.logged.setdefault(name, []).append(value.detach())

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


@torch.no_grad()
def load_weights(model: nn.Module, *trees: Tensors) -> None:
    """Write named tensors into the model's state, in place; later trees win."""
    state = model.state_dict()
    for tree in trees:
        for name, value in tree.items():
            state[name].copy_(value)


def copy_weights(model: nn.Module, names) -> Tensors:
    """Copies of the named parts of the model's state."""
    state = model.state_dict()
    return {n: state[n].clone(memory_format=torch.contiguous_format) for n in names}


def train_locally(method, model: nn.Module, visit: Visit, seed: int) -> None:
    """Train ``model`` in place on the client's data: the only training loop.

    Optimisers are new at every visit. A trailing batch of one sample is left out when
    the model has BatchNorm, which needs two. Raises FloatingPointError when the loss
    is not finite, ValueError when the client has too few samples for one batch.
    """
    where = (visit.received.round, visit.client.id)
    order = numpy_stream(seed, "order", *where)
    noise = torch_stream(seed, "layers", *where)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimiser = method.optimiser(trained, visit.training)
    model.train()
    for module in frozen_modules(model):
        module.train(False)
    has_batchnorm = any(
        isinstance(m, _BatchNorm) and m.training for m in model.modules()
    )
    size, epochs = visit.training.batch_size, visit.training.epochs
    smallest = 2 if has_batchnorm else 1
    with layer_noise(noise):
        for batch in visit.client.train.batches(size, epochs, order, smallest):
            visit.check_deadline()
            take_step(method, model, optimiser, batch, visit, noise)
    if "loss" not in visit.logged:
        raise ValueError(
            f"client {visit.client.id} has {len(visit.client.train)} samples and made "
            "no step; BatchNorm needs batches of at least two"
        )
    if not math.isfinite(loss := visit.logged_means()["loss"]):
        raise FloatingPointError(f"local loss became {loss}; lower the learning rate")


def take_step(method, model, optimiser, batch: Batch, visit: Visit, noise) -> None:
    """One step of the optimiser, which may ask for the loss several times.

    Only the first call of the closure updates buffers (running statistics) and logs;
    later calls replay the same noise and put the buffers back, so that an optimiser
    that looks at the loss twice, and moves nowhere between, equals one that looks once.
    """
    streams = (noise, visit.rng)
    before = [stream.get_state() for stream in streams]
    visit.is_replaying = False

    def closure() -> Tensor:
        """Gradients and loss at the current weights."""
        settled = None
        if visit.is_replaying:
            settled = [buffer.clone() for buffer in model.buffers()]
            for stream, state in zip(streams, before, strict=True):
                stream.set_state(state)
        optimiser.zero_grad()
        loss = method.loss(model, batch, visit)
        loss.backward()
        visit.log("loss", loss)
        if settled is not None:
            for buffer, value in zip(model.buffers(), settled, strict=True):
                buffer.copy_(value)
        visit.is_replaying = True
        return loss.detach()

    optimiser.step(closure)
    visit.is_replaying = False


def visit_client(
    method, model: nn.Module, visit: Visit, seed: int, private_names
) -> tuple[Message, PrivateState]:
    """One client's part of a round: arrive, train, report.

    ``model`` holds the weights as received. Returns what the client says and what it
    keeps. Any exception means that the visit failed and leaves no trace.
    """
    model.eval()
    report = method.arrive(model, visit)
    train_locally(method, model, visit, seed)
    model.eval()
    report = {**report, **method.report(model, visit)}
    kept = PrivateState(copy_weights(model, private_names), copies(visit.memory))
    refuse_nan({**kept.weights, **kept.memory})
    message = Message(
        client=visit.client.id,
        num_examples=len(visit.client.train),
        weights=copy_weights(model, visit.received.weights),
        report=copies(report),
        metrics=visit.logged_means(),
    )
    return message, kept
