"""Chapter 06's bug to diagnose: a client's representation that shows what it lacks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

NUM_CLASSES = 6


def represent_client(h: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """What a client is like: the mean of the means of its classes, (D,).

    h: one row per picture, (N, D). y: their classes, int64 (N,), in 0…num_classes - 1.
    One bug is hidden here.
    """
    member = F.one_hot(y, num_classes).to(h.dtype)  # (N, M)
    sizes = member.sum(0).clamp(min=1)
    means = (member.T @ h) / sizes[:, None]
    return means.mean(0)


def check_representation(answer: Callable[[Tensor, Tensor, int], Tensor]) -> str:
    """Check a repaired `represent_client` where classes are rare, or absent."""
    for classes in ([0, 1, 2, 3, 4, 5, 5, 5], [2, 2, 2, 4], [1, 1, 0, 5, 5, 5, 5], [3]):
        y = torch.tensor(classes)
        h = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(len(y))) + 2
        handed = h.clone(), y.clone()
        given = f"h {tuple(h.shape)}, y = {classes}, num_classes={NUM_CLASSES}"
        found = call(answer, *handed, NUM_CLASSES, given=given)
        if not (torch.equal(handed[0], h) and torch.equal(handed[1], y)):
            raise Wrong("h or y changed; leave what you are given")
        if isinstance(found, Tensor) and not torch.isfinite(found).all():
            raise Wrong(
                f"infinite or NaN for y = {classes}: what do you divide by for a class "
                "that the client does not have?"
            )
        _check_mean(expect_tensor(found, (h.shape[1],)), h, y)
    return "classes that are there count alike, those that are not do not count"


def _check_mean(found: Tensor, h: Tensor, y: Tensor) -> None:
    present = y.unique()
    means = torch.stack([h[y == c].mean(0) for c in present])
    if is_near(found, means.mean(0)):
        return
    absent = "a client with few classes gets a short vector, whatever its pictures look"
    mistakes = [
        (means.sum(0) / NUM_CLASSES, f"this is the original's. {absent} like: why?"),
        (h.mean(0), "each picture counts the same; each class should"),
        (means.sum(0), "a sum of the classes' means; divide it"),
        (h.sum(0), "a sum over pictures: large clients get long vectors"),
        (means.mean(0) / len(present), "divided by the number of classes twice"),
        (h.sum(0) / len(present), "a class's pictures are summed, not averaged"),
        (F.normalize(means.mean(0), dim=0), "right direction; keep the length, too"),
    ]
    name_mistake(found, mistakes, is_near)
    raise Wrong(
        "this is no mean of the classes' means. Take a client with two classes: what "
        "comes out by hand?"
    )
