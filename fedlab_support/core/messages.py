"""Messages between server and clients: dictionaries of named tensors, nothing else.

This rule is what makes it possible to count bytes, to record what was disclosed, to
resume a run, and to run over a real network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors."""

NUM_EXAMPLES_BYTES = 8
"""``Message.num_examples`` travels as one 64-bit integer."""

AT_ONCE, BLOCK = 2**19, 2**16
"""Up to AT_ONCE values are averaged in one operation, more in blocks of BLOCK."""


@dataclass(frozen=True)
class Server:
    """What the server holds between rounds.

    round:       number of completed rounds.
    weights:     parameters and buffers that are trained and shared.
    shared:      sent to every client along with the weights.
    memory:      stays on the server: momentum, fairness weights, groups.
    parameters:  the names in ``weights`` that an optimiser updates, in their order
                 there; the others are buffers (running statistics and counters).
    num_clients: of the run, whether or not they participated in this round.
    """

    round: int
    weights: Tensors
    shared: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    num_clients: int = 0


@dataclass(frozen=True)
class Broadcast:
    """Server → client: the weights and what else the method sends to this client."""

    round: int
    weights: Tensors
    shared: Tensors = field(default_factory=dict)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """Size in bytes of each part."""
        return {"weights": nbytes(self.weights), "shared": nbytes(self.shared)}


@dataclass(frozen=True)
class Message:
    """Client → server.

    client:        number of the sender.
    num_examples:  samples trained on.
    weights:       the weights after local training.
    upload:        what else the method sends; empty for FedAvg.
    metrics:       for the simulator's curves only; methods must not read them.
    """

    client: int
    num_examples: int
    weights: Tensors
    upload: Tensors = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = [f"Message from client {self.client}, {self.num_examples} examples"]
        for part in ("weights", "upload"):
            tensors = getattr(self, part)
            lines.append(f"  {part}: {nbytes(tensors) / 1000:,.1f} kB")
            for name, value in tensors.items():
                shape = str(tuple(value.shape))
                lines.append(f"    {name:24s} {shape:18s} {value.dtype}")
        return "\n".join(lines)


def copies(tensors: Tensors, what: str) -> Tensors:
    """Detached copies that share no memory with the originals.

    what:  the tensors, for the message of the TypeError that anything else raises.
    """
    refuse_unnamed(what, tensors)
    return {name: value.detach().clone() for name, value in tensors.items()}


def refuse_unnamed(what: str, tensors: object) -> None:
    """Raise TypeError unless ``tensors`` is a dictionary of named tensors."""
    if not isinstance(tensors, dict):
        raise TypeError(
            f"{what} must be a dictionary of named tensors, found "
            f"{type(tensors).__name__}"
        )
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise TypeError(
                f"{what} must hold named tensors, found {type(value).__name__} as "
                f"{name!r}"
            )


@contextmanager
def unwritten(what: str, trees: Iterable[Tensors]) -> Iterator[None]:
    """Raise RuntimeError if a tensor is changed in place inside the block.

    what:  the tensors, for the message. They are shared, so the change is not undone,
           and the run cannot continue.
    """
    tensors = [v for tree in trees for v in tree.values() if not v.is_inference()]
    before = [value._version for value in tensors]
    yield
    if [value._version for value in tensors] != before:
        raise RuntimeError(
            f"{what} must not be changed in place, found that a hook did; change a "
            "clone() instead, and create a new run"
        )


def nbytes(tensors: Tensors) -> int:
    """Size in bytes of the values of named tensors; names and framing not counted."""
    return sum([v.numel() * v.element_size() for v in tensors.values()])


