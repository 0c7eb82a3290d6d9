"""The check of chapter 01's core task: FedAvg's average.

The inputs are chosen such that every tensor tells which share each client got: solving
for the shares turns a wrong number into a named mistake.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call

COUNTER = "norm.num_batches_tracked"


def check_weighted_average(answer: Callable[..., dict[str, Tensor]]) -> str:
    """Check `weighted_average(weights, sizes)` on unequal clients."""
    for sizes in ([10, 90], [1, 2, 5], [40]):
        weights = _clients(len(sizes))
        handed = [{n: t.clone() for n, t in client.items()} for client in weights]
        tensors, handed_sizes = [dict(client) for client in handed], list(sizes)
        given = f"{len(sizes)} clients with {sizes} examples"
        result = call(answer, handed, handed_sizes, given=given)
        _check_untouched(weights, handed, tensors)
        if handed_sizes != sizes:
            raise Wrong("the list of sizes changed; work on a copy")
        _check_form(result, weights)
        for name in _floating(weights[0]):
            _check_shares(name, result[name], weights, sizes)
    return "larger clients count more, and nobody's weights were changed"


def _clients(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [
        {
            "conv.weight": torch.randn(2, 3, generator=generator) + client,
            "norm.running_mean": torch.randn(5, generator=generator) + 3,
            COUNTER: torch.tensor(10 + 7 * client),
            "head.bias": torch.randn(4, generator=generator, dtype=torch.float64),
        }
        for client in range(count)
    ]


def _floating(weights: dict[str, Tensor]) -> list[str]:
    return [name for name, tensor in weights.items() if tensor.is_floating_point()]


def _check_untouched(
    weights: list[dict[str, Tensor]],
    handed: list[dict[str, Tensor]],
    tensors: list[dict[str, Tensor]],
) -> None:
    for number, (before, now, held) in enumerate(
        zip(weights, handed, tensors, strict=True)
    ):
        is_same = set(now) == set(before) and all(now[n] is held[n] for n in before)
        if not is_same or any(not torch.equal(before[n], held[n]) for n in before):
            raise Wrong(
                f"the weights of client {number} changed: your function writes into "
                "the tensors or the dictionary it was given. Where does your running "
                "sum start, and which statements work in place?"
            )


def _check_form(result: object, weights: list[dict[str, Tensor]]) -> None:
    if not isinstance(result, dict):
        raise Wrong(f"expected a dictionary of tensors, found {type(result).__name__}")
    for name in _floating(weights[0]):
        tensor, wanted = result.get(name), weights[0][name]
        if not isinstance(tensor, Tensor):
            raise Wrong(f"{name!r} is missing, or is no tensor")
        if tensor.shape != wanted.shape:
            shapes = f"{tuple(wanted.shape)}, found {tuple(tensor.shape)}"
            raise Wrong(f"{name!r}: expected the clients' shape {shapes}")
        if tensor.dtype != wanted.dtype:
            raise Wrong(
                f"{name!r} came in as {wanted.dtype} and came back as {tensor.dtype}"
            )
        if not torch.isfinite(tensor).all():
            raise Wrong(f"{name!r} holds infinite values or NaN")
    counter = result.get(COUNTER)
    if counter is not None and all(
        not torch.equal(torch.as_tensor(counter), client[COUNTER]) for client in weights
    ):
        raise Wrong(
            f"{COUNTER!r} counts batches: averaging integers breaks it. "
            "Keep one client's count, or leave integers out"
        )
    if counter is not None and torch.as_tensor(counter).dtype != torch.int64:
        raise Wrong(f"{COUNTER!r} is an integer counter and must stay one")
    if extra := set(result) - set(weights[0]):
        raise Wrong(f"no client sent {sorted(extra)}")


def _check_shares(
    name: str, found: Tensor, weights: list[dict[str, Tensor]], sizes: list[int]
) -> None:
    """Solve found = Σ share · weights for the shares, and name what is wrong."""
    sent = torch.stack([client[name].flatten().double() for client in weights], dim=1)
    target = found.detach().flatten().double()
    shares = torch.linalg.lstsq(sent, target[:, None]).solution[:, 0]
    if not torch.allclose(sent @ shares, target, atol=1e-4):
        raise Wrong(
            f"{name!r} has the right shape, but is no weighted sum of what the "
            "clients sent: does each client meet its own number, and does the sum "
            "start at zero?"
        )
    size = torch.tensor(sizes, dtype=torch.float64)
    if torch.allclose(shares, size / size.sum(), atol=1e-4):
        return
    raise Wrong(f"{name!r}: {_diagnose(shares, size)}")


def _diagnose(shares: Tensor, size: Tensor) -> str:
    total, count = shares.sum().item(), len(size)
    small, large = int(size.min()), int(size.max())

    def near(wanted: Tensor) -> bool:
        return torch.allclose(shares, wanted.double(), atol=1e-3)

    if near(torch.full((count,), 1 / count)):
        return (
            f"shape is right, but the client with {small} images counts as much as the "
            f"one with {large} – did you weight by size?"
        )
    if near(torch.ones(count)):
        return "the clients are added up, but never divided"
    if near((size / size.sum()).flip(0)):
        return f"the client with {small} images got the share of the one with {large}"
    if count > 1 and sum(abs(share) > 1e-3 for share in shares.tolist()) == 1:
        chosen = int(shares.abs().argmax())
        return f"only client {chosen} is in it; what happened to the others?"
    if torch.allclose(shares / total, size / size.sum(), atol=1e-3):
        text = f"larger clients count more, but the shares sum to {total:.4g}"
        is_leftover = 0 < total < 1
        return f"{text}; is a count left over from elsewhere?" if is_leftover else text
    listed = ", ".join(f"{share:.3f}" for share in shares.tolist())
    return f"the clients got the shares {listed}; how should they relate to the sizes?"
