"""Chapter 08: every client's own mean, though all stand in one padded stack."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near


def check_client_losses(answer: Callable[[Tensor, Tensor], Tensor]) -> str:
    """Check `client_losses(losses, sizes)`: values, gradient, and what it is given."""
    for sizes in ([3, 5, 1], [2, 4], [4]):
        rng = torch.Generator().manual_seed(len(sizes))
        size = torch.tensor(sizes)
        losses = 1 + torch.rand(len(sizes), max(sizes), generator=rng)
        is_real = torch.arange(max(sizes)) < size[:, None]
        losses[~is_real] = 50.0  # padding is no loss, and must not look like one
        handed, handed_sizes = losses.clone().requires_grad_(), size.clone()
        rows = f"losses {tuple(losses.shape)}, sizes {sizes}"
        found = call(answer, handed, handed_sizes, given=rows)
        if not torch.equal(handed, losses) or not torch.equal(handed_sizes, size):
            raise Wrong("losses or sizes changed; work on new tensors")
        _check_values(found, losses, size, is_real)
        _check_gradient(found, handed, is_real)
    return "each client has its own mean, and padding has no say, not even a gradient"


def _check_values(found, losses: Tensor, size: Tensor, is_real: Tensor) -> None:
    count, width = losses.shape
    real = losses * is_real
    right = real.sum(1) / size
    if isinstance(found, Tensor) and found.shape == () and count > 1:
        raise Wrong("one number came back; every client needs a loss of its own, (K,)")
    if isinstance(found, Tensor) and found.shape == (width,) != (count,):
        raise Wrong("you averaged over the clients; the samples are the other axis")
    value = expect_tensor(found, (count,))
    padded = "the padding counts: where a client has no sample, losses hold anything"
    mistakes = [
        (real.sum(1) / width, "padding is out of the sum, but not out of the divisor"),
        (losses.mean(1), padded),
        (losses.sum(1) / size, padded + " (the divisor is right)"),
        (losses.sum(1), padded + ", and nothing is divided"),
        (real.sum(1), "these are sums; a client with more samples would step further"),
        (
            real.sum(1) / size.sum(),
            "divided by the samples of all clients, not its own",
        ),
        (
            right / count,
            "each is divided by the number of clients once more: every "
            "client would step K times too short",
        ),
        ((losses * ~is_real).sum(1) / size, "the mask is the wrong way round"),
        (real.sum(1) / (size - 1).clamp(min=1), "the divisor is off by one"),
    ]
    if not is_near(value, right):
        name_mistake(value, mistakes, is_near)
        raise Wrong(
            "not the mean of each client's first n losses. Build the mask on paper: "
            f"what is its row for a client with {int(size[0])} samples?"
        )


def _check_gradient(found: Tensor, handed: Tensor, is_real: Tensor) -> None:
    if not found.requires_grad:
        raise Wrong("no gradient flows back: keep tensors, no .item(), no .detach()")
    (slope,) = torch.autograd.grad(found.sum(), handed)
    if (slope[~is_real] != 0).any():
        raise Wrong("the values are right, but padding still gets a gradient")
