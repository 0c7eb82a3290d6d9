"""What checks of tensors share: copies, the right form, and close enough."""

from __future__ import annotations

import torch
from torch import Tensor

from .checking import Wrong


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy a dictionary with its tensors, which then share nothing with the old."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def refuse_changes(
    before: dict[str, Tensor],
    now: dict[str, Tensor],
    tensors: dict[str, Tensor],
    *,
    changed: str,
    replaced: str,
) -> None:
    """Raise Wrong when an answer wrote into what it received.

    before: copies made in advance. now: the dictionary that was handed over. tensors:
    what it held. changed, replaced: the hints for other values and for other tensors.
    """
    if any(not torch.equal(before[name], tensors[name]) for name in before):
        raise Wrong(changed)
    if set(now) != set(before) or any(now[n] is not tensors[n] for n in before):
        raise Wrong(replaced)


def expect_tensor(value: object, shape: tuple[int, ...], name: str = "") -> Tensor:
    """Return a real tensor of this shape, or raise Wrong; `name` says which one."""
    text = f"{name!r}: " if name else ""
    if not isinstance(value, Tensor):
        raise Wrong(f"{text}expected a tensor, found {type(value).__name__}")
    if value.shape != shape:
        raise Wrong(f"{text}expected the shape {shape}, found {tuple(value.shape)}")
    if value.is_complex():
        raise Wrong(f"{text}expected real numbers, found complex ones")
    if not value.is_floating_point():
        raise Wrong(f"{text}expected fractions, found {value.dtype}")
    if not torch.isfinite(value).all():
        raise Wrong(f"{text}some values are infinite or NaN")
    return value.detach()


def is_near(found: Tensor, wanted: Tensor) -> bool:
    """Equal up to the rounding of float32."""
    return torch.allclose(found.double(), wanted.double(), rtol=1e-4, atol=1e-4)
