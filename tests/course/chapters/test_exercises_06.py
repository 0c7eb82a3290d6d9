"""Exercises of chapter 06: tokens, a representation, weights of groups, bytes."""

import pytest
import torch
from torch.nn import functional as F

from fedlab_course.chapters.fedgcr import GROUPS, LOSSES, SHARES
from fedlab_course.exercises import represent_client
from fedlab_support.methods.shared.grouping import group_weights as by_the_package

FORM = {"prompts": 4, "width": 768, "classes": 10, "groups": 5}
RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
GIVEN = {"fedgcr_bytes": FORM}
HIDDEN = {
    "steered_tokens": ["[:, None]"],
    "representation": ["unique"],
    "group_weights": ["q + 1"],
}


def row(cls, prompts, h, patches):
    return torch.cat([cls, prompts + h[:, None], patches], 1)


def row_by_loop(cls, prompts, h, patches):
    rows = [
        torch.stack([c[0], *(p + own for p in prompts), *places])
        for c, own, places in zip(cls, h, patches, strict=True)
    ]
    return torch.stack(rows)


RIGHT["steered_tokens"] = [row, row_by_loop]


def tiled(cls, prompts, h, patches):
    num, tokens = len(cls), len(prompts)
    moved = prompts + h.repeat(tokens, 1).reshape(num, tokens, -1)
    return torch.cat([cls, moved, patches], 1)


def steered(middle):
    def answer(cls, prompts, h, patches):
        tokens = middle(prompts, h).expand(len(cls), -1, -1)
        return torch.cat([cls, tokens, patches], 1)

    return answer


def changes_h(cls, prompts, h, patches):
    return row(cls, prompts, h.mul_(2), patches)


WRONG["steered_tokens"] = [
    (tiled, "released code's bug"),
    (steered(lambda p, h: p), "where is the image's h"),
    (steered(lambda p, h: h[:, None].expand(-1, len(p), -1)), "where are the prompts"),
    (steered(lambda p, h: p + h.mean(0)), "mean h of the batch"),
    (steered(lambda p, h: p * h[:, None]), "adds h to the prompts"),
    (steered(lambda p, h: p - h[:, None]), "sign"),
    (lambda c, p, h, x: row(c, p, h, x) + h[:, None], "prompts only"),
    (lambda c, p, h, x: row(c, p, h, x + h[:, None]), "not patches"),
    (lambda c, p, h, x: torch.cat([c, x, p + h[:, None]], 1), "another order"),
    (lambda c, p, h, x: torch.cat([p + h[:, None], c, x], 1), "another order"),
    (lambda c, p, h, x: torch.cat([c, p + h[:, None]], 1), "shape"),
    (lambda c, p, h, x: 3 * row(c, p, h, x), "positions hold other tokens"),
    (changes_h, "changed"),
]


def represent(h, y, num_classes):
    return torch.stack([h[y == c].mean(0) for c in y.unique()]).mean(0)


def represent_by_member(h, y, num_classes):
    member = F.one_hot(y, num_classes).to(h.dtype)
    sizes = member.sum(0)
    means = (member.T @ h) / sizes.clamp(min=1)[:, None]
    return means.sum(0) / (sizes > 0).sum()


RIGHT["representation"] = [represent, represent_by_member]


def without_clamp(h, y, num_classes):
    member = F.one_hot(y, num_classes).to(h.dtype)
    return ((member.T @ h) / member.sum(0)[:, None]).mean(0)


def by_runs(h, y, num_classes):
    """Right only if the images of a class stand beside each other."""
    sizes = y.unique_consecutive(return_counts=True)[1]
    return torch.stack([part.mean(0) for part in h.split(sizes.tolist())]).mean(0)


WRONG["representation"] = [
    (represent_client, "original"),
    (without_clamp, "does not have"),
    (lambda h, y, m: h.mean(0), "each class should"),
    (by_runs, "mean of the classes' means"),
    (lambda h, y, m: represent(h, y, m) * len(y.unique()), "divide it"),
    (lambda h, y, m: h.sum(0), "sum over images"),
    (lambda h, y, m: represent(h, y, m) / len(y.unique()), "twice"),
    (lambda h, y, m: h.sum(0) / len(y.unique()), "not averaged"),
    (lambda h, y, m: F.normalize(represent(h, y, m), dim=0), "length"),
    (lambda h, y, m: represent(h, y, m)[None], "shape"),
    (lambda h, y, m: represent(h.mul_(2), y, m), "changed"),
    (lambda h, y, m: represent(h, y, m) + 1, "by hand"),
]


