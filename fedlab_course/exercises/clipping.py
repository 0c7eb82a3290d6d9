"""Chapter 08: clip what a client says, all tensors as one vector."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import copied, expect_tensor, is_near, refuse_changes

CASES = ((2.0, 1.0), (0.3, 1.0), (5.0, 4.0), (0.6, 0.5), (0.0, 1.0))
"""Length of the step, clip."""


def check_clip_step(answer: Callable[..., dict[str, Tensor]]) -> str:
    """Check `clip_step(received, trained, clip)` on long, short and zero steps."""
    for length, clip in CASES:
        rng = torch.Generator().manual_seed(7)
        received = {
            "weight": 3 + torch.randn(2, 3, generator=rng),
            "bias": torch.randn(4, generator=rng),
        }
        step = {n: torch.randn(v.shape, generator=rng) for n, v in received.items()}
        scale = length / _length(step)
        step = {name: scale * value for name, value in step.items()}
        trained = {name: received[name] + step[name] for name in received}
        trees = [copied(received), copied(trained)]
        tensors = [dict(tree) for tree in trees]
        given = f"a step of length {length:g} and clip={clip:g}"
        found = call(answer, *trees, clip, given=given)
        for before, now, held in zip((received, trained), trees, tensors, strict=True):
            hint = "what you were given changed; build new tensors in a new dictionary"
            refuse_changes(before, now, held, changed=hint, replaced=hint)
        _check_step(found, received, step, length, clip)
    return "the whole message is one vector: long ones are cut, short ones stay"


def _length(step: dict[str, Tensor]) -> float:
    return torch.cat([value.flatten() for value in step.values()]).norm().item()


def _check_step(found, received, step, length: float, clip: float) -> None:
    if not isinstance(found, dict) or set(found) != set(received):
        raise Wrong("expected a dictionary with the names of the received one")
    value = torch.cat(
        [expect_tensor(found[n], tuple(v.shape), n).flatten() for n, v in step.items()]
    )
    start = torch.cat([tensor.flatten() for tensor in received.values()])
    s = torch.cat([tensor.flatten() for tensor in step.values()])
    right = start + s * min(1.0, clip / max(length, 1e-12))
    if is_near(value, right):
        return
    each = [v * min(1.0, clip / max(v.norm().item(), 1e-12)) for v in step.values()]
    whole = start + s
    weights = whole * min(1.0, clip / whole.norm().item())
    stretched = s * clip / max(length, 1e-12)
    squared = s * min(1.0, clip / max(length**2, 1e-12))
    mistakes = [
        (whole, f"a step of length {length:g} came through whole, clip is {clip:g}"),
        (right - start, "this is the clipped step; a message holds weights"),
        (start + stretched, "a short step was made longer: clipping only shortens"),
        (
            stretched,
            "this is a step, and short ones were made longer; asked is for weights",
        ),
        (
            start + torch.cat([v.flatten() for v in each]),
            "each tensor was clipped alone: the whole message is longer then. "
            "Which length has all of it?",
        ),
        (
            start + s.clamp(-clip, clip),
            "every number was clipped alone; the length of "
            "the whole step is what counts",
        ),
        (weights, "the weights were clipped; the step is what the client adds to them"),
        (
            start + squared,
            "the length is a square root of a sum of squares: was it taken?",
        ),
        (start - (right - start), "the step goes backwards: trained − received"),
    ]
    name_mistake(value, mistakes, is_near)
    moved = (value - start).norm().item()
    raise Wrong(
        f"the step had length {length:g}, clip is {clip:g}, and what came back lies "
        f"{moved:.3g} from the received weights, or in another direction"
    )
