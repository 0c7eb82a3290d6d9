"""The check of chapter 02's formula: who is how often available."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checking import Wrong, call, name_mistake

# Members of the group, number of clients, p: never the first clients, never half of
# them, and p is neither 1/2 nor the group's share, or wrong ideas would pass.
CASES = [((2, 5), 7, 0.7), ((1, 4, 8), 10, 1e-4), ((0, 2, 3, 4), 5, 0.3), ((3,), 4, 1)]


def check_availability(answer: Callable[..., np.ndarray]) -> str:
    """Check `availability(in_group, p)` on groups of unequal size."""
    for members, num_clients, p in CASES:
        in_group = np.zeros(num_clients, dtype=bool)
        in_group[list(members)] = True
        handed = in_group.copy()
        given = f"{len(members)} of {num_clients} clients in the group, p={p}"
        value = call(answer, handed, p, given=given)
        if not np.array_equal(handed, in_group):
            raise Wrong("in_group changed; leave what you are given as it is")
        chance = _probabilities(value, num_clients)
        _check_groups(chance, in_group, p, given)
    return "each group as a whole has its share, and its clients are equal"


def _probabilities(value: object, num_clients: int) -> np.ndarray:
    try:
        chance = np.asarray(value)
        is_number = chance.dtype.kind in "biuf"
    except (TypeError, ValueError):
        is_number = False
    if not is_number:
        found = type(value).__name__
        raise Wrong(f"expected one probability for each client, found {found}")
    if chance.shape != (num_clients,):
        raise Wrong(
            f"expected one probability for each of {num_clients} clients, in their "
            f"order, found shape {chance.shape}"
        )
    if chance.dtype.kind != "f":
        raise Wrong(
            f"the probabilities are of type {chance.dtype}, which holds no fractions; "
            "an array made like in_group has the type of in_group"
        )
    if not np.isfinite(chance).all() or (chance < 0).any():
        raise Wrong("some probabilities are negative, infinite or NaN")
    return chance.astype(float)


def _check_groups(
    chance: np.ndarray, in_group: np.ndarray, p: float, given: str
) -> None:
    """Compare the one value inside the group and the one outside."""
    for name, values in (("in", chance[in_group]), ("outside", chance[~in_group])):
        if not np.allclose(values, values[0], rtol=1e-5, atol=0):
            raise Wrong(
                f"clients {name} the group differ among themselves ({given}): is it "
                "the mask that decides, or a place in the list?"
            )
    found = (chance[in_group][0], chance[~in_group][0])
    inside, clients = in_group.sum(), len(in_group)
    outside = clients - inside
    if _is_close(found, (p / inside, (1 - p) / outside)):
        return
    name_mistake(found, _mistakes(p, inside, outside), _is_close)
    total, group = chance.sum(), chance[in_group].sum()
    if np.isclose(total, 1, rtol=1e-5):
        raise Wrong(
            f"the probabilities sum to 1, but the group as a whole gets {group:.4g} "
            f"({given})"
        )
    if np.isclose(group, p, rtol=1e-5):
        raise Wrong(
            f"the group is right, but all clients together have {total:.4g} ({given})"
        )
    raise Wrong(
        f"all clients together have {total:.4g}, the group {group:.4g} ({given}); "
        "what should these two numbers be?"
    )


def _mistakes(
    p: float, inside: int, outside: int
) -> list[tuple[tuple[float, float], str]]:
    clients = inside + outside
    total = p * inside + (1 - p) * outside
    alone = "every client {} has what its whole group should have; whom do they share "
    alone += "it with?"
    return [
        ((p, 1 - p), alone.format("in and outside the group")),
        ((p, (1 - p) / outside), alone.format("in the group")),
        ((p / inside, 1 - p), alone.format("outside the group")),
        (
            (p / clients, (1 - p) / clients),
            f"both parts are spread over all {clients} clients; but how many share "
            "each part?",
        ),
        (
            (p / outside, (1 - p) / inside),
            "each part is divided by the number of clients of the other group",
        ),
        (
            ((1 - p) / outside, p / inside),
            "the two values are right, but stand at each other's clients",
        ),
        (
            ((1 - p) / inside, p / outside),
            "the group gets what is left for the others: what does p belong to?",
        ),
        (
            (p / total, (1 - p) / total),
            "the sum is 1 because you divide by it; but is p what one client weighs, "
            "or what the group has as a whole?",
        ),
        (
            (1 / clients, 1 / clients),
            "all clients are equally likely; where does the group come in?",
        ),
    ]


def _is_close(found: tuple[float, float], wanted: tuple[float, float]) -> bool:
    return np.allclose(found, wanted, rtol=1e-5, atol=0)
