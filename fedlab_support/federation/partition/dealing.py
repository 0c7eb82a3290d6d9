"""Rules that look at one column: labels, owners or domains; and what all share."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...data import DomainData

Parts = list[np.ndarray]
"""One array of positions in a DomainData per client."""


def leave_out(data: DomainData, domains: str | Iterable[str] = ()) -> np.ndarray:
    """Positions of the samples that may be trained on without touching ``domains``.

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
                f"{data.name} has the domains {list(data.domain_names)}, found "
                f"{name!r}; pick one of them"
            )
    return [data.domain_names.index(name) for name in names]


def iid(data: DomainData, clients: int, rng, among=None) -> Parts:
    """Shuffle and cut into ``clients`` parts whose sizes differ by at most one."""
    among = dealt(data, among, clients)
    return np.array_split(np.random.default_rng(rng).permutation(among), clients)


def dirichlet(data: DomainData, clients: int, alpha: float, rng, among=None) -> Parts:
    """Deal each class to the clients in shares drawn from Dirichlet(alpha).

    alpha > 0: 0.1 leaves most clients with a few classes, 100 is close to iid. Shares
    are drawn anew, at most 100 times, until every client has a sample.

    Source: Hsu, Qi, Brown, arXiv:1909.06335, 2019, section 3; here the shares of a
    class over clients are drawn, as in most later code, so client sizes differ too.
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
        f"expected every client to get a sample, found an empty one in 100 draws of "
        f"Dirichlet({alpha}) for {clients} clients and {len(among)} samples; raise "
        "alpha or ask for fewer clients"
    )


def shards(data: DomainData, clients: int, per_client: int, rng, among=None) -> Parts:
    """Sort by class, cut into equal shards, and deal ``per_client`` shards to each.

    Source: McMahan et al., AISTATS 2017, section 3 (their "pathological" split has
    two shards per client).
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
    """Each domain's samples, shuffled and cut into ``clients_per_domain`` clients."""
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
    """What is dealt, checked against the number of parts it must fill."""
    among = leave_out(data) if among is None else np.asarray(among)
    if among.dtype == bool or len(np.unique(among)) < len(among):
        raise ValueError(
            "among must hold different positions of samples, found a mask or a "
            "position twice; np.flatnonzero(mask) turns a mask into positions"
        )
    if not isinstance(num_parts, int | np.integer) or num_parts < 1:
        raise ValueError(f"expected at least 1 client, found {num_parts}")
    if num_parts > len(among):
        raise ValueError(
            f"expected at most {len(among)} parts, one per sample that may be trained "
            f"on in {data.name}, found {num_parts}; ask for fewer clients"
        )
    return among
