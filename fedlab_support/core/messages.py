"""The wire: what the server holds, what it says, and what clients answer.

Only named tensors cross the network. From that follow the count of bytes, the record
of what was disclosed, resuming, and running over a real network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

Tensors = dict[str, Tensor]
"""Named tensors, also those of a :class:`Row`."""

NUM_EXAMPLES_BYTES = 8
"""``Message.num_examples`` travels as one 64-bit integer."""

BLOCK, STACK_BLOCK = 2**16, 2**19
"""Values that are averaged at once: what fits a core's cache, of one and of many."""


@dataclass(frozen=True)
class Server:
    """What the server holds between rounds.

    - ``round``: rounds completed.
    - ``weights``: parameters and buffers that are trained and shared.
    - ``shared``: told to every client beside the weights.
    - ``memory``: stays on the server: momentum, fairness weights, groups.
    - ``parameters``: which names of ``weights`` an optimiser moves; the others are
      buffers (running statistics and counters).
    """

    round: int
    weights: Tensors
    shared: Tensors = field(default_factory=dict)
    memory: Tensors = field(default_factory=dict)
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Broadcast:
    """Server → client: the weights and whatever else this client is told."""

    round: int
    weights: Tensors
    shared: Tensors = field(default_factory=dict)

    @cached_property
    def bytes(self) -> dict[str, int]:
        """What it weighs, by part."""
        return {"weights": nbytes(self.weights), "shared": nbytes(self.shared)}


@dataclass(frozen=True)
class Message:
    """Client → server.

    - ``client``: who says it; ``num_examples``: samples trained on.
    - ``weights``: the weights after local training.
    - ``report``: what else the method sends; empty for FedAvg.
    - ``metrics``: for the simulator's curves only; no method may read them.
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


def copies(tensors: Tensors) -> Tensors:
    """Copies that share nothing with a model or with another dictionary."""
    return {name: value.detach().clone() for name, value in tensors.items()}


class Stack:
    """Named tensors of K clients, (K, …) each; every client's are a :class:`Row`.

    What is asked of all rows is asked once, of the stack: it costs what one row would.
    Nobody writes to its tensors any more.
    """

    def __init__(self, tensors: Tensors, num: int):
        self.tensors, self.num, self._like = tensors, num, None

    def rows(self) -> list[Row]:
        """The rows, client after client."""
        return [Row(self, k) for k in range(self.num)]

    def is_like(self, expected: Tensors) -> bool:
        """Whether a row's names, shapes, types and devices are as expected."""
        if self._like is not expected:
            kinds = {name: _kind(value[0]) for name, value in self.tensors.items()}
            if kinds != {name: _kind(value) for name, value in expected.items()}:
                return False
            self._like = expected
        return True

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return nbytes(self.tensors) // self.num

    @cached_property
    def is_finite(self) -> list[bool]:
        """Of each row, whether its sums are: then all its values are."""
        is_finite = torch.ones(self.num, dtype=torch.bool)
        for value in self.tensors.values():
            is_finite &= _flat(value).sum(1, dtype=torch.float32).isfinite().cpu()
        return is_finite.tolist()

    def mean(self, places: list[int], shares: Tensor) -> Tensors:
        """Mean of some rows' floats, in double precision; a share for each of them.

        Rows that are left out are not looked at: they may hold NaN.
        """
        if sorted(places) == list(range(self.num)):
            places, shares = slice(None), shares[np.argsort(places)]
        return {
            name: _mean_of_rows(_flat(value), places, shares).view(value.shape[1:])
            for name, value in self.tensors.items()
            if value.is_floating_point()
        }


