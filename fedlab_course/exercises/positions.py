"""Chapter 02's bug to diagnose: the wrong clients train, and nothing looks broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .candidates import client_numbers
from .checking import Wrong, call

SIZES = np.array([3, 6, 4, 5, 40, 70, 55, 90, 35, 60])
LOSSES = np.array([0.8, 2.5, 1.3, 0.4, 1.9, 0.6, 2.1, 1.1, 2.8, 0.3])


def select_by_position(
    sizes: np.ndarray,
    losses_of: Callable[[np.ndarray], np.ndarray],
    d: int,
    m: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Choose clients by power of choice: of d candidates the m with the highest losses.

    sizes: samples of each client, (K,). losses_of: asks clients; takes their numbers
    and returns their losses, in the same order.
    Returns the numbers of the chosen clients, (m,). One bug is hidden here.
    """
    share = sizes / sizes.sum()
    candidates = rng.choice(len(sizes), d, replace=False, p=share)
    losses = losses_of(candidates)
    worst_first = np.argsort(-losses)
    return worst_first[:m]


def check_wrong_clients(answer: Callable[..., Sequence[int]]) -> str:
    """Check a repaired `select_by_position`: whom it asks and whom it returns."""
    for seed in range(10):
        d, m = ((6, 3), (4, 2))[seed % 2]
        drawn, asked = [], []
        positions = _run(select_by_position, drawn, d, m, seed)
        value = _run(answer, asked, d, m, seed)
        _check_asked(asked, drawn, d)
        chosen = client_numbers(value, len(SIZES))
        _check_chosen(chosen, drawn, m, positions)
    return "the clients that train are the ones with the highest losses"


def _run(answer: Callable, asked: list[int], d: int, m: int, seed: int) -> object:
    """Let an answer choose, and write down whom it asks."""

    def losses_of(clients: Sequence[int]) -> np.ndarray:
        clients = np.asarray(clients)
        if clients.dtype.kind not in "iu":
            raise TypeError(f"losses_of takes client numbers, found {clients.dtype}")
        asked.extend(np.atleast_1d(clients).tolist())
        return LOSSES[clients]

    given = f"sizes {SIZES.tolist()}, losses_of, d={d}, m={m}"
    rng = np.random.default_rng(seed)
    return call(answer, SIZES.copy(), losses_of, d, m, rng, given=given)


def _check_asked(asked: list[int], drawn: list[int], d: int) -> None:
    if not asked:
        raise Wrong("nobody was asked: losses_of was never called")
    if len(set(asked)) < len(asked):
        raise Wrong("a client was asked twice; each answer crosses the network")
    if len(asked) == len(SIZES):
        raise Wrong(
            f"all {len(SIZES)} clients were asked, d={d} may be: every question costs "
            "a model. The question was right; look at what happens to the answers"
        )
    if len(asked) != d:
        raise Wrong(f"{len(asked)} clients were asked instead of d={d}")
    if set(asked) != set(drawn):
        raise Wrong(
            "with the same rng the original asks other candidates; change only what "
            "causes the bug"
        )


def _check_chosen(
    chosen: list[int], drawn: list[int], m: int, positions: np.ndarray
) -> None:
    if len(chosen) == len(drawn):
        raise Wrong(f"all d={len(drawn)} candidates were returned, m={m} should train")
    if len(chosen) != m:
        raise Wrong(f"expected m={m} clients, found {len(chosen)}")
    by_loss = sorted(drawn, key=lambda client: LOSSES[client])
    if set(chosen) == set(by_loss[-m:]):
        return
    if set(chosen) == set(positions.tolist()):
        raise Wrong(
            f"{sorted(drawn)} were asked, and {sorted(chosen)} are to train – as in "
            "the original. Follow one client on paper: what is its number, and what is "
            "left of it at the end?"
        )
    if set(chosen) == set(by_loss[:m]):
        raise Wrong("these candidates have the lowest losses; the order was right")
    if strangers := sorted(set(chosen) - set(drawn)):
        raise Wrong(
            f"{strangers} are to train, but only {sorted(drawn)} were asked: nobody "
            "knows the losses of the others"
        )
    weakest = min(chosen, key=lambda client: LOSSES[client])
    missing = max(set(drawn) - set(chosen), key=lambda client: LOSSES[client])
    raise Wrong(
        f"client {weakest} (loss {LOSSES[weakest]}) is to train, client {missing} "
        f"(loss {LOSSES[missing]}) is not: does each candidate still meet its own loss?"
    )
