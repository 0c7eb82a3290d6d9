"""Chapter 06's formula to write: what a client counts, by its loss and its group's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .checking import Wrong, call, name_mistake
from .tensors import expect_tensor, is_near

SHARES = torch.tensor([0.1, 0.4, 0.2, 0.25, 0.05], dtype=torch.float64)
LOSSES = torch.tensor([2.0, 0.5, 1.5, 0.1, 3.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 1, 0, 1, 2])
CASES = [(0.5, 1.0), (0.0, 1.0), (1.0, 0.0), (0.3, 3.0), (0.25, 0.0)]
"""Of beta and q; the neutral ones are looked at on their own."""


def check_group_weights(answer: Callable[..., Tensor]) -> str:
    """Check `group_weights(shares, losses, groups, beta, q)` → (K,)."""
    for beta, q in CASES:
        found = _answered(answer, LOSSES, beta, q)
        _check_weights(found, beta, q)
    if not is_near(_answered(answer, LOSSES, 0.4, -1.0), SHARES):
        raise Wrong("with q = -1 no loss has a say: the shares should come back")
    if not is_near(_answered(answer, LOSSES.new_full((5,), 0.7), 0.4, 1.0), SHARES):
        raise Wrong("if all losses are equal, the shares should come back")
    return "they sum to 1, and equal losses give FedAvg's shares"


def _answered(answer: Callable, losses: Tensor, beta: float, q: float) -> Tensor:
    inputs = [SHARES, losses, GROUPS]
    handed = [tensor.clone() for tensor in inputs]
    given = f"five clients in groups {GROUPS.tolist()}, beta={beta}, q={q}"
    found = call(answer, *handed, beta, q, given=given)
    if not all(map(torch.equal, handed, inputs)):
        raise Wrong("shares, losses or groups changed; leave what you are given")
    return expect_tensor(found, (5,))


def _means() -> Tensor:
    """The mean loss of each client's group, (K,)."""
    return torch.stack([LOSSES[g == GROUPS].mean() for g in GROUPS])


def _weights(
    beta: float, q: float, shares: Tensor = SHARES, means: Tensor | None = None
) -> Tensor:
    means = _means() if means is None else means
    u = shares * (LOSSES ** (1 - beta) * means**beta) ** (q + 1)
    return u / u.sum()


def _check_weights(found: Tensor, beta: float, q: float) -> None:
    right, means = _weights(beta, q), _means()
    if is_near(found, right):
        return
    u = SHARES * (LOSSES ** (1 - beta) * means**beta) ** (q + 1)
    total = f"the weights sum to {float(found.sum()):.4g}: what keeps the mean a mean?"
    sums = torch.stack([LOSSES[g == GROUPS].sum() for g in GROUPS])
    sized = torch.stack(
        [
            (SHARES * LOSSES)[g == GROUPS].sum() / SHARES[g == GROUPS].sum()
            for g in GROUPS
        ]
    )
    straight = SHARES * ((1 - beta) * LOSSES + beta * means) ** (q + 1)
    mistakes = [
        (u, total),
        (_weights(beta, q - 1), "the power is one too low: q = 0 is not FedAvg here"),
        (_weights(beta, q, torch.ones(5)), "the data shares have no say any more"),
        (_weights(1 - beta, q), "whose power is beta, the client's or the group's?"),
        (_weights(beta, q, means=sums), "a group's loss is a mean, not a sum"),
        (
            _weights(beta, q, means=sized),
            "in the group's mean you count clients by their data, as the released code "
            "does; the paper counts clients alike",
        ),
        (
            _weights(beta, q, means=LOSSES.mean().expand(5)),
            "the mean is over all clients; which ones belong to the group?",
        ),
        (straight / straight.sum(), "a sum of two losses; the formula has a product"),
        (_weights(0.0, q), "the group has no say: where is beta?"),
        (torch.softmax(u, 0), "no exponentials here: divide by the sum"),
    ]
    name_mistake(found, mistakes, is_near)
    if abs(float(found.sum()) - 1) > 1e-4:
        raise Wrong(total)
    raise Wrong(
        f"with beta={beta} and q={q} some clients count too much. Do one client alone "
        "in its group by hand: beta cannot matter for it"
    )