class Row(Mapping):
    """One client's tensors in a :class:`Stack`, by name: views, made when asked for.

    ``tensors | other`` and ``dict(tensors)`` are dictionaries.
    """

    def __init__(self, stack: Stack, place: int):
        self.stack, self.place = stack, place

    def __getitem__(self, name: str) -> Tensor:
        return self.stack.tensors[name][self.place]

    def __iter__(self) -> Iterator[str]:
        return iter(self.stack.tensors)

    def __len__(self) -> int:
        return len(self.stack.tensors)

    def __or__(self, other: Tensors) -> Tensors:
        return {**self, **other}

    def __ror__(self, other: Tensors) -> Tensors:
        return {**other, **self}

    def __reduce__(self):
        return dict, (copies(self),)  # of this row, not of the whole stack


def nbytes(tensors: Tensors) -> int:
    """Bytes of the raw values of named tensors; names and framing are not counted."""
    if type(tensors) is Row:
        return tensors.stack.row_bytes
    return sum([v.numel() * v.element_size() for v in tensors.values()])


def weighted_mean(trees: Sequence[Tensors], weights: Iterable[float]) -> Tensors:
    """Average several dictionaries of tensors.

    - ``trees``: K dictionaries with equal names and shapes (no broadcasting).
    - ``weights``: K numbers ≥ 0 that are divided by their sum here.

    Returns a new dictionary with the floating tensors, averaged in double precision
    and returned in their own; integer counters are skipped. Raises ValueError when
    names or shapes differ (the first such name is given) or no weight is positive.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """
    is_tensor = isinstance(weights, Tensor)
    shares = weights.tolist() if is_tensor else [float(w) for w in weights]
    if len(shares) != len(trees) or len(trees) == 0:
        raise ValueError(
            f"expected one weight per dictionary and at least one of them, found "
            f"{len(shares)} weights for {len(trees)} dictionaries"
        )
    if not (all(0 <= share < math.inf for share in shares) and any(shares)):
        raise ValueError(f"weights must be finite, ≥ 0 and not all 0, found {shares}")
    shares = torch.tensor(shares, dtype=torch.float64)
    shares = shares / shares.sum()
    stacks = {getattr(tree, "stack", None) for tree in trees}
    if len(stacks) == 1 and None not in stacks:
        return stacks.pop().mean([tree.place for tree in trees], shares)
    _refuse_unlike(trees)
    return {
        name: _folded([tree[name] for tree in trees], shares.tolist())
        for name, first in trees[0].items()
        if first.is_floating_point()
    }


def _refuse_unlike(trees: Sequence[Tensors]) -> None:
    for tree in trees[1:]:
        if missing := sorted(trees[0].keys() ^ tree.keys()):
            raise ValueError(
                f"dictionaries must have equal names, {missing[0]!r} differs"
            )
        for name, value in tree.items():
            if value.shape != trees[0][name].shape:
                raise ValueError(
                    f"{name!r} must have one shape, found {tuple(value.shape)} beside "
                    f"{tuple(trees[0][name].shape)}"
                )


def _folded(values: list[Tensor], shares: list[float]) -> Tensor:
    """The mean in double precision, block by block: none is ever large."""
    mean, rows = torch.empty_like(values[0]).flatten(), [v.flatten() for v in values]
    for start in range(0, len(mean), BLOCK):
        part = slice(start, start + BLOCK)
        # w = sum_k a_k w_k
        total = rows[0][part].double() * shares[0]
        for row, share in zip(rows[1:], shares[1:], strict=True):
            total.add_(row[part], alpha=share)
        mean[part] = total
    return mean.view(values[0].shape)


def _flat(values: Tensor) -> Tensor:
    """(K, …) → (K, P)."""
    return values.reshape(len(values), values[0].numel())


