"""Simulate a client selection without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from fedlab_support.core.checks import Range, checked
from fedlab_support.core.rng import numpy_stream
from fedlab_support.federation.selection import Roster, check_selection, cohort_of

Selection = Callable[[Roster, np.random.Generator], Sequence[int]]


@checked(rounds=Range(at_least=1), seed=Range(at_least=0))
def rehearse(
    select: Selection,
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
    *_, (*_, times) = _drawn(select, sizes, losses, rounds, seed)
    return times / rounds


@checked(
    falls=Range(at_least=0, at_most=1),
    rounds=Range(at_least=1),
    seed=Range(at_least=0),
)
def rehearse_falling(
    select: Selection,
    sizes: Sequence[int],
    losses: Sequence[float],
    falls: float,
    rounds: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Simulate a selection whose clients learn: the loss of a selected client falls.

    sizes:   training samples of the clients, (K,).
    losses:  of the clients at the start, (K,).
    falls:   share of a client's loss that disappears when it is selected, in 0…1; the
             losses of all others stay. 0 is ``rehearse``.
    Returns the columns round (from 1), client, loss (before the round), is_asked (for
    its loss), is_selected, and times (selected so far, this round included).
    """
    sizes, now, tables = _numbers("sizes", sizes), _numbers("losses", losses), []
    now, ids = now.copy(), np.arange(len(sizes))
    for round, asked, chosen, times in _drawn(select, sizes, now, rounds, seed):
        columns = {"round": round, "client": ids, "loss": now.copy()}
        columns["is_asked"] = np.isin(ids, asked)
        columns["is_selected"] = np.isin(ids, chosen)
        tables.append(pd.DataFrame(columns | {"times": times.copy()}))
        now[chosen] *= 1 - falls  # which the next round's clients report
    return pd.concat(tables, ignore_index=True)


def _drawn(
    select: Selection, sizes: np.ndarray, losses: np.ndarray, rounds: int, seed: int
) -> Iterator[tuple[int, list[int], Sequence[int], np.ndarray]]:
    """Round, clients asked for their loss, clients selected, and how often so far.

    losses: (K,), read in every round, so that the caller may change them in between.
    Raises ValueError, as a run does, unless different clients are selected.
    """
    if len(losses) != len(sizes):
        raise ValueError(
            f"expected losses of {len(sizes)} clients, found {len(losses)}"
        )
    check_selection(select, len(sizes))
    ids, times, asked = np.arange(len(sizes)), np.zeros(len(sizes), dtype=np.int64), []

    def ask_loss(clients: Sequence[int]) -> dict[int, float]:
        asked.extend(clients)
        return {i: float(losses[i]) for i in clients}

    roster = Roster(
        ids,
        sizes,
        times,
        reports={},
        ask_loss=ask_loss,
        lasting=lambda: numpy_stream(seed, "select", 0),
    )
    for round in range(1, rounds + 1):
        asked.clear()
        drawn = select(roster, numpy_stream(seed, "select", round))
        chosen = cohort_of(drawn, ids)
        times[chosen] += 1
        yield round, list(asked), chosen, times


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
