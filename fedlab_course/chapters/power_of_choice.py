"""Chapter 02: power of choice, and a selection that returns positions, not clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..checking.exercise import Wrong, call, exercise
from ..checking.table import call_on_copies

# Clients 0–4 are small, so that candidates are rarely 0…d-1; neither the highest nor
# the lowest losses are next to each other, and size and loss are unrelated.
SIZES = np.array([12, 5, 9, 7, 11, 60, 80, 45, 70, 90, 55, 66])
LOSSES = np.array([1.4, 2.9, 0.9, 1.1, 0.2, 2.2, 0.7, 0.3, 1.9, 1.0, 2.7, 1.6])
UNEQUAL = np.array([60, 4, 150, 20, 300, 66])  # for the draws by size
DRAWS = 1000


@exercise
def power_of_choice(answer: Callable[..., Sequence[int]]) -> str:
    """Check `power_of_choice(sizes, losses, d, m, rng)` in many seeded draws.

    The answer is random, so the check first asks what holds for every draw, then sets d
    so that chance (d = K) or the losses (d = m) make no difference.
    """
    draws = [_choose(answer, SIZES, 5, 2, seed) for seed in range(100)]
    for seed in range(20):
        if _choose(answer, SIZES, 5, 2, seed) != draws[seed]:
            raise Wrong(
                "two calls with equal generators chose different clients: does every "
                "draw come from the rng that is passed in?"
            )
    _check_variety(draws)
    if max(max(draw) for draw in draws) < 5:
        raise Wrong(
            f"in {len(draws)} draws with d=5 every answer was below 5, although "
            f"{len(SIZES)} clients exist: what do the numbers you return count?"
        )
    for seed in range(5):
        _check_all_asked(_choose(answer, SIZES, len(SIZES), 4, seed), 4)
    _check_draws_by_size(answer)
    return "candidates are drawn by size, and the highest losses among them are chosen"


def _client_numbers(value: object, num_clients: int) -> list[int]:
    """Read client numbers from a list, set, array or tensor.

    Returns them, all different and in 0…num_clients-1, or raises Wrong.
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
            f"{numbers.tolist()}: a client is in it twice; can your draw pick the same "
            "client again?"
        )
    return numbers.tolist()


def _choose(
    answer: Callable, sizes: np.ndarray, d: int, m: int, seed: int
) -> frozenset[int]:
    """One answer as a set: any order of the chosen clients is right."""
    rng = np.random.default_rng(seed)
    losses = LOSSES[: len(sizes)]
    inputs = {"sizes": sizes, "losses": losses, "d": d, "m": m, "rng": rng}
    given = f"sizes {sizes.tolist()}, losses {losses.tolist()}, d={d}, m={m}"
    value, _ = call_on_copies(answer, inputs, given)
    chosen = _client_numbers(value, len(sizes))
    if len(chosen) != m:
        whole = " Those are all candidates: which of them train?"
        raise Wrong(
            f"expected m={m} clients, found {len(chosen)} (d={d})."
            + (whole if len(chosen) == d else "")
        )
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
        "come in, and is it the rng that is passed in?"
    )


def _check_all_asked(chosen: frozenset[int], m: int) -> None:
    """With d = K every client is asked, so that only the losses decide."""
    by_loss = np.argsort(LOSSES)
    if chosen == set(by_loss[-m:].tolist()):
        return
    if chosen == set(by_loss[:m].tolist()):
        raise Wrong("these clients have the lowest losses: which need training most?")
    missing = max(set(by_loss.tolist()) - chosen, key=lambda k: LOSSES[k])
    weakest = min(chosen, key=lambda k: LOSSES[k])
    raise Wrong(
        f"with d = K = {len(SIZES)} only the losses decide, yet client {weakest} (loss "
        f"{LOSSES[weakest]}) was chosen and client {missing} (loss {LOSSES[missing]}) "
        "was not. Is every client a candidate then, is each candidate matched with its "
        "own loss, and is there no second draw?"
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
        f"{given}, client {k} with {share[k]:.0%} of the samples was chosen {often} "
        f"({rate[k]:.0%}) than a draw by size gives. What else affects the draw of "
        "candidates?"
    )


def _is_near(rate: np.ndarray, wanted: np.ndarray) -> bool:
    """Within six standard deviations: chance does not refuse a right answer."""
    deviation = np.sqrt(wanted * (1 - wanted) / DRAWS)
    return bool((np.abs(rate - wanted) < 6 * deviation).all())


