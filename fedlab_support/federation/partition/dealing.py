"""Partitions by labels, owners or domains, and helpers for all partitions."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...data import DomainData

Parts = list[np.ndarray]
"""One array of positions in a DomainData per client."""


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


def iid(data: DomainData, clients: int, rng, among=None) -> Parts:
    """Shuffle and split into ``clients`` parts whose sizes differ by at most one."""
    among = dealt(data, among, clients)
    return np.array_split(np.random.default_rng(rng).permutation(among), clients)


def dirichlet(data: DomainData, clients: int, alpha: float, rng, among=None) -> Parts:
    """Distribute each class over the clients in shares drawn from Dirichlet(alpha).

    alpha:  > 0; 0.1 leaves most clients with a few classes, 100 is close to iid.

    Shares are redrawn up to 100 times until every client has a sample. Source: Hsu, Qi,
    Brown, arXiv:1909.06335, 2019, section 3; we draw the shares of a class over
    clients, as in most later code, so client sizes differ too.
    """
    if not 0 < alpha < float("inf"):
        raise ValueError(
            f"alpha must be positive and finite, found {alpha}; 100 is close to iid"
        )
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
        "expected every client to get a sample, found an empty one in 100 draws of "
        f"Dirichlet({alpha}) for {clients} clients and {len(among)} samples; raise "
        "alpha or ask for fewer clients"
    )


def shards(data: DomainData, clients: int, per_client: int, rng, among=None) -> Parts:
    """Sort by class, split into equal shards, and give each client ``per_client``.

    Source: McMahan et al., AISTATS 2017, section 3 (their "pathological" split has two
    shards per client).
    """
    if per_client < 1:
        raise ValueError(f"per_client must be at least 1, found {per_client}")
    among, rng = dealt(data, among, clients * per_client), np.random.default_rng(rng)
    among, labels = rng.permutation(among), data.classes_for("shards")
    by_class = among[np.argsort(labels[among], kind="stable")]
    pieces = np.array_split(by_class, clients * per_client)
    order = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[i] for i in row]) for row in order]


def by_owner(data: DomainData, among=None) -> Parts:
    """One client per owner (writer, site, camera) that has samples, in owner order."""
    return grouped(data.owner, dealt(data, among, 1))


def by_domain(data: DomainData, clients_per_domain: int, rng, among=None) -> Parts:
    """Each domain's samples, shuffled and split over ``clients_per_domain`` clients."""
    if clients_per_domain < 1:
        raise ValueError(f"clients_per_domain must be ≥ 1, found {clients_per_domain}")
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
    among = leave_out(data) if among is None else np.asarray(among)
    if among.dtype == bool or len(np.unique(among)) < len(among):
        raise ValueError(
            "among must hold distinct positions of samples, found a mask or a repeated "
            "position; np.flatnonzero(mask) turns a mask into positions"
        )
    if not isinstance(num_parts, int | np.integer) or num_parts < 1:
        raise ValueError(f"expected at least 1 client, found {num_parts}")
    if num_parts > len(among):
        raise ValueError(
            f"expected at most {len(among)} parts, one per training sample of "
            f"{data.name}, found {num_parts}; ask for fewer clients"
        )
    return among
