"""Chapter 02: the bytes of asking for losses, and which clients are available."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ..checking.table import Case, Mistakes, count_bytes, table


@count_bytes(
    "the question, the answers and the updates are all counted",
    (1_000, 7, 3),
    (90, 12, 2),
    advice="Follow the round in order: the question, the answers, the updates; how "
    "many clients are in each?",
)
def bytes_of_asking(
    model_bytes: int, candidates: int, chosen: int
) -> tuple[float, Mistakes]:
    """Bytes of one round of power of choice, in both directions, for all clients.

    candidates, chosen: how many clients are asked for a loss, and how many train.
    """
    model, asked, train = model_bytes, candidates, chosen
    down, losses, up = asked * model, 4 * asked, train * (model + 8)
    right, again, plain = down + losses + up, train * model, train * (2 * model + 8)
    twice = "the chosen clients get the model twice; what do they still have when they "
    twice += "start to train?"
    small = "an update is more than the model: which number did chapter 01 add?"
    return right, [
        (right + again, twice),
        (right + again - 8 * train, f"{twice} Besides, {small}"),
        (losses + plain, "what does a client need to compute a loss, chosen or not?"),
        (4 * train + plain, "candidates that are not chosen cost bytes, too"),
        (plain, "this is a round in which no client is asked"),
        (down + up, "how does the server learn which clients have the highest loss?"),
        (down + 4 * train + up, "who sends a loss: only the clients that are chosen?"),
        (down + losses + again, small),
        (down + again, "the models are all there; which small messages go up, too?"),
        (down, "this is what goes down; something also comes back"),
        (losses + up, "this is what goes up; what came down before?"),
        (up, "these are the updates; what had to be sent before them?"),
        (down + losses, "this is the query; what do the chosen clients do then?"),
        (down + losses + asked * (model + 8), "does every candidate train?"),
        (down + 2 * losses + up, "a loss is a float32: how many bytes?"),
        (down + asked + up, "a loss is one number, but how many bytes is that?"),
        (right - 4 * train, "num_examples is an int64: how many bytes?"),
        (2 * model + 12, "right for one client that trains; what of the whole round?"),
        (right / asked, "this is a mean per candidate; count the whole round"),
        (right / train, "this is a mean per chosen client; count the whole round"),
    ]


GROUPS = [
    ((2, 5), 7, 0.7),
    ((1, 4, 8), 10, 1e-4),
    ((0, 2, 3, 4), 5, 0.3),
    ((3,), 4, 1.0),
]
"""Members, number of clients, p: never the first clients and never half of them, and p
is neither 1/2 nor the group's share, or wrong ideas would pass."""


@table(
    "each group as a whole has its share, and its clients are equally likely",
    rtol=1e-5,
    atol=0,
    what="one probability for each client, in their order",
)
def availability() -> Iterator[Case]:
    """`availability(in_group, p)`, (K,) → (K,), on groups of unequal size."""
    for members, num_clients, p in GROUPS:
        in_group = np.zeros(num_clients, dtype=bool)
        in_group[list(members)] = True
        inside = len(members)
        given = f"{inside} of {num_clients} clients in the group, p={p}"
        pairs = _availability_mistakes(p, inside, num_clients - inside)
        yield Case(
            inputs={"in_group": in_group, "p": p},
            given=given,
            right=np.where(in_group, p / inside, (1 - p) / (num_clients - inside)),
            mistakes=[(np.where(in_group, *pair), hint) for pair, hint in pairs],
            otherwise=partial(_name_totals, in_group=in_group, p=p, given=given),
        )


def _name_totals(chance: np.ndarray, in_group: np.ndarray, p: float, given: str) -> str:
    """Describe probabilities by their sums, in the group and over all clients."""
    if (chance < 0).any():
        return "some probabilities are negative"
    for name, values in (("in", chance[in_group]), ("outside", chance[~in_group])):
        if not np.allclose(values, values[0], rtol=1e-5, atol=0):
            return (
                f"clients {name} the group differ among themselves ({given}): does the "
                "mask decide, or a position in the list?"
            )
    total, group = chance.sum(), chance[in_group].sum()
    sums = f"all clients together have {total:.4g}, the group {group:.4g} ({given})"
    if np.isclose(total, 1, rtol=1e-5):
        return f"the probabilities sum to 1, but the group as a whole is wrong: {sums}"
    if np.isclose(group, p, rtol=1e-5):
        return f"the group is right, but the sum is not: {sums}"
    return f"{sums}; what should these two numbers be?"


def _availability_mistakes(p: float, inside: int, outside: int) -> Mistakes:
    """Probabilities in and outside the group after typical mistakes, with hints."""
    clients = inside + outside
    total = p * inside + (1 - p) * outside
    alone = "every client {} has what its whole group should share"
    return [
        ((p, 1 - p), alone.format("in and outside the group")),
        ((p, (1 - p) / outside), alone.format("in the group")),
        ((p / inside, 1 - p), alone.format("outside the group")),
        ((p / clients, (1 - p) / clients), f"both parts are spread over all {clients} "
         "clients; how many clients share each part?"),
        ((p / outside, (1 - p) / inside), "each part is divided by the size of the "
         "other group"),
        (((1 - p) / outside, p / inside), "right values, but the two groups have "
         "exchanged them"),
        (((1 - p) / inside, p / outside), "swapped: which group does p belong to?"),
        ((p / total, (1 - p) / total), "the sum is 1 because you divide by it; but is "
         "p the weight of one client, or of the group as a whole?"),
        ((1 / clients, 1 / clients), "all clients are equally likely; where is the "
         "group?"),
    ]  # fmt: skip
