"""Bounds on what clients send, so that one of them cannot ruin a run.

A message is measured in parts: the length of its update (weights minus what the client
received), that of its buffers, and the largest value of each uploaded tensor. Uploaded
single numbers are one part, since losses after training may be tiny for most clients.
A client is left out if a part is more than ``most`` times as large as usual: the median
of this round, or of an earlier round if that was larger. This stops values such as
1e10; it is no defence against small, patient poison. Where the first weights already
fit all clients but one, it also stops that honest client; ``Run(max_update=None)``
accepts it.
"""

from __future__ import annotations

import torch
from torch.linalg import vector_norm

from ..core.messages import AT_ONCE, Message, Tensors, refuse_nan

PIECE = 2**20
"""Values of a large tensor that are subtracted at a time."""

Usual = dict[str, float]
"""The largest median so far of each part."""


def outliers(
    received: Tensors,
    parameters: tuple[str, ...],
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
    floats = [name for name, value in received.items() if value.is_floating_point()]
    trees = {client: message.weights for client, message in messages.items()}
    measured = {
        "update": _lengths(trees, received, [n for n in floats if n in parameters]),
        "update of buffers": _lengths(
            trees, received, [n for n in floats if n not in parameters]
        ),
    }
    refused: dict[int, ValueError] = {}
    variances = [name for name in floats if name.endswith("running_var")]
    for client, weights in trees.items():
        try:
            if not all(sizes[client] < torch.inf for sizes in measured.values()):
                refuse_nan(weights)
            for name in variances:
                if weights[name].min() < 0:
                    raise ValueError(f"{name!r} is a variance, found one below 0")
        except ValueError as error:
            refused[client] = error
    uploads = {client: message.upload for client, message in messages.items()}
    return _beyond(measured | _largest(uploads), refused, usual, most)


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
    """The largest absolute value of each uploaded part, by part and client."""
    found: dict[str, dict[int, float]] = {}
    for client, tensors in uploads.items():
        for name, value in tensors.items():
            if value.is_floating_point() and value.numel():
                part = f"uploaded {name!r}" if value.ndim else "uploaded numbers"
                sizes = found.setdefault(part, {})
                sizes[client] = max(float(value.abs().max()), sizes.get(client, 0.0))
    return found


def _lengths(trees: dict[int, Tensors], origin: Tensors, names) -> dict[int, float]:
    """Euclidean length of each client's difference from ``origin``, by client.

    Small tensors of one name are measured at once. NaN or infinite if a value is, or if
    its square is in single precision.
    """
    squares = torch.zeros(len(trees), dtype=torch.float64)
    for name in names:
        start, values = origin[name], [tree[name] for tree in trees.values()]
        if len(values) * start.numel() <= AT_ONCE:
            steps = (torch.stack(values) - start).reshape(len(values), -1)
            squares += vector_norm(steps, dim=1).double().cpu() ** 2
            continue
        first = start.flatten().split(PIECE)
        for k, value in enumerate(values):
            pieces = zip(value.flatten().split(PIECE), first, strict=True)
            squares[k] += sum(float(vector_norm(a - b, dim=0)) ** 2 for a, b in pieces)
    return dict(zip(trees, squares.sqrt().tolist(), strict=True))
