"""The check of chapter 02's core task: power of choice.

Chance is part of the answer, so the check first asks what holds for every draw, then
sets d so that chance (d = K) or the losses (d = m) have no say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .checking import Wrong, call

# Clients 0–4 are small, so that candidates are rarely 0…d-1; neither the highest nor
# the lowest losses stand there together, and size and loss do not go together.
SIZES = np.array([12, 5, 9, 7, 11, 60, 80, 45, 70, 90, 55, 66])
LOSSES = np.array([1.4, 2.9, 0.9, 1.1, 0.2, 2.2, 0.7, 0.3, 1.9, 1.0, 2.7, 1.6])
UNEQUAL = np.array([60, 4, 150, 20, 300, 66])  # for the draws by size
DRAWS = 1000


def check_power_of_choice(answer: Callable[..., Sequence[int]]) -> str:
    """Check `power_of_choice(sizes, losses, d, m, rng)` in many seeded draws."""
    draws = [_choose(answer, SIZES, 5, 2, seed) for seed in range(100)]
    for seed in range(20):
        if _choose(answer, SIZES, 5, 2, seed) != draws[seed]:
            raise Wrong(
                "two calls with equal generators chose different clients: does every "
                "draw come from the rng that is handed in?"
            )
    _check_variety(draws)
    if max(max(draw) for draw in draws) < 5:
        raise Wrong(
            f"in {len(draws)} draws with d=5 every answer was below 5, although "
            f"{len(SIZES)} clients exist: what do the numbers count that you return?"
        )
    for seed in range(5):
        _check_all_asked(_choose(answer, SIZES, len(SIZES), 4, seed), 4)
    _check_draws_by_size(answer)
    return "candidates are drawn by size, and the highest losses among them win"


def client_numbers(value: object, num_clients: int) -> list[int]:
    """Read client numbers from a list, set, array or tensor.

    Returns them all different and in 0…num_clients-1, or raises Wrong.
    """
    numbers = np.asarray(list(value) if isinstance(value, (set, frozenset)) else value)
    if numbers.ndim != 1 or numbers.size == 0:
        found = f"{type(value).__name__} of shape {numbers.shape}"
        raise Wrong(f"expected a list of client numbers, found {found}")
    if numbers.dtype.kind not in "iu":
        raise Wrong(f"client numbers are whole numbers, found {numbers.dtype}")
    if numbers.min() < 0 or numbers.max() >= num_clients:
        raise Wrong(f"{numbers.tolist()}: clients are numbered 0…{num_clients - 1}")
    if len(set(numbers.tolist())) < len(numbers):
        raise Wrong(
            f"{numbers.tolist()}: a client is in it twice; can your draw take the same "
            "client again?"
        )
    return numbers.tolist()


def _choose(
    answer: Callable, sizes: np.ndarray, d: int, m: int, seed: int
) -> frozenset[int]:
    """One answer as a set: any order of the winners is right."""
    handed = sizes.copy(), LOSSES[: len(sizes)].copy()
    given = f"sizes {sizes.tolist()}, losses {handed[1].tolist()}, d={d}, m={m}"
    rng = np.random.default_rng(seed)
    chosen = client_numbers(call(answer, *handed, d, m, rng, given=given), len(sizes))
    if len(chosen) != m:
        whole = " Those are all candidates: who of them trains?"
        raise Wrong(
            f"expected m={m} clients, found {len(chosen)} (d={d})."
            + (whole if len(chosen) == d else "")
        )
    before = sizes, LOSSES[: len(sizes)]
    if not all(np.array_equal(a, b) for a, b in zip(handed, before, strict=True)):
        raise Wrong("sizes or losses changed; leave what you are given as it is")
    return frozenset(chosen)


def _check_variety(draws: list[frozenset[int]]) -> None:
    if len(set(draws)) > 1:
        return
    by_loss = np.argsort(LOSSES)
    if draws[0] in (set(by_loss[-2:]), set(by_loss[:2])):
        raise Wrong(
            f"with d=5 it is always the same 2 of all {len(SIZES)} clients: whose "
            "losses does the server know before it chooses?"
        )
    raise Wrong(
        f"{len(draws)} different generators gave the same clients: where does chance "
        "come in, and is it the rng that is handed in?"
    )


def _check_all_asked(chosen: frozenset[int], m: int) -> None:
    """With d = K everybody is asked, so that only the losses decide."""
    by_loss = np.argsort(LOSSES)
    if chosen == set(by_loss[-m:].tolist()):
        return
    if chosen == set(by_loss[:m].tolist()):
        raise Wrong("these clients have the lowest losses: who needs training most?")
    missing = max(set(by_loss.tolist()) - chosen, key=lambda k: LOSSES[k])
    weakest = min(chosen, key=lambda k: LOSSES[k])
    raise Wrong(
        f"with d = K = {len(SIZES)} only the losses decide, yet client {weakest} (loss "
        f"{LOSSES[weakest]}) was chosen and client {missing} (loss {LOSSES[missing]}) "
        "was not. Is every client a candidate then, does each candidate meet its own "
        "loss, and is there no second draw?"
    )


def _check_draws_by_size(answer: Callable) -> None:
    """With d = m every candidate is chosen, so that only the draw decides."""
    d, num_clients = 2, len(UNEQUAL)
    share = UNEQUAL / UNEQUAL.sum()
    chosen = [list(_choose(answer, UNEQUAL, d, d, seed)) for seed in range(DRAWS)]
    rate = np.bincount(np.ravel(chosen), minlength=num_clients) / DRAWS
    # Drawn first, or second after another one: p_k + Σ_j≠k p_j · p_k / (1 - p_j)
    odds = share / (1 - share)
    wanted = share * (1 + odds.sum() - odds)
    if _is_near(rate, wanted):
        return
    given = f"over {DRAWS} draws with d=m={d}"
    if _is_near(rate, np.full(num_clients, d / num_clients)):
        raise Wrong(
            f"{given}, the client with {UNEQUAL.min()} samples was a candidate as "
            f"often as the one with {UNEQUAL.max()}"
        )
    if len({tuple(pair) for pair in chosen}) == 1:
        raise Wrong(f"{given}, it was always the same {d}: how are candidates found?")
    if np.corrcoef(rate, share)[0, 1] < 0:
        raise Wrong(
            f"{given}, small clients were candidates more often than large ones"
        )
    k = int(np.abs(rate - wanted).argmax())
    often = "more often" if rate[k] > wanted[k] else "less often"
    raise Wrong(
        f"{given}, client {k} with {share[k]:.0%} of the samples was there {often} "
        f"({rate[k]:.0%}) than a draw by size gives. What else has a say in the draw "
        "of candidates?"
    )


def _is_near(rate: np.ndarray, wanted: np.ndarray) -> bool:
    """Within six standard deviations: chance does not refuse a right answer."""
    deviation = np.sqrt(wanted * (1 - wanted) / DRAWS)
    return bool((np.abs(rate - wanted) < 6 * deviation).all())
