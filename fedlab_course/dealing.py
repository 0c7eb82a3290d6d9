"""Partitions and held-out domains of the comparisons.

Every function takes the data set's name, the domain that is held out ("" for none) and
the validation share, and always returns the same federation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from fedlab_support.data import DomainData, load
from fedlab_support.data.catalogue import STORED
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    by_domain,
    by_owner,
    client_types,
    dirichlet,
    heterogeneous,
    leave_out,
)
from fedlab_support.federation.protocols import leave_two_domains_out

UNSEEN = "unseen"
"""Held out: all domains that a data set marks as never trained on."""

Choose = Callable[[int, np.ndarray], np.ndarray]
"""Maps a domain and the positions of its samples to those that are kept."""


def one_per_domain(
    dataset: str,
    held_out: str,
    val: float,
    size: int | None,
    share: float | Mapping[str, int],
    seed: int = 0,
) -> Federation:
    """One client per domain.

    share: of its training samples; above 1, or by domain, their number. A domain that
           is held out stays whole if there are numbers by domain.
    seed:  of the choice of samples.
    """
    data, rng = load(dataset, size=size), np.random.default_rng(seed)

    def some(domain: int, mine: np.ndarray) -> np.ndarray:
        """As many of a domain's samples as ``share`` says."""
        count = share
        if isinstance(share, Mapping):
            name = data.domain_names[domain]
            count = 1.0 if name == held_out else share[name]
        count = int(count) if count > 1 else round(count * len(mine))
        return rng.choice(mine, min(count, len(mine)), replace=False)

    deal = partial(by_domain, clients_per_domain=1, rng=0)
    return _without(_thinned(data, some), deal, held_out, val)


def few_per_domain(
    dataset: str, held_out: str, val: float, images: int, tested: int
) -> Federation:
    """One client per domain, with so few training and test images that runs are quick.

    images: training images of each domain, at most.
    tested: test images of each domain, at most.
    """
    data, rng = load(dataset), np.random.default_rng(0)
    data = _thinned(data, _at_most(images, rng))
    data = _thinned(data, _at_most(tested, rng), of_test=True)
    deal = partial(by_domain, clients_per_domain=1, rng=0)
    return _without(data, deal, held_out, val)


