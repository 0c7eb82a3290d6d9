"""Exercises of chapter 02: availability, power of choice, and a wrong index."""

import numpy as np
import pytest
import torch

from fedlab_course.exercises import check, select_by_position

RIGHT, WRONG = {}, {}  # of each exercise, for test_answers
HIDDEN = {
    "availability": ["/"],
    "power_of_choice": ["argsort", "candidates["],
    "wrong_clients": ["position", "candidates["],
}


def availability(in_group, p):
    inside = in_group.sum()
    return np.where(in_group, p / inside, (1 - p) / (len(in_group) - inside))


def available_with(inside, outside):
    """Availability with other values: functions of p, and of who is in and outside."""

    def answer(in_group, p):
        counts = p, int(in_group.sum()), int((~in_group).sum())
        return [inside(*counts) if is_in else outside(*counts) for is_in in in_group]

    return answer


def right_inside(p, inside, outside):
    return p / inside


def right_outside(p, inside, outside):
    return (1 - p) / outside


def fills(in_group, p):
    chance = np.zeros(len(in_group))
    chance[in_group] = p / in_group.sum()
    chance[~in_group] = (1 - p) / (~in_group).sum()
    return chance


def on_tensors(in_group, p):
    return torch.as_tensor(availability(in_group, p), dtype=torch.float32)


listed = available_with(right_inside, right_outside)
RIGHT["availability"] = [availability, fills, on_tensors, listed]


def like_the_mask(in_group, p):
    chance = np.zeros_like(in_group)
    chance[in_group] = p / in_group.sum()
    return chance


def first_clients(in_group, p):
    return availability(np.sort(in_group)[::-1], p)


def empties_the_group(in_group, p):
    chance = availability(in_group, p)
    in_group[:] = False
    return chance


WRONG["availability"] = [
    (like_the_mask, "no fractions"),
    (first_clients, "does the mask decide"),
    (empties_the_group, "'in_group' changed"),
    (lambda in_group, p: p, "shape ()"),
    (lambda in_group, p: (p, 1 - p), "shape (2,)"),
    (lambda in_group, p: "p", "str"),
    (lambda in_group, p: -in_group * p, "negative"),
]
WRONG["availability"] += [
    (available_with(inside, outside), words)
    for inside, outside, words in [
        (lambda p, i, o: p, lambda p, i, o: 1 - p, "in and outside the group has"),
        (lambda p, i, o: p, right_outside, "client in the group has"),
        (right_inside, lambda p, i, o: 1 - p, "client outside the group has"),
        (lambda p, i, o: p / (i + o), lambda p, i, o: (1 - p) / (i + o), "spread"),
        (lambda p, i, o: p / o, lambda p, i, o: (1 - p) / i, "of the other group"),
        (right_outside, right_inside, "the two groups have"),
        (
            lambda p, i, o: (1 - p) / i,
            lambda p, i, o: p / o,
            "which group does p belong to",
        ),
        (
            lambda p, i, o: p / (p * i + (1 - p) * o),
            lambda p, i, o: (1 - p) / (p * i + (1 - p) * o),
            "because you divide by it",
        ),
        (lambda p, i, o: 1 / (i + o), lambda p, i, o: 1 / (i + o), "equally likely"),
        (
            lambda p, i, o: p**2 / i,
            lambda p, i, o: (1 - p**2) / o,
            "the group 0.49",
        ),
        (right_inside, lambda p, i, o: 1 / o, "together have 1.7"),
        (lambda p, i, o: 0.5, lambda p, i, o: 0.25, "these two numbers"),
    ]
]


STUBS = {"availability": [lambda in_group, p: np.where(in_group, ..., ...)]}


def draw_by_size(sizes, d, rng):
    return rng.choice(len(sizes), d, replace=False, p=sizes / sizes.sum())


def power_of_choice(sizes, losses, d, m, rng):
    candidates = draw_by_size(sizes, d, rng)
    return candidates[np.argsort(losses[candidates])[-m:]]


def one_by_one(sizes, losses, d, m, rng):
    candidates = []
    while len(candidates) < d:
        client = rng.choice(len(sizes), p=sizes / sizes.sum())
        if client not in candidates:
            candidates.append(int(client))
    return sorted(candidates, key=lambda client: -losses[client])[:m]


def by_exponential_clocks(sizes, losses, d, m, rng):
    candidates = np.argsort(rng.exponential(size=len(sizes)) / sizes)[:d]
    best = sorted(zip(losses[candidates], candidates, strict=True))[-m:]
    return {int(client) for _, client in best}


RIGHT["power_of_choice"] = [power_of_choice, one_by_one, by_exponential_clocks]


@pytest.mark.slow
@pytest.mark.parametrize("shift", range(3))
def test_chance_does_not_refuse_the_right_power_of_choice(shift):
    def other_seed(sizes, losses, d, m, rng):
        seed = int(rng.integers(2**32)) + shift
        return power_of_choice(sizes, losses, d, m, np.random.default_rng(seed))

    assert check("power_of_choice", other_seed).passed is True


