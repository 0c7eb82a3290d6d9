"""Simulate a client selection without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fedlab_support.core.checks import Range, checked
from fedlab_support.core.rng import numpy_stream
from fedlab_support.federation.selection import Roster, check_selection


@checked(rounds=Range(at_least=1), seed=Range(at_least=0))
def rehearse(
    select: Callable[[Roster, np.random.Generator], Sequence[int]],
    sizes: Sequence[int],
    losses: Sequence[float] | None = None,
    rounds: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """Simulate a selection: each client's share of ``rounds``, (K,), without training.

    sizes:   training samples of the clients, (K,).
    losses:  constant losses of the clients, (K,); None: all equal.
    """
    sizes = _numbers("sizes", sizes)
    losses = np.ones(len(sizes)) if losses is None else _numbers("losses", losses)
    if len(losses) != len(sizes):
        raise ValueError(
            f"expected losses of {len(sizes)} clients, found {len(losses)}"
        )
    check_selection(select, len(sizes))
    ids, times = np.arange(len(sizes)), np.zeros(len(sizes), dtype=np.int64)
    roster = Roster(
        ids,
        sizes,
        times,
        reports={},
        ask_loss=lambda clients: {i: float(losses[i]) for i in clients},
        lasting=lambda: numpy_stream(seed, "select", 0),
    )
    for round in range(1, rounds + 1):
        times[select(roster, numpy_stream(seed, "select", round))] += 1
    return times / rounds


def _numbers(name: str, found: Sequence[float]) -> np.ndarray:
    """The numbers of all clients, (K,); ValueError unless all are ≥ 0, one above."""
    try:
        values = np.asarray(found, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.ndim != 1 or not (values >= 0).all() or not values.any():
        raise ValueError(
            f"{name} must be a number ≥ 0 for each client, not all 0, found {found}"
        )
    return values
