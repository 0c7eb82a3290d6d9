"""Chapter 04's bug to diagnose: noise of another size than the formula says."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

EPSILON = 1e-6


def shift_means(mean: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """Shift the channel means of a batch, as FedFA's layer does it.

    mean: the mean of each channel of each picture, (B, C). gamma: (C,). noise: standard
    normal, (B, C). Returns the shifted means, (B, C). One bug is hidden here.
    """
    spread = (gamma + 1) * (mean.var(dim=0) + EPSILON)
    return mean + noise * spread


def check_noisy_means(answer: Callable[[Tensor, Tensor, Tensor], Tensor]) -> str:
    """Check a repaired `shift_means` where means hardly differ, and where they do."""
    for scale, num_examples, channels in ((0.05, 6, 4), (3.0, 5, 3)):
        rng = torch.Generator().manual_seed(channels)
        mean = scale * torch.randn(num_examples, channels, generator=rng) + 2
        gamma = torch.rand(channels, generator=rng) * 2
        noise = torch.randn(num_examples, channels, generator=rng)
        handed = [mean.clone(), gamma.clone(), noise.clone()]
        given = f"means and noise {tuple(mean.shape)}, gamma ({channels},)"
        found = call(answer, *handed, given=given)
        if not all(map(torch.equal, handed, (mean, gamma, noise))):
            raise Wrong("mean, gamma or noise changed; leave what you are given")
        shifted = expect_tensor(found, tuple(mean.shape))
        _check_shift(shifted, mean, gamma, noise)
    return "the noise has the unit of the means, and the size that the formula says"


def _check_shift(found: Tensor, mean: Tensor, gamma: Tensor, noise: Tensor) -> None:
    own, more = mean.var(0) + EPSILON, gamma + 1
    right = mean + noise * (more * own).sqrt()
    if is_near(found, right):
        return
    unit = "suppose that all means are measured in other units, ten times as large: by "
    unit += "how much should the noise grow, and by how much does it?"
    mistakes = [
        (mean + noise * more * own, "this is the original's shift. " + unit),
        (mean + noise * more * own.sqrt(), "gamma scales a variance, not a deviation"),
        (mean + noise * more.sqrt() * own, "right for gamma alone; " + unit),
        (mean + noise * own.sqrt(), "gamma has no say any more"),
        (mean + noise * (gamma * own).sqrt(), "where gamma is 0 the noise is gone"),
        (mean + noise[:1] * (more * own).sqrt(), "every picture has noise of its own"),
        (mean + noise * (more * own) ** 2, "the wrong way: " + unit),
        (mean, "the means came back as they were"),
    ]
    name_mistake(found, mistakes, is_near)
    raise Wrong(
        "this is another shift than the formula's. Change only what causes the bug: a "
        "variance is a square"
    )