def rare_classes(dataset: str, held_out: str, val: float) -> Federation:
    """Forty equal clients of which only three hold the last two classes.

    Chapter 02 makes this case for selection by loss.
    """
    clients, owners = 40, 3
    data, rng = load(dataset), np.random.default_rng(0)
    rows = rng.permutation(np.flatnonzero(~data.is_test))
    is_rare = data.labels[rows] >= data.num_classes - 2
    common, rare = rows[~is_rare], rows[is_rare]
    size = min(len(common) // (clients - owners), len(rare) // owners)
    parts = np.split(common[: size * (clients - owners)], clients - owners)
    parts += np.split(rare[: size * owners], owners)
    return Federation.build(data, parts, val=val)


def mixtures(
    dataset: str,
    held_out: str,
    val: float,
    size: int | None,
    clients: int,
    lam: float = 0.1,
    leave: str = "one",
    one_in: int = 1,
) -> Federation:
    """Clients that hold mixtures of domains.

    leave:  "two" holds out another domain beside ``held_out``, to choose rounds by.
    one_in: only every so many-th image of the data set is used.
    """
    data = load(dataset, size=size)
    if one_in > 1:
        data = data.select(np.arange(0, len(data), one_in))
    deal = partial(heterogeneous, clients=clients, lam=lam)
    if leave == "two":
        return leave_two_domains_out(data, deal, val)[held_out]
    return _without(data, deal, held_out, val)


def owners(
    dataset: str,
    held_out: str,
    val: float,
    least: float = 0.2,
    writers: int = 0,
) -> Federation:
    """One client per writer; at least a share ``least`` of its samples validates.

    writers: so many, drawn at random; 0: all of them.
    """
    data = load(dataset)
    if 0 < writers < len(data.owner_names):
        data = some_writers(data, writers)
    return _without(data, by_owner, held_out, max(val, least))


def some_writers(data: DomainData, number: int) -> DomainData:
    """The images of so many owners, drawn at random."""
    rng = np.random.default_rng(0)
    chosen = rng.choice(np.unique(data.owner), number, replace=False)
    return data.select(np.flatnonzero(np.isin(data.owner, chosen)))


def skewed_classes(
    dataset: str,
    held_out: str,
    val: float,
    clients: int,
    alpha: float = 0.3,
) -> Federation:
    """Clients that differ in how often they have each class, by Dirichlet(alpha)."""
    rng = np.random.default_rng(0)
    deal = partial(dirichlet, clients=clients, alpha=alpha, rng=rng)
    return _without(load(dataset), deal, held_out, val)


def types(
    dataset: str,
    held_out: str,
    val: float,
    size: int | None,
    order: Sequence[str],
    images: int,
    tested: int = 150,
    imbalance: int = 10,
    share: float = 1.0,
    is_series: bool = False,
    balanced: float = 1.0,
) -> Federation:
    """Client types, one domain each.

    order:     the domains, from the most to the least common type.
    images:    training images of all clients together, at most.
    tested:    test images of each domain, at most.
    imbalance: clients of the most common type over those of the rarest; inside a type,
               the largest client has as many times the images of the smallest.
    share:     of the available images to train on.
    balanced:  the same where the imbalance is 1, if that is less.
    is_series: the sizes inside a type grow by the ratio of the series of counts, as
               FedGCR's program has it for all data but PACS.
    """
    data, rng = load(dataset, size=size), np.random.default_rng(0)
    if absent := [name for name in order if name not in data.domain_names]:
        obtain = STORED[dataset].obtain if dataset in STORED else "name others as order"
        raise ValueError(
            f"{dataset}: expected the domains {', '.join(order)}, found no "
            f"{', '.join(absent)}. To get them, {obtain}"
        )
    data = _thinned(data, _at_most(tested, rng), of_test=True)
    inside = None if is_series or imbalance == 1 else imbalance
    deal = partial(client_types, imbalance=imbalance, rng=0, order=order, inside=inside)
    share = min(share, balanced) if imbalance == 1 else share
    share = min(share, images / sum(map(len, deal(data))))
    return _without(data, partial(deal, share=share), held_out, val)


def thinned_sites(
    dataset: str, held_out: str, val: float, size: int, one_in: float
) -> Federation:
    """One client per site, with one in so many of its training slices, at least 4."""

    def some(site: int, mine: np.ndarray) -> np.ndarray:
        count = max(4, round(len(mine) / one_in))
        return np.random.default_rng([0, site]).permutation(mine)[:count]

    return _without(_thinned(load(dataset, size=size), some), by_owner, held_out, val)


def _thinned(data: DomainData, choose: Choose, of_test: bool = False) -> DomainData:
    """``data`` with a part of each domain's training (or test) samples only."""
    is_whole = data.is_test != of_test
    chosen = [np.flatnonzero(is_whole)]
    for domain in range(len(data.domain_names)):
        mine = np.flatnonzero(~is_whole & (data.domain == domain))
        chosen.append(choose(domain, mine))
    return data.select(np.sort(np.concatenate(chosen)))


def _at_most(count: int, rng: np.random.Generator) -> Choose:
    """Choose so many of a domain's samples at random, or all where there are fewer."""
    return lambda domain, mine: rng.permutation(mine)[:count]


def _without(data: DomainData, deal, held_out: str, val: float) -> Federation:
    """Dealt among the other domains; ``UNSEEN`` are those that the data set names."""
    if not held_out:
        return Federation.build(data, deal(data), val=val)
    names = data.unseen_domains if held_out == UNSEEN else (held_out,)
    return Federation.build(data, deal(data, among=leave_out(data, names)), names, val)