def weights(shares, losses, groups, beta, q):
    means = torch.stack([losses[groups == g].mean() for g in groups])
    u = shares * (losses ** (1 - beta) * means**beta) ** (q + 1)
    return u / u.sum()


RIGHT["group_weights"] = [weights, lambda *given: by_the_package(*given)]


def weighed(u):
    def answer(shares, losses, groups, beta, q):
        means = torch.stack([losses[groups == g].mean() for g in groups])
        found = u(shares, losses, means, beta, q)
        return found / found.sum()

    return answer


def summed(shares, losses, groups, beta, q):
    means = torch.stack([losses[groups == g].sum() for g in groups])
    u = shares * (losses ** (1 - beta) * means**beta) ** (q + 1)
    return u / u.sum()


def as_released(shares, losses, groups, beta, q):
    means = [
        (shares * losses)[groups == g].sum() / shares[groups == g].sum() for g in groups
    ]
    u = shares * (losses ** (1 - beta) * torch.stack(means) ** beta) ** (q + 1)
    return u / u.sum()


def unnormalised(shares, losses, groups, beta, q):
    means = torch.stack([losses[groups == g].mean() for g in groups])
    return shares * (losses ** (1 - beta) * means**beta) ** (q + 1)


WRONG["group_weights"] = [
    (unnormalised, "sum to"),
    (weighed(lambda s, x, m, b, q: s * (x ** (1 - b) * m**b) ** q), "one too low"),
    (weighed(lambda s, x, m, b, q: (x ** (1 - b) * m**b) ** (q + 1)), "data shares"),
    (weighed(lambda s, x, m, b, q: s * (x * x / m) ** (q + 1)), "count too much"),
    (
        weighed(lambda s, x, m, b, q: s * (x**b * m ** (1 - b)) ** (q + 1)),
        "whose power",
    ),
    (summed, "not a sum"),
    (as_released, "released code"),
    (
        weighed(lambda s, x, m, b, q: s * (x ** (1 - b) * x.mean() ** b) ** (q + 1)),
        "over all clients",
    ),
    (
        weighed(lambda s, x, m, b, q: s * ((1 - b) * x + b * m) ** (q + 1)),
        "has a product",
    ),
    (weighed(lambda s, x, m, b, q: s * x ** (q + 1)), "where is beta"),
    (
        lambda s, x, g, b, q: torch.softmax(unnormalised(s, x, g, b, q), 0),
        "exponentials",
    ),
    (lambda s, x, g, b, q: weights(s, x.mul_(2), g, b, q), "changed"),
    (lambda s, x, g, b, q: weights(s, x, g, b, q)[:3], "shape"),
]


def test_the_example_of_the_weights_differs_for_every_mistake():
    """Groups of two and of one, unequal shares: no mistake is right by luck."""
    assert SHARES.sum() == pytest.approx(1)
    assert len(set(LOSSES.tolist())) == len(LOSSES)
    assert torch.bincount(GROUPS).tolist() == [2, 2, 1]


def fedgcr_bytes(prompts, width, classes, groups):
    net = 8 * width**2 + 5 * width
    trained = prompts * width + net + classes * (width + 1)
    return 4 * (2 * trained + (groups + 1) * width) + 24


BYTES = fedgcr_bytes(**FORM)
THETA = 4 * 4_733_194


def test_the_bytes_are_those_of_the_specification():
    assert BYTES == 2 * THETA + 4 * 768 * 5 + 8 + 3088


RIGHT["fedgcr_bytes"] = [fedgcr_bytes, BYTES]
WRONG["fedgcr_bytes"] = [
    (2 * THETA, "what else"),
    (THETA + 4 * 768 * 5 + 8, "what goes up"),
    (THETA + 3088, "what came down"),
    (THETA, "twice a round"),
    (BYTES - 8 * (8 * 768**2 + 5 * 768), "GC-Net is trained"),
    (BYTES - 8 * 7690, "head private"),
    (BYTES - 8 * 3072, "prompts travel"),
    (BYTES - 8 * 5 * 768, "biases"),
    (BYTES - 4 * 768 * 5, "centres"),
    (BYTES - 4 * 768, "find the groups by"),
    (BYTES - 8, "small number"),
    (BYTES / 4, "not bytes"),
    (BYTES / 1000, "kB"),
    (7, "less than"),
    ("many", "str"),
]