def _mean_of_rows(rows: Tensor, places: list[int] | slice, shares: Tensor) -> Tensor:
    """The mean of rows (K, P) in double precision, a block of columns at a time."""
    mean, shares = rows.new_empty(rows.shape[1]), shares.to(rows.device)
    size = max(1, STACK_BLOCK // len(rows))
    for start in range(0, len(mean), size):
        # w = sum_k a_k w_k
        part = slice(start, start + size)
        mean[part] = shares @ rows[places, part].double()
    return mean


def validate(
    message: Message,
    expected: Tensors,
    client: int | None = None,
    most_examples: float = math.inf,
) -> None:
    """Refuse a message of named tensors that could spoil the server's state.

    ``expected`` are the server's own weights, ``client`` is who was asked (None: not
    looked at), ``most_examples`` what that client is known to hold. Raises ValueError,
    with the reason, for another sender, missing or unknown names, another shape, type
    or device, values that are not finite, and a number of examples that is not a whole
    one in 1…most_examples.
    """
    if client is not None and message.client != client:
        raise ValueError(f"expected client {client}, found {message.client}")
    count = message.num_examples
    if not isinstance(count, int) or not 1 <= count <= most_examples:
        raise ValueError(
            "num_examples must be at least 1, whole, and at most "
            f"{most_examples}, found {count}"
        )
    expect_alike("weights", message.weights, expected)
    refuse_nan(message.weights)
    refuse_nan(message.upload)


def expect_alike(what: str, tensors: Tensors, expected: Tensors) -> None:
    """Raise ValueError unless names, shapes, types and devices are as expected."""
    if type(tensors) is Row and tensors.stack.is_like(expected):
        return
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
            wanted, found = _in_words(own), _in_words(value)
            raise ValueError(f"{name!r} must be {wanted}, found {found}")


def _kind(value: Tensor) -> tuple:
    return value.shape, value.dtype, value.device, value.layout


def _in_words(value: Tensor) -> str:
    layout = "" if value.layout == torch.strided else f"{value.layout} "
    return f"{layout}{value.dtype} of shape {tuple(value.shape)} on {value.device}"


def expect_tensors(what: str, tensors: Tensors) -> None:
    """Raise ValueError unless ``tensors`` is a dictionary of named tensors."""
    if type(tensors) is Row:
        return
    if not isinstance(tensors, dict):
        raise ValueError(
            f"{what} must be a dictionary of named tensors, found "
            f"{type(tensors).__name__}"
        )
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{what} must hold named tensors, found {type(value).__name__} as "
                f"{name!r}"
            )


def expect_names(tensors: Tensors, *names: str) -> None:
    """Raise ValueError unless the tensors are named like this."""
    if tensors.keys() != set(names):
        raise ValueError(f"expected tensors named {[*names]}, found {sorted(tensors)}")


def expect_classes(
    tensors: Tensors,
    entries: str,
    classes: str | None,
    num: int,
    once: bool = False,
    width: int | None = None,
    beside: tuple[str, ...] = (),
) -> None:
    """Raise ValueError unless ``classes`` has one of 0…num - 1 for each of ``entries``.

    - ``classes`` None: entries have none. ``beside``: names of all other tensors.
    - ``once``: each class at most once. ``width``: of an entry, where that is known.
    """
    expect_names(tensors, entries, *beside, *([classes] if classes else []))
    if classes is None:
        return
    said, shape = tensors[classes], tensors[entries].shape[:1]
    if width is not None and tensors[entries].shape[1:] != (width,):
        found = tuple(tensors[entries].shape)
        raise ValueError(f"{entries!r} must have {width} columns, found shape {found}")
    is_class = (said >= 0) & (said < num)
    is_new = not once or len(said.unique()) == len(said)
    if said.shape != shape or not is_class.all() or not is_new:
        raise ValueError(
            f"expected {'another' if once else 'a'} class in 0…{num - 1} for each of "
            f"{tuple(shape)} {entries}, found {said.tolist()}"
        )


def refuse_nan(tensors: Tensors) -> None:
    """Raise ValueError when a value is NaN or infinite; the name is given."""
    if type(tensors) is Row and tensors.stack.is_finite[tensors.place]:
        return
    for name, value in tensors.items():
        # The sum is cheap and finite unless some value is not, or it overflows.
        if not value.is_floating_point() or math.isfinite(value.sum()):
            continue
        if not value.isfinite().all():
            raise ValueError(
                f"{name!r} holds NaN or infinite values; local training diverged: "
                "lower the learning rate"
            )
