"""Chapter 08's bug to diagnose: a run that goes on draws what it drew before."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .checking import Wrong, call

CLIENTS, M = 40, 4
Cohorts = list[list[int]]


def cohorts_from_one_stream(
    seed: int, first: int, last: int, num_clients: int, m: int
) -> Cohorts:
    """Who takes part in rounds first … last of a run with this seed.

    Returns one sorted list of m client numbers per round. A run that was killed after
    round 5 goes on with first=6. One bug is hidden here.
    """
    rng = np.random.default_rng(seed)
    return [
        sorted(rng.choice(num_clients, m, replace=False).tolist())
        for round in range(first, last + 1)
    ]


def check_cohorts(answer: Callable[..., Cohorts]) -> str:
    """Check a repaired `cohorts_from_one_stream`: stopped or not, the same draws."""
    whole = _drawn(answer, 3, 1, 12)
    if whole != _drawn(answer, 3, 1, 12):
        raise Wrong("called twice alike it draws differently: where does chance begin?")
    if len({tuple(cohort) for cohort in whole}) == 1:
        raise Wrong("all rounds have the same cohort: the round must have a say")
    for stop in (5, 1, 11):
        rest = _drawn(answer, 3, stop + 1, 12)
        if rest == whole[: len(rest)]:
            raise Wrong(
                f"stopped after round {stop} and continued, the run visits the clients "
                "of round 1 again. What does the generator know of the rounds that "
                "are behind it?"
            )
        if rest != whole[stop:]:
            raise Wrong(
                f"stopped after round {stop} and continued, the run visits others than "
                "without the stop: a round's draw may depend on its number and the "
                "seed only"
            )
    _check_seeds(answer, whole)
    return "a round's draw depends on seed and round alone: stop where you like"


def _check_seeds(answer: Callable[..., Cohorts], whole: Cohorts) -> None:
    """Other seeds must draw otherwise, and not the same later or earlier."""
    other = _drawn(answer, 4, 1, 12)
    if other == whole:
        raise Wrong("another seed draws the same clients: where is the seed used?")
    elsewhere = set(map(tuple, _drawn(answer, 3, 1, 1020)))
    if sum(tuple(cohort) in elsewhere for cohort in other) >= 3:  # no accident
        raise Wrong(
            "seed 4 draws in its rounds what seed 3 draws in others, so two 'seeds' "
            "are one run in another order: do not mix seed and round into one number; "
            "default_rng takes a list, and keeps its entries apart"
        )


def _drawn(answer: Callable[..., Cohorts], seed: int, first: int, last: int) -> Cohorts:
    given = f"seed={seed}, first={first}, last={last}, num_clients={CLIENTS}, m={M}"
    found = call(answer, seed, first, last, CLIENTS, M, given=given)
    found = [sorted(int(client) for client in cohort) for cohort in found]
    if len(found) != last - first + 1:
        raise Wrong(f"expected a cohort for each of {last - first + 1} rounds")
    for cohort in found:
        is_right = len(set(cohort)) == M and set(cohort) <= set(range(CLIENTS))
        if not is_right or len(cohort) != M:
            raise Wrong(
                f"expected {M} different clients of 0…{CLIENTS - 1}, found {cohort}"
            )
    return found
