"""Partitions by labels, owners or domains, and helpers for all partitions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...core.checks import COUNT, SEED, Range, checked
from ...data import DomainData

Parts = list[np.ndarray]
"""One array of positions in a DomainData per client."""


@checked()
def leave_out(data: DomainData, domains: str | Iterable[str] = ()) -> np.ndarray:
    """Positions of the training samples outside ``domains``.

    Raises ValueError when a domain does not exist.
    """
    excluded = domain_ids(data, domains)
    return np.flatnonzero(~data.is_test & ~np.isin(data.domain, excluded))


def domain_ids(data: DomainData, domains: str | Iterable[str]) -> list[int]:
    """Positions of named domains in ``data.domain_names``; ValueError if unknown."""
    names = [domains] if isinstance(domains, str) else list(domains)
    for name in names:
        if name not in data.domain_names:
            raise ValueError(
                f"expected a domain of {data.name}, one of {list(data.domain_names)}, "
                f"found {name!r}"
            )
    return [data.domain_names.index(name) for name in names]


@checked(clients=COUNT, rng=SEED)
def iid(data: DomainData, clients: int, rng, among=None) -> Parts:
    """Shuffle and split into ``clients`` parts whose sizes differ by at most one.

    rng:    a NumPy generator or an integer seed, as for all partitions.
    among:  positions of the samples to partition, int (N,), none of them for testing;
            None: all training samples.

    Returns one array of positions per client.
    """
    among = dealt(data, among, clients)
    return np.array_split(np.random.default_rng(rng).permutation(among), clients)


@checked(clients=COUNT, alpha=Range(above=0, hint="100 is close to iid"), rng=SEED)
def dirichlet(data: DomainData, clients: int, alpha: float, rng, among=None) -> Parts:
    """Distribute each class over the clients in shares drawn from Dirichlet(alpha).

    alpha:  > 0; 0.1 leaves most clients with a few classes, 100 is close to iid.

    Shares are redrawn up to 100 times until every client has a sample. Clients differ
    in size, too. Source: Yurochkin et al., ICML 2019, arXiv:1905.12022. (Hsu, Qi and
    Brown, arXiv:1909.06335, draw a mixture of classes per client, of equal size.)
    """
    among, rng = dealt(data, among, clients), np.random.default_rng(rng)
    labels = data.classes_for("dirichlet")
    for _ in range(100):
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in range(data.num_classes):
            members = rng.permutation(among[labels[among] == label])
            shares = rng.dirichlet(np.full(clients, alpha))
            cuts = (np.cumsum(shares)[:-1] * len(members)).round().astype(int)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        whole = [np.concatenate(part) for part in parts]
        if min(map(len, whole)) > 0:
            return whole
    raise ValueError(
        "expected every client to get a sample, found an empty one in all 100 draws of "
        f"Dirichlet({alpha}) for {clients} clients and {len(among)} samples; raise "
        "alpha or ask for fewer clients"
    )


@checked(clients=COUNT, per_client=COUNT, rng=SEED)
def shards(data: DomainData, clients: int, per_client: int, rng, among=None) -> Parts:
    """Sort by class, split into equal shards, and give each client ``per_client``.

    Source: McMahan et al., AISTATS 2017, section 3 (their "pathological" split has two
    shards per client).
    """
    among, rng = dealt(data, among, clients * per_client), np.random.default_rng(rng)
    among, labels = rng.permutation(among), data.classes_for("shards")
    by_class = among[np.argsort(labels[among], kind="stable")]
    pieces = np.array_split(by_class, clients * per_client)
    order = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[i] for i in row]) for row in order]


@checked()
def by_owner(data: DomainData, among=None) -> Parts:
    """One client per owner (writer, site, camera) that has samples, in owner order."""
    return grouped(data.owner, dealt(data, among, 1))


@checked(clients_per_domain=COUNT, rng=SEED)
def by_domain(data: DomainData, clients_per_domain: int, rng, among=None) -> Parts:
    """Each domain's samples, shuffled and split over ``clients_per_domain`` clients."""
    rng = np.random.default_rng(rng)
    parts: Parts = []
    for members in grouped(data.domain, dealt(data, among, 1)):
        members = dealt(data, members, clients_per_domain)
        parts += np.array_split(rng.permutation(members), clients_per_domain)
    return parts


def grouped(column: np.ndarray, among: np.ndarray) -> Parts:
    """Positions with the same value of ``column``, in order of the values."""
    order = among[np.argsort(column[among], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(column[order])) + 1)


def dealt(data: DomainData, among, num_parts: int) -> np.ndarray:
    """The samples to partition; ValueError unless they can fill ``num_parts``."""
    among = (
        leave_out(data) if among is None else row_positions("among", among, len(data))
    )
    if data.is_test[among].any():
        raise ValueError(
            "among must hold no test samples, found "
            f"{int(data.is_test[among].sum())}; take them from leave_out(data)"
        )
    if num_parts > len(among):
        raise ValueError(
            f"expected at most {len(among)} parts, one per training sample of "
            f"{data.name}, found {num_parts}; ask for fewer clients"
        )
    return among


def row_positions(name: str, found, most: int) -> np.ndarray:
    """``found`` as an array of distinct positions in 0…most - 1; else ValueError."""
    rows = np.asarray(found)
    if rows.ndim != 1 or (rows.size and not np.issubdtype(rows.dtype, np.integer)):
        raise ValueError(
            f"{name} must hold positions of samples, int (N,), found {rows.dtype} of "
            f"shape {rows.shape}; np.flatnonzero(mask) turns a mask into positions"
        )
    rows = rows.astype(np.int64, copy=False)
    if rows.size and not 0 <= rows.min() <= rows.max() < most:
        raise ValueError(
            f"{name} must hold positions in 0…{most - 1}, found {rows.min()}…"
            f"{rows.max()}; was it made for another data set?"
        )
    if len(np.unique(rows)) < len(rows):
        raise ValueError(f"{name} must hold distinct positions, found a repeated one")
    return rows
