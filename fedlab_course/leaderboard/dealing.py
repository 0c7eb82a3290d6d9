"""The federations of the leaderboard: partitions and held-out domains.

Every function takes the domain that is held out ("" for none) and the validation share,
and always returns the same federation. The chapters split data the same way, so they
share their runs with the leaderboard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedlab_support.data import DomainData, load
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    by_domain,
    by_owner,
    client_types,
    dirichlet,
    heterogeneous,
    leave_out,
)

UNSEEN = "unseen"
"""Held out: all domains that a data set marks as never trained on."""


def one_per_domain(
    dataset: str, held_out: str, val: float, size: int | None, share: float
) -> Federation:
    """One client per domain, with ``share`` of its training samples, or so many."""
    data, rng = load(dataset, size=size), np.random.default_rng(0)

    def some(domain: int, mine: np.ndarray) -> np.ndarray:
        count = int(share) if share > 1 else round(share * len(mine))
        return rng.choice(mine, min(count, len(mine)), replace=False)

    deal = partial(by_domain, clients_per_domain=1, rng=0)
    return _without(_thinned(data, some), deal, held_out, val)


def mixtures(
    dataset: str, held_out: str, val: float, size: int | None, clients: int
) -> Federation:
    """Clients that hold mixtures of domains, at lambda 0.1."""
    data = load(dataset, size=size)
    deal = partial(heterogeneous, clients=clients, lam=0.1)
    return _without(data, deal, held_out, val)


def owners(dataset: str, held_out: str, val: float) -> Federation:
    """One client per writer; at least a fifth of its samples is held out."""
    return _without(load(dataset), by_owner, held_out, max(val, 0.2))


def skewed_classes(dataset: str, held_out: str, val: float, clients: int) -> Federation:
    """Clients that differ in how often they have each class, by Dirichlet(0.3)."""
    deal = partial(dirichlet, clients=clients, alpha=0.3, rng=np.random.default_rng(0))
    return _without(load(dataset), deal, held_out, val)


def types(
    dataset: str,
    held_out: str,
    val: float,
    size: int | None,
    order: Sequence[str],
    pictures: int,
) -> Federation:
    """Common and rare types of clients, a domain each, ten to one; 150 tests each."""
    rng = np.random.default_rng(0)

    def tested(domain: int, mine: np.ndarray) -> np.ndarray:
        return rng.permutation(mine)[:150]

    data = _thinned(load(dataset, size=size), tested, of_test=True)
    deal = partial(client_types, imbalance=10, rng=0, order=order, inside=10)
    share = min(1.0, pictures / sum(map(len, deal(data))))
    return _without(data, partial(deal, share=share), held_out, val)


def thinned_sites(
    dataset: str, held_out: str, val: float, size: int, one_in: float
) -> Federation:
    """One client per site, with one in so many of its training slices, at least 4."""

    def some(site: int, mine: np.ndarray) -> np.ndarray:
        count = max(4, round(len(mine) / one_in))
        return np.random.default_rng([0, site]).permutation(mine)[:count]

    return _without(_thinned(load(dataset, size=size), some), by_owner, held_out, val)


def _thinned(
    data: DomainData,
    choose: Callable[[int, np.ndarray], np.ndarray],
    of_test: bool = False,
) -> DomainData:
    """``data`` with a part of each domain's training (or test) samples only."""
    is_whole = data.is_test != of_test
    chosen = [np.flatnonzero(is_whole)]
    for domain in range(len(data.domain_names)):
        mine = np.flatnonzero(~is_whole & (data.domain == domain))
        chosen.append(choose(domain, mine))
    return data.select(np.sort(np.concatenate(chosen)))


def _without(data: DomainData, deal, held_out: str, val: float) -> Federation:
    """Dealt among the other domains; ``UNSEEN`` are those that the data set names."""
    if not held_out:
        return Federation.build(data, deal(data), val=val)
    names = data.unseen_domains if held_out == UNSEEN else (held_out,)
    return Federation.build(data, deal(data, among=leave_out(data, names)), names, val)
