"""Chapter 06's core task: the tokens that a steered transformer takes in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

# Pictures, prompts, patches, features; a single picture hides most mistakes.
CASES = [(3, 2, 4, 5), (2, 4, 3, 6), (4, 4, 1, 3), (1, 3, 2, 4)]


def check_steered_tokens(answer: Callable[..., Tensor]) -> str:
    """Check `steered_tokens(cls, prompts, h, patches)` → (B, 1 + n + m, D)."""
    for num, tokens, places, width in CASES:
        rng = torch.Generator().manual_seed(num)
        cls, h = (torch.randn(num, s, width, generator=rng) for s in (1, 1))
        h = h[:, 0]
        prompts = torch.randn(tokens, width, generator=rng)
        patches = torch.randn(num, places, width, generator=rng)
        inputs = [cls, prompts, h, patches]
        handed = [tensor.clone() for tensor in inputs]
        sizes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        found = call(answer, *handed, given=f"cls, prompts, h, patches of {sizes}")
        if not all(map(torch.equal, handed, inputs)):
            raise Wrong("one of the four inputs changed; leave them as they are")
        found = expect_tensor(found, (num, 1 + tokens + places, width))
        right = _in_a_row(cls, prompts + h[:, None], patches)
        if not is_near(found, right):
            name_mistake(found, _mistakes(cls, prompts, h, patches), is_near)
            raise Wrong(
                f"{int((found - right).abs().amax((0, 2)).gt(1e-4).sum())} of "
                f"{found.shape[1]} places hold other tokens. Take one picture and one "
                "prompt: what stands first, second, and behind?"
            )
    return "CLS, then every prompt moved by the own picture's h, then the patches"


def _in_a_row(*parts: Tensor) -> Tensor:
    return torch.cat(parts, 1)


def _mistakes(
    cls: Tensor, prompts: Tensor, h: Tensor, patches: Tensor
) -> list[tuple[Tensor, str]]:
    """What typical mistakes give, and a hint for each."""
    num, tokens = len(cls), len(prompts)
    own, plain = prompts + h[:, None], prompts.expand(num, -1, -1)
    tiled = h.repeat(tokens, 1).reshape(num, tokens, -1)
    order = "right tokens in another order: who comes first, who last?"
    return [
        (
            _in_a_row(cls, prompts + tiled, patches),
            "this is the released code's bug: some prompts of a picture are moved by "
            "the h of other pictures. Which h belongs to picture b?",
        ),
        (_in_a_row(cls, plain, patches), "prompts alone; where is the picture's h?"),
        (
            _in_a_row(cls, h[:, None].expand_as(own), patches),
            "h alone; where are the prompts that all pictures share?",
        ),
        (
            _in_a_row(cls, plain + h.mean(0), patches),
            "every picture gets the mean h of the batch: then who is in the batch "
            "changes what a picture looks like",
        ),
        (
            _in_a_row(cls, prompts * h[:, None], patches),
            "prompt times h; the paper moves prompts, by a sum",
        ),
        (_in_a_row(cls, prompts - h[:, None], patches), "mind the sign of h"),
        (_in_a_row(cls, own, patches) + h[:, None], "h moves the prompts only"),
        (_in_a_row(cls, own, patches + h[:, None]), "h moves prompts, not patches"),
        (_in_a_row(cls, patches, own), order),
        (_in_a_row(own, cls, patches), order),
        (_in_a_row(own, patches, cls), order),
        (_in_a_row(patches, own, cls), order),
        (_in_a_row(patches, cls, own), order),
    ]