CANDIDATE_SIZES = np.array([3, 6, 4, 5, 40, 70, 55, 90, 35, 60])
CANDIDATE_LOSSES = np.array([0.8, 2.5, 1.3, 0.4, 1.9, 0.6, 2.1, 1.1, 2.8, 0.3])


def select_by_position(
    sizes: np.ndarray,
    losses_of: Callable[[np.ndarray], np.ndarray],
    d: int,
    m: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Power of choice: of d candidates, choose the m with the highest losses.

    sizes:     samples of each client, (K,).
    losses_of: asks clients; takes their numbers and returns their losses, in order.
    Returns the numbers of the chosen clients, (m,). It contains one bug.
    """
    share = sizes / sizes.sum()
    candidates = rng.choice(len(sizes), d, replace=False, p=share)
    losses = losses_of(candidates)
    worst_first = np.argsort(-losses)
    return worst_first[:m]


@exercise
def wrong_clients(answer: Callable[..., Sequence[int]]) -> str:
    """Check a repaired `select_by_position`: which clients it asks and returns."""
    for seed in range(10):
        d, m = ((6, 3), (4, 2))[seed % 2]
        drawn, asked = [], []
        positions = _select(select_by_position, drawn, d, m, seed)
        value = _select(answer, asked, d, m, seed)
        _check_asked(asked, drawn, d)
        chosen = _client_numbers(value, len(CANDIDATE_SIZES))
        _check_chosen(chosen, drawn, m, positions)
    return "the clients that train are the ones with the highest losses"


def _select(answer: Callable, asked: list[int], d: int, m: int, seed: int) -> object:
    """Let an answer choose, and record which clients it asks."""

    def losses_of(clients: Sequence[int]) -> np.ndarray:
        clients = np.asarray(clients)
        if clients.dtype.kind not in "iu":
            raise TypeError(f"losses_of takes client numbers, found {clients.dtype}")
        asked.extend(np.atleast_1d(clients).tolist())
        return CANDIDATE_LOSSES[clients]

    given = f"sizes {CANDIDATE_SIZES.tolist()}, losses_of, d={d}, m={m}"
    rng = np.random.default_rng(seed)
    return call(answer, CANDIDATE_SIZES.copy(), losses_of, d, m, rng, given=given)


def _check_asked(asked: list[int], drawn: list[int], d: int) -> None:
    num_clients = len(CANDIDATE_SIZES)
    if not asked:
        raise Wrong("no client was queried: losses_of was never called")
    if len(set(asked)) < len(asked):
        raise Wrong("a client was queried twice; each reply crosses the network")
    if len(asked) == num_clients:
        raise Wrong(
            f"all {num_clients} clients were queried, but only d={d} may be: every "
            "query sends a model. The original queries the right clients; look at "
            "what happens to their losses"
        )
    if len(asked) != d:
        raise Wrong(f"{len(asked)} clients were queried instead of d={d}")
    if set(asked) != set(drawn):
        raise Wrong(
            "with the same rng the original asks other candidates; change only what "
            "causes the bug"
        )


def _check_chosen(
    chosen: list[int], drawn: list[int], m: int, positions: np.ndarray
) -> None:
    loss = CANDIDATE_LOSSES
    if len(chosen) == len(drawn):
        raise Wrong(f"all d={len(drawn)} candidates were returned, m={m} should train")
    if len(chosen) != m:
        raise Wrong(f"expected m={m} clients, found {len(chosen)}")
    by_loss = sorted(drawn, key=lambda client: loss[client])
    if set(chosen) == set(by_loss[-m:]):
        return
    if set(chosen) == set(positions.tolist()):
        raise Wrong(
            f"{sorted(drawn)} were asked, and {sorted(chosen)} are to train – as in "
            "the original. Follow one client on paper: what is its number, and what "
            "has become of that number at the end?"
        )
    if set(chosen) == set(by_loss[:m]):
        raise Wrong("these candidates have the lowest losses; the order was right")
    if strangers := sorted(set(chosen) - set(drawn)):
        raise Wrong(
            f"{strangers} are to train, but only {sorted(drawn)} were asked: the "
            "losses of the others are unknown"
        )
    weakest = min(chosen, key=lambda client: loss[client])
    missing = max(set(drawn) - set(chosen), key=lambda client: loss[client])
    raise Wrong(
        f"client {weakest} (loss {loss[weakest]}) is to train, client {missing} (loss "
        f"{loss[missing]}) is not: is each candidate still matched with its own loss?"
    )
