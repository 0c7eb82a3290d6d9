"""Build the model of a run and the server's state before round 1."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from inspect import get_annotations, isfunction, signature
from types import CodeType

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..core.messages import (
    Server,
    Tensors,
    expect_alike,
    refuse_nan,
    refuse_unnamed,
)
from ..core.naming import name_of
from ..core.rng import sequence
from ..federation.federation import Federation
from ..methods import FedAvg
from ..models.layers.noise import own_noise
from ..models.pretrained import Units
from ..training.learner import refuse_unfit, trained_names
from ..training.settings import LocalTraining

_BUILDING = threading.Lock()
"""Initial weights come from PyTorch's global generator, forked; one run at a time."""


def check_pieces(model, select, min_clients, num_clients) -> None:
    """Raise ValueError for arguments that are easily mistaken for the right ones."""
    if isinstance(model, nn.Module):
        raise ValueError(
            "model must be a factory, as in small_cnn, and not a network: each worker "
            f"builds its own, found {type(model).__name__}"
        )
    if isinstance(select, type):
        raise ValueError(
            f"select must be a selection, as in uniform(10), found {select.__name__}"
        )
    if min_clients > num_clients:
        raise ValueError(
            f"min_clients must lie in 1…{num_clients}, the number of clients of the "
            f"federation, found {min_clients}"
        )


def built(
    factory, method: FedAvg, federation: Federation, training: LocalTraining, seed: int
) -> nn.Module:
    """The adapted model, drawn from the run's own stream for initial weights.

    Raises ValueError when it cannot be trained on the federation, and as
    `check_method`.
    """
    check_method(method)
    data = federation.data
    with _BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(sequence(seed, "init").generate_state(1)[0]))
        try:
            model = factory(data.image_shape, data.num_classes)
        except TypeError as error:
            raise ValueError(
                "model is called with the shape of an input and the number of classes, "
                f"as in {name_of(factory)}({data.image_shape}, {data.num_classes}), "
                f"which raises: {error}"
            ) from error
        if not isinstance(model, nn.Module):
            raise ValueError(
                "model must return an nn.Module, as small_cnn does, found "
                f"{name_of(model)[:60]}"
            )
        if any(map(is_lazy, model.parameters())):
            raise ValueError(
                "expected parameters of known shapes, found a lazy layer; use "
                "nn.Linear(…) in place of nn.LazyLinear(…)"
            )
        refuse_parts(method, model)
        model = copy.deepcopy(model)  # a factory may return one network twice
        for module in model.modules():
            if isinstance(module, Units):
                module.read(data.mean, data.std)
        model.image_shape = data.image_shape  # for what the method may add
        model.num_classes = data.num_classes
        model = method.adapt(model)
        if training.augment is not None:
            model = training.augment.adapt(model)
        rows = torch.zeros(2, dtype=torch.int64, device=federation.store.device)
        example = federation.store.inputs(rows).cpu()
        uses_output = not method.overrides("loss")
        refuse_unfit(own_noise(model), example, federation, uses_output)
    is_flat = len(data.image_shape) != 3
    return model if is_flat else model.to(memory_format=torch.channels_last)


def refuse_parts(method: FedAvg, model: nn.Module) -> None:
    """Raise ValueError for a network without a part that the method's hooks use."""
    if lacking := [part for part in method.needs_parts if not hasattr(model, part)]:
        raise ValueError(
            f"{method.label} uses the network's {' and '.join(method.needs_parts)}, "
            f"and {type(model).__name__} has no {' and no '.join(lacking)}; write it "
            "as head(encode(x)), with encode(x) returning features (B, D)"
        )


