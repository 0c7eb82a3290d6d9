"""Client types: many clients of one domain, few of another."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...core.checks import SEED, Range, checked
from ...data import DomainData
from .dealing import Parts, dealt, domain_ids

RATIOS = {
    (5, 5): 1.5,  # Digit-Five
    (5, 10): 1.8,
    (6, 5): 1.4,  # DomainNet
    (6, 10): 1.6,
    (4, 5): 1.7,  # PACS
    (4, 10): 2.16,
}
"""(Types, imbalance) → ratio of neighbours in the series, as the authors ran it."""

BALANCED_CLIENTS, BALANCED_STEP = 2, 3.0
"""Clients of each type and the ratio of their sizes when ``imbalance`` is 1."""

IMBALANCE = Range(
    at_least=1,
    hint="it is the number of clients of the first domain over that of the last: 1, 5 "
    "or 10",
)


@checked(
    imbalance=IMBALANCE,
    rng=SEED,
    share=Range(above=0, at_most=1),
    inside=Range(at_least=1),
)
def client_types(
    data: DomainData,
    imbalance: float,
    rng,
    order: Iterable[str] | None = None,
    among=None,
    *,
    share: float = 1.0,
    inside: float | None = None,
    equal_sizes: bool = False,
) -> Parts:
    """Clients with one domain each, and fewer clients from domain to domain.

    imbalance:    number of clients of the first domain over that of the last, ≥ 1; 1
                  gives two clients per domain.
    order:        names of domains, majority first; None: all, in the data set's order.
    share:        share of the available samples to use, in (0, 1]. The authors use 0.6
                  or 0.3.
    inside:       size of a domain's largest client over its smallest, ≥ 1. The authors
                  use ``imbalance`` on PACS. None: each client of a domain is larger
                  than the one before by the ratio of the counts of neighbouring
                  domains (3 if ``imbalance`` is 1).
    equal_sizes:  all clients have the same size, so that only the counts are
                  imbalanced.

    As in the authors' code, imbalance goes further than in the paper: each domain has
    at most 1/ratio of the samples of the previous one, and the sizes of a domain's
    clients grow by a constant ratio. Samples that do not fit are left out. Clients are
    sorted by domain, then by size.

    Raises ValueError for a single domain, or a client without a sample.

    Source: Cheng et al., AAAI 2024 (FedGCR), "Experiment settings", and their code,
    which defines the balanced split (1 : 3 for two clients).
    """
    among, rng = dealt(data, among, 1), np.random.default_rng(rng)
    if order is None:
        order = [data.domain_names[d] for d in np.unique(data.domain[among])]
    ids = list(dict.fromkeys(domain_ids(data, order)))
    members = [rng.permutation(among[data.domain[among] == d]) for d in ids]
    num = type_counts(len(ids), imbalance)
    if equal_sizes:
        least = min(int(share * len(m)) // n for m, n in zip(members, num, strict=True))
        sizes = [np.full(n, least) for n in num]
    else:
        sizes = type_sizes([len(m) for m in members], imbalance, share, inside)
    for d, own in zip(ids, sizes, strict=True):
        if not own.all():
            raise ValueError(
                f"expected a sample for each of the {len(own)} clients of "
                f"{data.domain_names[d]!r}, found sizes {own.tolist()}; lower "
                "imbalance, raise share, or set equal_sizes=True"
            )
    return [
        part
        for each, own in zip(members, sizes, strict=True)
        for part in np.split(each, np.cumsum(own))[:-1]
    ]


def type_counts(num_types: int, imbalance: float) -> np.ndarray:
    """Clients of each type, int (T,), majority first; the last has one if imbalanced.

    Raises ValueError for fewer than two types.
    """
    if num_types < 2:
        raise ValueError(
            f"client types need at least two domains, found {num_types}; name several "
            "in order=, or make domains of writers with rotated(data)"
        )
    if imbalance == 1:
        return np.full(num_types, BALANCED_CLIENTS)
    # N_i = ρ^(T - 1 - i), halves to the even neighbour
    powers = np.arange(num_types)[::-1]
    return np.rint(ratio(num_types, imbalance) ** powers).astype(np.int64)


def ratio(num_types: int, imbalance: float) -> float:
    """ρ of the series: as the authors ran it, or imbalance^(1 / (T - 1)), the paper."""
    return RATIOS.get((num_types, imbalance), imbalance ** (1 / (num_types - 1)))


def type_sizes(
    available, imbalance: float, share: float = 1.0, inside: float | None = None
) -> list[np.ndarray]:
    """Sizes of the clients of each type, ascending within a type.

    available:  samples of the T types, majority first.

    The other arguments are those of ``client_types``.
    """
    num, step = type_counts(len(available), imbalance), BALANCED_STEP
    used = [min(available)] * len(available)
    if imbalance > 1:
        step, used = ratio(len(available), imbalance), [available[0]]
        for own in available[1:]:
            used.append(min(own, int(used[-1] / step)))
    sizes = []
    for pool, n in zip(used, num, strict=True):
        growth = step if inside is None or n == 1 else inside ** (1 / (n - 1))
        # n_j = pool r^j / Σ_k r^k, rounded down
        weights = growth ** np.arange(n)
        own = np.floor(int(share * pool) * weights / weights.sum())
        sizes.append(own.astype(np.int64))
    return sizes
