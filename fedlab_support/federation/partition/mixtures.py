"""Domains distributed over any number of clients, from separate to evenly mixed."""

from __future__ import annotations

import numpy as np

from ...core.checks import COUNT, SEED, Range, checked
from ...data import DomainData
from .dealing import Parts, dealt, grouped

LAMBDA = Range(at_least=0, at_most=1, hint="0 separates the domains, 1 mixes them")


@checked(clients=COUNT, lam=LAMBDA, rng=SEED)
def heterogeneous(
    data: DomainData,
    clients: int,
    lam: float,
    rng=8989,
    among=None,
    strict: bool = False,
) -> Parts:
    """Distribute the domains over clients: separate at ``lam`` 0, evenly mixed at 1.

    lam:     in [0, 1]. At 0 each domain has its own clients, more for larger domains;
             with more domains than clients, each domain belongs to one client. At 1
             every client has the mixture of the whole set; values in between
             interpolate.
    strict:  remainders go to the domain's own clients first. By default they go to
             clients 0, 1, …, as in the authors' code, so that at ``lam`` 0 the first
             clients may hold one sample of each other domain.

    Clients are sorted by their main domain, and a client's samples by domain. If
    domains have fewer samples than there are clients, clients may get an empty array,
    which ``Federation.build`` refuses. Raises ValueError for ``lam`` outside [0, 1] and
    for more clients than samples.

    Source: Bai et al., ICLR 2024 (arXiv:2307.04942). The text of FISC reverses ``lam``;
    its appendix and code do not.
    """
    among = dealt(data, among, clients)
    members, rng = grouped(data.domain, among), np.random.default_rng(rng)
    counts = mixture([len(each) for each in members], clients, lam, strict)
    pieces = [
        np.split(rng.permutation(each), np.cumsum(column)[:-1])
        for each, column in zip(members, counts.T, strict=True)
    ]
    return [np.concatenate(part) for part in zip(*pieces, strict=True)]


def mixture(sizes, clients: int, lam: float, strict: bool = False) -> np.ndarray:
    """Samples of each domain that each client gets, int (N, D).

    sizes:  of the D domains, int; an empty domain has no clients.
    """
    sizes = np.asarray(sizes)
    has_own = np.count_nonzero(sizes) <= clients
    apart = (_own_clients if has_own else _whole_domains)(sizes, clients)
    # Q = n ((1 - λ) apart + λ / N), rounded down; 1e-9 makes up for rounding errors
    wanted = sizes * ((1 - lam) * apart + lam / clients)
    counts = np.floor(wanted + 1e-9).astype(np.int64)
    place = np.arange(clients)[:, None]
    if strict:
        place = (apart == 0).argsort(axis=0, kind="stable").argsort(axis=0)
    return counts + (place < sizes - counts.sum(axis=0))


def _own_clients(sizes: np.ndarray, clients: int) -> np.ndarray:
    """Each client has one domain, the largest domains the most: shares (N, D)."""
    num = (sizes > 0).astype(np.int64)
    for _ in range(clients - num.sum()):
        num[np.argmax(sizes / num.clip(min=1))] += 1
    main = np.repeat(np.arange(len(sizes)), num)
    return (main[:, None] == np.arange(len(sizes))) / num.clip(min=1)


def _whole_domains(sizes: np.ndarray, clients: int) -> np.ndarray:
    """Each domain, largest first, goes to the smallest client: shares (N, D)."""
    shares, load = np.zeros((clients, len(sizes))), np.zeros(clients, np.int64)
    for domain in sizes.argsort(kind="stable")[::-1]:
        least = load.argmin()
        shares[least, domain] = 1
        load[least] += sizes[domain]
    return shares