def wrong_choices():
    """Typical mistakes in power of choice, each with words of its hint."""

    def positions(sizes, losses, d, m, rng):
        return np.argsort(losses[draw_by_size(sizes, d, rng)])[-m:]

    def lowest(sizes, losses, d, m, rng):
        return power_of_choice(sizes, -losses, d, m, rng)

    def uniform(sizes, losses, d, m, rng):
        return power_of_choice(np.ones(len(sizes)), losses, d, m, rng)

    def rare_first(sizes, losses, d, m, rng):
        return power_of_choice(1 / sizes, losses, d, m, rng)

    def sharpened(sizes, losses, d, m, rng):
        return power_of_choice(sizes**2, losses, d, m, rng)

    def largest(sizes, losses, d, m, rng):
        candidates = np.argsort(sizes)[-d:]
        rng.shuffle(candidates)
        return candidates[:m] if d < 12 else power_of_choice(sizes, losses, d, m, rng)

    def global_top(sizes, losses, d, m, rng):
        return np.argsort(losses)[-m:]

    def own_rng(sizes, losses, d, m, rng):
        return power_of_choice(sizes, losses, d, m, np.random.default_rng(0))

    def unseeded(sizes, losses, d, m, rng):
        return power_of_choice(sizes, losses, d, m, np.random.default_rng())

    def with_replacement(sizes, losses, d, m, rng):
        candidates = rng.choice(len(sizes), d, p=sizes / sizes.sum())
        return candidates[np.argsort(losses[candidates])[-m:]]

    def foreign_losses(sizes, losses, d, m, rng):
        return draw_by_size(sizes, d, rng)[np.argsort(losses[:d])[-m:]]

    def second_draw(sizes, losses, d, m, rng):
        candidates = draw_by_size(sizes, d, rng)
        chance = losses[candidates] / losses[candidates].sum()
        return rng.choice(candidates, m, replace=False, p=chance)

    def all_candidates(sizes, losses, d, m, rng):
        return draw_by_size(sizes, d, rng)

    def writes_losses(sizes, losses, d, m, rng):
        chosen = power_of_choice(sizes, losses, d, m, rng)
        losses[chosen] = 0
        return chosen

    return [
        (positions, "what do the numbers you return count"),
        (lowest, "lowest losses"),
        (uniform, "4 samples"),
        (rare_first, "small clients"),
        (sharpened, "more often ("),
        (largest, "always the same 2: "),
        (global_top, "before it chooses"),
        (own_rng, "different generators"),
        (unseeded, "equal generators"),
        (with_replacement, "twice"),
        (foreign_losses, "matched with its own loss"),
        (second_draw, "no second draw"),
        (all_candidates, "all candidates"),
        (writes_losses, "'losses' changed"),
        (lambda sizes, losses, d, m, rng: losses[:m], "float64"),
        (lambda sizes, losses, d, m, rng: losses > 2, "bool"),
        (lambda sizes, losses, d, m, rng: np.arange(m) + 1 + len(sizes), "0…11"),
        (lambda sizes, losses, d, m, rng: [], "shape (0,)"),
        (lambda sizes, losses, d, m, rng: 3, "int"),
        (lambda sizes, losses, d, m, rng: rng.choice(12, d, p=sizes), "ValueError"),
    ]


WRONG["power_of_choice"] = wrong_choices()


def select_clients(sizes, losses_of, d, m, rng):
    candidates = draw_by_size(sizes, d, rng)
    return candidates[np.argsort(-losses_of(candidates))[:m]]


def select_with_a_dictionary(sizes, losses_of, d, m, rng):
    candidates = sorted(draw_by_size(sizes, d, rng).tolist())
    losses = {client: losses_of([client])[0] for client in candidates}
    return sorted(losses, key=losses.get)[-m:]


RIGHT["wrong_clients"] = [select_clients, select_with_a_dictionary]


def wrong_clients():
    """Repairs of `select_by_position` that are none, each with words of its hint."""

    def lowest(sizes, losses_of, d, m, rng):
        return select_clients(sizes, lambda clients: -losses_of(clients), d, m, rng)

    def everyone(sizes, losses_of, d, m, rng):
        losses = losses_of(np.arange(len(sizes)))
        return power_of_choice(sizes, losses, d, m, rng)

    def asks_twice(sizes, losses_of, d, m, rng):
        chosen = select_clients(sizes, losses_of, d, m, rng)
        return chosen[np.argsort(losses_of(chosen))]

    def more_candidates(sizes, losses_of, d, m, rng):
        return select_clients(sizes, losses_of, d + 1, m, rng)

    def uniform(sizes, losses_of, d, m, rng):
        return select_clients(np.ones(len(sizes)), losses_of, d, m, rng)

    def every_candidate(sizes, losses_of, d, m, rng):
        return select_clients(sizes, losses_of, d, d, rng)

    def one_client(sizes, losses_of, d, m, rng):
        return select_clients(sizes, losses_of, d, m, rng)[:1]

    def never_asks(sizes, losses_of, d, m, rng):
        return draw_by_size(sizes, d, rng)[:m]

    def first_candidates(sizes, losses_of, d, m, rng):
        candidates = draw_by_size(sizes, d, rng)
        losses_of(candidates)
        return candidates[:m]

    def sorted_candidates(sizes, losses_of, d, m, rng):
        order = select_by_position(sizes, losses_of, d, m, rng)
        return np.arange(len(sizes))[::-1][order]

    def returns_losses(sizes, losses_of, d, m, rng):
        return losses_of(draw_by_size(sizes, d, rng))[:m]

    def asks_with_a_mask(sizes, losses_of, d, m, rng):
        return losses_of(sizes > 10)

    return [
        (select_by_position, "on paper"),
        (lowest, "lowest losses"),
        (everyone, "all 10 clients were queried"),
        (asks_twice, "queried twice"),
        (more_candidates, "7 clients were queried instead of d=6"),
        (uniform, "other candidates"),
        (every_candidate, "m=3 should train"),
        (one_client, "found 1"),
        (never_asks, "no client was queried"),
        (first_candidates, "is not: is each"),
        (sorted_candidates, "are unknown"),
        (returns_losses, "whole numbers"),
        (asks_with_a_mask, "found bool"),
    ]


WRONG["wrong_clients"] = wrong_clients()
