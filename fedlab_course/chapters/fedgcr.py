"""Chapter 06: prompted tokens, a client's representation, group weights, and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from ..checking.table import Case, Mistakes, count_bytes, table


@table("CLS, then every prompt shifted by the image's own h, then the patches")
def steered_tokens() -> Iterator[Case]:
    """`steered_tokens(cls, prompts, h, patches)` → (B, 1 + n + m, D)."""
    # Images, prompts, patches, features; a single image hides most mistakes.
    for sizes in ((3, 2, 4, 5), (2, 4, 3, 6), (4, 4, 1, 3), (1, 3, 2, 4)):
        images, tokens, patch_count, width = sizes
        rng = torch.Generator().manual_seed(images)
        cls, h = (torch.randn(images, s, width, generator=rng) for s in (1, 1))
        h = h[:, 0]
        prompts = torch.randn(tokens, width, generator=rng)
        patches = torch.randn(images, patch_count, width, generator=rng)
        right = torch.cat([cls, prompts + h[:, None], patches], 1)
        yield Case(
            inputs={"cls": cls, "prompts": prompts, "h": h, "patches": patches},
            right=right,
            mistakes=_token_mistakes(cls, prompts, h, patches),
            otherwise=partial(_count_wrong, right=right),
        )


def _count_wrong(found: Tensor, right: Tensor) -> str:
    wrong = (found - right).abs().amax((0, 2)).gt(1e-4).sum()
    return (
        f"{int(wrong)} of {found.shape[1]} positions hold other tokens. Take one image "
        "and one prompt: which token is first, second, and last?"
    )


def _token_mistakes(
    cls: Tensor, prompts: Tensor, h: Tensor, patches: Tensor
) -> Mistakes:
    images, tokens = len(cls), len(prompts)
    own, plain = prompts + h[:, None], prompts.expand(images, -1, -1)
    tiled = h.repeat(tokens, 1).reshape(images, tokens, -1)
    order = "right tokens in another order: which come first, which last?"

    def row(*parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)

    return [
        (row(cls, prompts + tiled, patches), "this is the released code's bug: some "
         "prompts of an image are shifted by the h of other images. Which h belongs to "
         "image b?"),
        (row(cls, plain, patches), "prompts alone; where is the image's h?"),
        (row(cls, h[:, None].expand_as(own), patches), "h alone; where are the prompts "
         "that all images share?"),
        (row(cls, plain + h.mean(0), patches), "every image gets the mean h of the "
         "batch: then the other images of the batch change an image's tokens"),
        (row(cls, prompts * h[:, None], patches), "a product; the paper adds h to the "
         "prompts"),
        (row(cls, prompts - h[:, None], patches), "check the sign of h"),
        (row(cls, own, patches) + h[:, None], "h shifts the prompts only"),
        (row(cls, own, patches + h[:, None]), "h shifts prompts, not patches"),
        (row(cls, patches, own), order),
        (row(own, cls, patches), order),
        (row(own, patches, cls), order),
        (row(patches, own, cls), order),
        (row(patches, cls, own), order),
    ]  # fmt: skip


def represent_client(h: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """A client's representation: the mean of its classes' means, (D,). One bug.

    h: one row per image, (N, D). y: their classes, int64 (N,), in 0…num_classes - 1.
    """
    member = F.one_hot(y, num_classes).to(h.dtype)  # (N, M)
    sizes = member.sum(0).clamp(min=1)
    means = (member.T @ h) / sizes[:, None]
    return means.mean(0)


@table(
    "classes that are present count equally, absent ones do not count",
    not_finite="infinite or NaN: what do you divide by for a class that the client "
    "does not have?",
)
def representation() -> Iterator[Case]:
    """A repaired `represent_client` where classes are rare, or absent."""
    classes = 6
    for labels in ([0, 1, 2, 3, 4, 5, 5, 5], [2, 2, 2, 4], [1, 5, 0, 5, 1, 5, 5], [3]):
        y = torch.tensor(labels)
        h = torch.randn(len(y), 4, generator=torch.Generator().manual_seed(len(y))) + 2
        means = torch.stack([h[y == c].mean(0) for c in y.unique()])
        yield Case(
            inputs={"h": h, "y": y, "num_classes": classes},
            right=means.mean(0),
            mistakes=[
                (represent_client(h, y, classes), "this is the original's. A client "
                 "with few classes gets a short vector, whatever its images are: why?"),
                (h.mean(0), "each image counts the same; each class should"),
                (means.sum(0), "a sum of the classes' means; divide it"),
                (h.sum(0), "a sum over images: large clients get long vectors"),
                (means.mean(0) / len(means), "divided by the number of classes twice"),
                (h.sum(0) / len(means), "a class's images are summed, not averaged"),
                (F.normalize(means.mean(0), dim=0), "right direction, wrong length"),
            ],
            otherwise="this is not the mean of the classes' means. Take a client with "
            "two classes: what comes out by hand?",
        )  # fmt: skip


SHARES = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05], dtype=torch.float64)
LOSSES = torch.tensor([2.0, 0.5, 1.5, 0.1, 3.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 1, 0, 1, 2])


@table("they sum to 1, and equal losses give FedAvg's shares")
def group_weights() -> Iterator[Case]:
    """`group_weights(shares, losses, groups, beta, q)` → (K,)."""
    for beta, q in ((0.5, 1.0), (0.0, 1.0), (1.0, 0.0), (0.3, 3.0), (0.25, 0.0)):
        right, mistakes = _group_weights(beta, q), _weight_mistakes(beta, q)
        advice = partial(_name_total, beta=beta, q=q)
        yield Case(right, mistakes, advice, _group_inputs(LOSSES, beta, q))
    neutral = "with q = -1 the losses have no effect: the shares should come back"
    yield Case(SHARES, [], neutral, _group_inputs(LOSSES, 0.4, -1.0))
    equal = "if all losses are equal, the shares should come back"
    losses = torch.full_like(LOSSES, 0.7)
    yield Case(SHARES, [], equal, _group_inputs(losses, 0.4, 1.0))


def _group_inputs(losses: Tensor, beta: float, q: float) -> dict[str, object]:
    given = {"shares": SHARES, "losses": losses, "groups": GROUPS}
    return given | {"beta": beta, "q": q}


def _name_total(found: Tensor, beta: float, q: float) -> str:
    """Describe unknown weights: by their sum, or by what to do by hand."""
    if abs(found.sum() - 1) > 1e-4:
        return _unnormed(found)
    return (
        f"with beta={beta} and q={q} some clients count too much. Do a client that is "
        "alone in its group by hand: beta cannot matter for it"
    )


def _unnormed(found: Tensor) -> str:
    total = f"{float(found.sum()):.4g}"
    return f"the weights sum to {total}: what keeps a weighted mean a mean?"


def _products(
    beta: float, q: float, shares: Tensor = SHARES, means: Tensor | None = None
) -> Tensor:
    """The weights before they are divided by their sum."""
    if means is None:  # the mean loss of each client's group
        means = torch.stack([LOSSES[g == GROUPS].mean() for g in GROUPS])
    return shares * (LOSSES ** (1 - beta) * means**beta) ** (q + 1)


def _group_weights(*settings: float, **other: Tensor) -> Tensor:
    u = _products(*settings, **other)
    return u / u.sum()


def _weight_mistakes(beta: float, q: float) -> Mistakes:
    u, groups = _products(beta, q), [g == GROUPS for g in GROUPS]
    means = torch.stack([LOSSES[group].mean() for group in groups])
    sums = torch.stack([LOSSES[group].sum() for group in groups])
    by_size = torch.stack(
        [(SHARES * LOSSES)[group].sum() / SHARES[group].sum() for group in groups]
    )
    straight = SHARES * ((1 - beta) * LOSSES + beta * means) ** (q + 1)
    return [
        (u, _unnormed(u)),
        (_group_weights(beta, q - 1), "the power is one too low; q = 0 is not FedAvg"),
        (_group_weights(beta, q, shares=torch.ones(5)), "the data shares have no "
         "effect any more"),
        (_group_weights(1 - beta, q), "whose power is beta, the client's or the "
         "group's?"),
        (_group_weights(beta, q, means=sums), "a group's loss is a mean, not a sum"),
        (_group_weights(beta, q, means=by_size), "in the group's mean you weight "
         "clients by their data, as the released code does; the paper counts clients "
         "equally"),
        (_group_weights(beta, q, means=LOSSES.mean().expand(5)), "the mean is over all "
         "clients; which ones belong to the group?"),
        (straight / straight.sum(), "a sum of two losses; the formula has a product"),
        (_group_weights(0.0, q), "the group has no effect: where is beta?"),
        (torch.softmax(u, 0), "no exponentials here: divide by the sum"),
    ]  # fmt: skip


@count_bytes(
    "prompts, GC-Net and head twice; centres down, the representation up",
    (4, 96, 10, 5),
    (2, 5, 3, 7),
    advice="Count what is trained: prompts, GC-Net with its biases, head; twice. Then "
    "add what travels in only one direction",
)
def fedgcr_bytes(
    prompts: int, width: int, classes: int, groups: int
) -> tuple[float, Mistakes]:
    """Bytes that a client of FedGCR receives and sends in a round, from the second on.

    width: D; GC-Net has 4 D hidden units. groups: T', each with a centre.
    """
    tokens, head = prompts * width, classes * (width + 1)
    net = 2 * 4 * width * width + 5 * width
    trained, vector = 4 * (tokens + net + head), 4 * width
    down, up = groups * vector + 8, vector + 2 * 8
    right = 2 * trained + down + up
    return right, [
        (2 * trained, "the trained weights are there; what else is sent?"),
        (trained + down, "this is what goes down; what goes up?"),
        (trained + up, "this is what goes up; what came down?"),
        (trained, "what is trained, once; it crosses the wire twice a round"),
        (right - 8 * net, "GC-Net is trained, too, and must travel"),
        (right - 8 * head, "is the head private? It is trained, so it travels"),
        (right - 8 * tokens, "the prompts travel, too"),
        (right - 8 * 5 * width, "GC-Net's two layers have biases"),
        (right - 8 * classes, "the head has a bias for every class"),
        (right - groups * vector, "which loss needs the groups' centres?"),
        (right - vector, "what does the server find the groups by?"),
        (right - 8, "one of three small numbers is missing: group, loss, size"),
        (right - 2 * 8, "two of three small numbers are missing: group, loss, size"),
        (right - 3 * 8, "three small numbers of 8 bytes each are missing"),
        (right + groups * vector, "clients do not send the centres"),
        (right / 4, "these are numbers, not bytes"),
    ]  # fmt: skip
