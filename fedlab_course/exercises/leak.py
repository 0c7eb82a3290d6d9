"""Chapter 01's bug to diagnose: clients that see each other through shared tensors.

The code of the seed report has it: all clients hold the same model object.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call
from .tensors import copied, refuse_changes

CHANGED = (
    "the received tensors changed while a client trained, so the next one does "
    "not start from the broadcast. Which statements write into a tensor that "
    "the caller still holds? A new dictionary may hold the same tensors"
)
REPLACED = (
    "the tensors are safe, but the received dictionary now holds other ones: "
    "the next client gets this client's result"
)


def leaky_local_update(
    weights: dict[str, Tensor], x: Tensor, y: Tensor, lr: float, epochs: int
) -> dict[str, Tensor]:
    """Train a linear model on one client by gradient descent on batches of four.

    weights: received from the server: weight (D,) and bias (). x: (N, D). y: (N,).
    Returns the client's weights after `epochs` passes. One bug is hidden here.
    """
    for _ in range(epochs):
        for start in range(0, len(x), 4):
            x_batch, y_batch = x[start : start + 4], y[start : start + 4]
            error = x_batch @ weights["weight"] + weights["bias"] - y_batch
            weights["weight"] -= lr * 2 * x_batch.T @ error / len(error)
            weights["bias"] -= lr * 2 * error.mean()
    return weights


def check_local_update(answer: Callable[..., dict[str, Tensor]]) -> str:
    """Check that clients that start from one broadcast do not see each other."""
    generator = torch.Generator().manual_seed(1)
    broadcast = {"weight": torch.tensor([0.5, -1.0, 2.0]), "bias": torch.tensor(0.3)}
    clients = []
    for size in (10, 6):  # the last batch is not full
        x = torch.randn(size, 3, generator=generator)
        clients.append((x, x @ torch.tensor([1.0, 2.0, -1.0]) + size))
    received = copied(broadcast)
    results = []
    for number, (x, y) in enumerate(clients):
        given = f"client {number}: x {tuple(x.shape)}, y {tuple(y.shape)}, epochs=3"
        before, tensors = copied(received), dict(received)
        result = call(answer, received, x.clone(), y.clone(), 0.05, 3, given=given)
        refuse_changes(before, received, tensors, changed=CHANGED, replaced=REPLACED)
        _check_trained(result, received)
        results.append(copied(result))
    for (x, y), result in zip(clients, results, strict=True):
        _check_steps(result, broadcast, (x, y))
    return "both clients start from the same broadcast, and neither changes it"


def _same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return all(torch.allclose(left[n], right[n], atol=1e-5) for n in right)


def _check_trained(result: object, received: dict[str, Tensor]) -> None:
    if not isinstance(result, dict) or set(result) != set(received):
        raise Wrong("expected a dictionary with the names of the received one")
    for name, tensor in received.items():
        if not isinstance(result[name], Tensor) or result[name].shape != tensor.shape:
            raise Wrong(f"{name!r}: expected a tensor of shape {tuple(tensor.shape)}")
    if _same(result, received):
        raise Wrong(
            "what comes back equals what was received: nothing was learned. Does the "
            "function return the tensors that it trained?"
        )


def _check_steps(
    result: dict[str, Tensor], broadcast: dict[str, Tensor], data: tuple[Tensor, Tensor]
) -> None:
    """Compare with the buggy function on a copy, then with typical detours."""
    x, y = data

    def trained(size: int, epochs: int = 3, lr: float = 0.05) -> dict[str, Tensor]:
        return leaky_local_update(copied(broadcast), x[:size], y[:size], lr, epochs)

    if _same(result, trained(len(x))):
        return
    if _same(result, trained(len(x) // 4 * 4)):
        raise Wrong("the last batch, which is not full, is left out: keep its step")
    if _same(result, trained(len(x), epochs=1)):
        raise Wrong("only one pass over the data was made; epochs=3 was asked for")
    if any(_same(result, trained(len(x), lr=lr)) for lr in (0.025, 0.1)):
        raise Wrong("the steps have another size; change only what causes the leak")
    raise Wrong(
        f"on {len(x)} examples the steps differ from those of the original from the "
        "same start; change only what causes the leak, or look for something that "
        "survives from one client to the next"
    )
