"""The clients of the studies: a new partition, or new test samples, for every seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache, partial

import numpy as np

from fedlab_support.data import DomainData, load
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    by_domain,
    by_owner,
    client_types,
    dirichlet,
    heterogeneous,
    iid,
    leave_out,
)
from fedlab_support.federation.protocols import leave_two_domains_out

from ..protocols import PACS, protocol


@cache
def _data(name: str, size: int | None) -> DomainData:
    return load(name, size=size)


@lru_cache(maxsize=2)  # each holds a gigabyte of images
def mixtures(
    test: str,
    seed: int,
    name: str = "pacs",
    size: int | None = 96,
    clients: int = 100,
    val: float = 0.0,
    leave: Callable[..., dict[str, Federation]] = leave_two_domains_out,
) -> Federation:
    """Clients with mixtures of domains; ``leave`` holds out the one that tests."""
    deal = partial(heterogeneous, clients=clients, lam=0.1, rng=seed)
    return leave(_data(name, size), deal, val, seed)[test]


@lru_cache(maxsize=2)
def types(
    test: str,
    seed: int,
    imbalance: float,
    name: str = "pacs",
    order: tuple[str, ...] = PACS,
) -> Federation:
    """Common and rare client types; 1,500 images in all, a fifth for validation."""
    data = _data(name, 128)
    inside = None if imbalance == 1 else 10  # the images of a type's clients
    more = {"rng": seed, "order": order, "inside": inside}
    deal = partial(client_types, imbalance=imbalance, **more)
    share = min(1.0, 1500 / sum(map(len, deal(data))))
    return Federation.build(data, deal(data, share=share), val=0.2, seed=seed)


def resplit(data: DomainData, groups: np.ndarray, seed: int) -> DomainData:
    """``data`` with other test samples, as many as before in each group."""
    is_test, rng = data.is_test.copy(), np.random.default_rng(seed)
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        is_test[mine] = rng.permutation(is_test[mine])
    return replace(data, is_test=is_test)


@lru_cache(maxsize=2)
def offices(test: str, seed: int) -> Federation:
    """A client per domain, new test samples for each seed, a fifth for validation."""
    data = _data("office10", 96)
    data, held_out = resplit(data, data.domain, seed), (test,) if test else ()
    among = leave_out(data, held_out)
    parts = by_domain(data, clients_per_domain=1, rng=seed, among=among)
    return Federation.build(data, parts, held_out, val=0.2, seed=seed)


@lru_cache(maxsize=2)
def skewed(test: str, seed: int) -> Federation:
    """A hundred clients, classes by Dirichlet(0.3); a fifth of each validates."""
    data = _data("cifar10", 32)
    parts = dirichlet(data, clients=100, alpha=0.3, rng=seed)
    return Federation.build(data, parts, val=0.2, seed=seed)


@lru_cache(maxsize=2)
def writers(test: str, seed: int, pooled: bool = False) -> Federation:
    """A client per writer, or one for all; new test samples for each seed.

    A fifth of the other samples validates.
    """
    data = _data("femnist", 28)
    data = resplit(data, data.owner, seed)
    parts = iid(data, clients=1, rng=seed) if pooled else by_owner(data)
    return Federation.build(data, parts, val=0.2, seed=seed)


def digits(test: str, seed: int) -> Federation:
    """A client per set of digits, with other images for each seed; a fifth validate."""
    return protocol("digits5").dealing(seed=seed).federation(test, val=0.2)