def check_method(method: FedAvg) -> None:
    """Raise ValueError for settings that are no fields, and so in no description.

    The same for hooks with other parameters. Warns of public methods that are no hooks
    and that no hook of the class uses.
    """
    kind = type(method)
    for name in sorted(vars(method).keys() - {f.name for f in fields(method)}):
        if not hasattr(kind, name):  # as a cached property
            raise ValueError(
                f"the settings of a method are its fields, found the attribute {name!r}"
                f" of {kind.__name__}; write @dataclass(frozen=True) above the class "
                f"and, in place of __init__, {name}: float = {vars(method)[name]!r}"
            )
    bases = kind.__mro__[: kind.__mro__.index(FedAvg)]
    for base in bases:
        annotated = get_annotations(base).items()
        plain = [name for name, what in annotated if "ClassVar" not in str(what)]
        if plain and "__dataclass_fields__" not in vars(base):
            raise ValueError(
                f"the settings of a method are its fields, and {base.__name__} is no "
                f"dataclass; write @dataclass(frozen=True) above the class, so that "
                f"{plain[0]!r} can be set"
            )
    own = [(n, f) for base in bases for n, f in vars(base).items() if isfunction(f)]
    used = {name for _, function in own for name in _names_in(function.__code__)}
    hooks = [n for n, f in vars(FedAvg).items() if isfunction(f) and n[0] != "_"]
    for name in sorted(dict(own).keys() & {*hooks}):
        found, hook = getattr(kind, name), getattr(FedAvg, name)
        _check_signature(found, hook, f"{kind.__name__}.{name}")
    static = {n for b in bases for n, f in vars(b).items() if hasattr(f, "__func__")}
    for name in sorted((dict(own).keys() | static) - used - {*dir(FedAvg)}):
        if not name.startswith("_"):
            similar = get_close_matches(name, hooks, 1)
            warnings.warn(
                f"{kind.__name__}.{name} is never called by a run"
                + (f"; did you mean the hook {similar[0]!r}? " if similar else ". ")
                + "A leading underscore silences this warning",
                stacklevel=5,
            )


def _check_signature(function: Callable, hook: Callable, name: str) -> None:
    """Raise ValueError if a run cannot call ``function`` as it calls the hook."""
    wanted = [*signature(hook).parameters]
    try:
        signature(function).bind(*wanted)
    except TypeError as error:
        raise ValueError(
            f"{name} is called with ({', '.join(wanted)}), found "
            f"({', '.join(signature(function).parameters)})"
        ) from error


def _names_in(code: CodeType) -> set[str]:
    """The attributes and globals that a function uses, those of inner ones included."""
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


def check_server(server: object, method: FedAvg, before: Server) -> None:
    """Refuse what ``aggregate`` returned unless it is a server like ``before``.

    It holds named tensors, and finite weights of the same names, shapes and types.
    """
    if not isinstance(server, Server):
        raise TypeError(
            f"{method.label}.aggregate must return a Server, as in "
            f"replace(server, weights=…), found {type(server).__name__}"
        )
    for part in ("weights", "shared", "memory"):
        refuse_unnamed(f"the server's {part}", getattr(server, part))
    expect_alike("the server's weights", server.weights, before.weights)
    refuse_nan(server.weights)


def initial_state(
    method: FedAvg, model: nn.Module, num_clients: int
) -> tuple[Server, Tensors]:
    """The server before round 1, and the initial private weights of every client."""
    names, private = trained_names(model), set(method.private_names(model))
    if unknown := private - set(names):
        raise ValueError(
            "private names must be trained state of the model, found "
            f"{sorted(unknown)}; see model.state_dict()"
        )
    tensors = model.state_dict(keep_vars=True)
    own = {id(tensors[name]) for name in private}
    if tied := [n for n in names if id(tensors[n]) in own and n not in private]:
        raise ValueError(
            f"a private tensor must be private under all its names, found {tied[0]!r} "
            "among the shared ones; make it private, too, or do not tie the weights"
        )
    state = {name: value.detach().clone() for name, value in tensors.items()}
    trained = {name for name, value in tensors.items() if value.requires_grad}
    weights = {name: state[name] for name in names if name not in private}
    parameters = tuple(name for name in weights if name in trained)
    server = Server(0, weights, parameters=parameters, num_clients=num_clients)
    return server, {name: state[name] for name in names if name in private}
