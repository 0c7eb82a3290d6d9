"""Bounds on what clients send, so that one of them cannot ruin a run.

A message is measured in parts: the length of its update (weights minus what the client
received), that of its buffers, and the largest value of each uploaded tensor. A client
is left out if a part is more than ``most`` times as large as usual: the median of this
round, or of an earlier round if that was larger. This stops values that no honest
training gives, such as 1e10; it is no defence against small, patient poison.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.messages import AT_ONCE, Message, Tensors, refuse_nan

PIECE = 2**20
"""Values of a large tensor that are subtracted at a time."""

Usual = dict[str, float]
"""The largest median so far of each part."""


def outliers(
    received: Tensors,
    parameters: frozenset[str],
    messages: dict[int, Message],
    usual: Usual,
    most: float | None,
) -> tuple[dict[int, ValueError], Usual]:
    """Errors for the clients to leave out, and what is usual after this round.

    received:    the weights that all clients received.
    parameters:  the names in ``received`` that are trained; the others are buffers.
    messages:    by client, of valid form.
    most:        see ``Run(max_update=…)``; None only refuses impossible values.
    """
    trees = [message.weights for message in messages.values()]
    floats = [name for name, value in received.items() if value.is_floating_point()]
    parts = {
        "update": _lengths(trees, received, [n for n in floats if n in parameters]),
        "update of buffers": _lengths(
            trees, received, [n for n in floats if n not in parameters]
        ),
    }
    refused: dict[int, ValueError] = {}
    variances = [name for name in floats if name.endswith("running_var")]
    for number, (client, message) in enumerate(messages.items()):
        try:
            if not all(sizes[number] < torch.inf for sizes in parts.values()):
                refuse_nan(message.weights)
            for name in variances:
                if message.weights[name].min() < 0:
                    raise ValueError(f"{name!r} is a variance, found one below 0")
        except ValueError as error:
            refused[client] = error
    uploads = {client: message.upload for client, message in messages.items()}
    tables = [dict(zip(messages, sizes, strict=True)) for sizes in parts.values()]
    measured = dict(zip(parts, tables, strict=True)) | _largest(uploads)
    return _beyond(measured, refused, usual, most)


def upload_outliers(
    uploads: dict[int, Tensors], most: float | None
) -> dict[int, ValueError]:
    """Errors for the clients whose setup upload is far beyond those of the others."""
    return _beyond(_largest(uploads), {}, {}, most)[0]


def _beyond(
    measured: dict[str, dict[int, float]],
    refused: dict[int, ValueError],
    usual: Usual,
    most: float | None,
) -> tuple[dict[int, ValueError], Usual]:
    refused, now = dict(refused), dict(usual)
    for part, sizes in measured.items():
        known = sorted((size, i) for i, size in sizes.items() if i not in refused)
        # a client alone is measured by the past
        median = known[(len(known) - 1) // 2][0] if len(known) > 1 else 0.0
        largest = max(median, usual.get(part, 0.0))
        for size, client in known:
            if most and 0 < most * largest < size:
                refused[client] = ValueError(
                    f"the size of its {part} is {size:.3g}, more than {most:g} times "
                    f"the usual {largest:.3g}; if that is right, raise max_update"
                )
        accepted = [size for size, i in known if i not in refused and size < torch.inf]
        if accepted:
            now[part] = max(usual.get(part, 0.0), accepted[(len(accepted) - 1) // 2])
    return refused, now


def _largest(uploads: dict[int, Tensors]) -> dict[str, dict[int, float]]:
    """The largest absolute value of each uploaded tensor, by name and client."""
    found: dict[str, dict[int, float]] = {}
    for client, tensors in uploads.items():
        for name, value in tensors.items():
            if value.is_floating_point() and value.numel():
                sizes = found.setdefault(f"uploaded {name!r}", {})
                sizes[client] = float(value.abs().max())
    return found


def _lengths(trees: Sequence[Tensors], origin: Tensors, names) -> list[float]:
    """Euclidean length of each dictionary's difference from ``origin``.

    Small tensors of one name are measured at once. NaN or infinite if a value is, or if
    its square is in single precision.
    """
    squares = torch.zeros(len(trees), dtype=torch.float64)
    for name in names:
        start, values = origin[name], [tree[name] for tree in trees]
        if len(values) * start.numel() <= AT_ONCE:
            step = torch.stack(values) - start
            squares += _length(step.flatten(1), 1).double().cpu() ** 2
            continue
        first = start.flatten().split(PIECE)
        for k, value in enumerate(values):
            pieces = zip(value.flatten().split(PIECE), first, strict=True)
            squares[k] += sum(float(_length(a - b, 0)) ** 2 for a, b in pieces)
    return squares.sqrt().tolist()


def _length(values: Tensor, dim: int) -> Tensor:
    return torch.linalg.vector_norm(values, dim=dim)