def wide(values: Tensor) -> Tensor:
    """Convert to at least float32, which moments and running sums need."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def weighted_mean(trees: Sequence[Tensors], weights: Iterable[float]) -> Tensors:
    """Average several dictionaries of tensors.

    trees:    K dictionaries with equal names and shapes (no broadcasting).
    weights:  K numbers ≥ 0, which are normalised to sum 1.

    Returns a new dictionary with the floating tensors, averaged in double precision and
    cast back to their own. Integer counters are skipped, since a mean of counts counts
    nothing. Raises ValueError when names or shapes differ (the message gives the first
    such name) or no weight is positive.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """
    try:
        shares = [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise ValueError(f"weights must be numbers, found {weights!r}") from None
    if len(shares) != len(trees) or len(trees) == 0:
        raise ValueError(
            f"expected one weight per dictionary and at least one dictionary, found "
            f"{len(shares)} weights for {len(trees)} dictionaries"
        )
    if not (all(0 <= share < math.inf for share in shares) and any(shares)):
        raise ValueError(f"weights must be finite, ≥ 0 and not all 0, found {shares}")
    shares = torch.tensor(shares, dtype=torch.float64)
    shares = shares / shares.sum()
    try:
        _refuse_unlike(trees)
    except (AttributeError, KeyError, TypeError):
        raise ValueError("trees must be dictionaries of named tensors") from None
    return {
        name: _mean([tree[name] for tree in trees], shares)
        for name, first in trees[0].items()
        if first.is_floating_point()
    }


def _refuse_unlike(trees: Sequence[Tensors]) -> None:
    shapes = {name: value.shape for name, value in trees[0].items()}
    for tree in trees[1:]:
        if missing := sorted(shapes.keys() ^ tree.keys()):
            raise ValueError(
                f"dictionaries must have equal names, {missing[0]!r} is not in all"
            )
        for name, value in tree.items():
            if value.shape != shapes[name]:
                raise ValueError(
                    f"{name!r} must have one shape, found {tuple(value.shape)} and "
                    f"{tuple(trees[0][name].shape)}"
                )


def _mean(values: list[Tensor], shares: Tensor) -> Tensor:
    """The mean in double precision: in one operation if small, else block by block."""
    # w = sum_k a_k w_k
    if len(values) * values[0].numel() <= AT_ONCE:
        rows, shares = torch.stack(values).double(), shares.to(values[0].device)
        mean = rows[0] * shares[0]
        if len(rows) > 1:
            mean += torch.tensordot(shares[1:], rows[1:], 1)
        return mean.to(values[0].dtype)
    mean, rows = torch.empty_like(values[0]).flatten(), [v.flatten() for v in values]
    first, *others = shares.tolist()
    for start in range(0, len(mean), BLOCK):
        block = slice(start, start + BLOCK)
        total = rows[0][block].double() * first
        for row, share in zip(rows[1:], others, strict=True):
            total.add_(row[block], alpha=share)
        mean[block] = total
    return mean.view(values[0].shape)


def validate(
    message: Message, expected: Tensors, client: int, most_examples: int
) -> None:
    """Refuse a message of named tensors that could corrupt the server's state.

    expected:       the server's own weights.
    client:         the client that was asked.
    most_examples:  the number of examples that this client holds.

    Raises ValueError, with the reason, for another sender, missing or unknown names,
    another shape, type or device, uploaded values that are not finite, and a number of
    examples that is not an integer in 1…most_examples. Whether the weights are finite
    is checked with their length, in ``run.bounds``.
    """
    if message.client != client:
        raise ValueError(f"expected client {client}, found {message.client}")
    expect_count("num_examples", message.num_examples, most_examples)
    expect_alike("weights", message.weights, expected)
    refuse_nan(message.upload)


def expect_count(what: str, count: object, most: int, least: int = 1) -> None:
    """Raise ValueError unless ``count`` is an integer in least…most."""
    if not isinstance(count, int) or not least <= count <= most:
        raise ValueError(f"{what} must be an integer in {least}…{most}, found {count}")


def expect_nonnegative(what: str, values: Tensor) -> None:
    """Raise ValueError for a value below 0."""
    if (values < 0).any():
        raise ValueError(f"{what} must be ≥ 0, found {values.min():.3g}")


def expect_alike(what: str, tensors: Tensors, expected: Tensors) -> None:
    """Raise ValueError unless names, shapes, types and devices match ``expected``."""
    if expected.keys() != tensors.keys():
        wrong = sorted(expected.keys() ^ tensors.keys())
        found = "missing" if wrong[0] in expected else "unknown"
        raise ValueError(
            f"{what} must be named as expected, {wrong[0]!r} is {found}; server and "
            "client must run the same method and network"
        )
    for name, own in expected.items():
        value = tensors[name]
        if _kind(value) != _kind(own):
            wanted, found = _describe(own), _describe(value)
            raise ValueError(f"{what}: {name!r} must be {wanted}, found {found}")


def _kind(value: Tensor) -> tuple:
    return value.shape, value.dtype, value.device, value.layout


def _describe(value: Tensor) -> str:
    layout = "" if value.layout == torch.strided else f"{value.layout} "
    return f"{layout}{value.dtype} of shape {tuple(value.shape)} on {value.device}"


def expect_tensors(what: str, tensors: Tensors) -> None:
    """Raise ValueError unless ``tensors`` is a dictionary of named, dense tensors."""
    try:
        refuse_unnamed(what, tensors)
    except TypeError as error:
        raise ValueError(str(error)) from None
    for name, value in tensors.items():
        if value.layout != torch.strided or value.is_meta or value.requires_grad:
            raise ValueError(
                f"{name!r} must be a dense tensor without gradient, on cuda or on cpu, "
                f"found {_describe(value)}"
            )


def expect_names(tensors: Tensors, *names: str) -> None:
    """Raise ValueError unless the tensors have exactly these names."""
    if tensors.keys() != set(names):
        raise ValueError(f"expected tensors named {[*names]}, found {sorted(tensors)}")


def expect_classes(what: str, classes: Tensor, entries: Tensor, num: int) -> None:
    """Raise ValueError unless each of ``entries`` has one of the classes 0…num - 1."""
    is_class, shape = (classes >= 0) & (classes < num), entries.shape[:1]
    if classes.shape != shape or not is_class.all():
        raise ValueError(
            f"expected a class in 0…{num - 1} for each of {tuple(shape)} {what}, found "
            f"{classes.tolist()}"
        )


def refuse_nan(tensors: Tensors) -> None:
    """Raise ValueError, naming the tensor, when a value is NaN or infinite."""
    for name, value in tensors.items():
        # A finite sum is a cheap proof that all values are finite.
        if not value.is_floating_point() or math.isfinite(value.sum()):
            continue
        if not value.isfinite().all():
            raise ValueError(
                f"{name!r} holds NaN or infinite values; if training diverged, lower "
                "the learning rate"
            )
