"""Split a data set into public images and images held by clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlab_support.data import DomainData
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_domain, by_owner


@dataclass(frozen=True, eq=False)
class Split:
    """A data set whose images are public or held by a client, and never both.

    public:  rows of public images.
    held:    rows of all clients' images, sorted.
    clients: rows of each client.
    device:  of the clients' images.
    """

    data: DomainData
    public: np.ndarray
    held: np.ndarray
    clients: list[np.ndarray]
    device: str = "cpu"

    @cached_property
    def federation(self) -> Federation:
        """The clients, with all their images used for training."""
        return Federation.build(self.data, self.clients).on(self.device)

    def colours(self, rows: np.ndarray) -> Tensor:
        """The images at ``rows`` as clients see them: colours in 0…1, (N, C, H, W)."""
        store = self.federation.store
        x = store.inputs(torch.from_numpy(rows).to(store.device))
        return store.shown(x).contiguous()

    def domain_of(self, rows: np.ndarray) -> list[str]:
        """The name of each row's domain."""
        return [self.data.domain_names[k] for k in self.data.domain[rows]]

    def each_domain(
        self, measure: Callable[..., float], *values: Tensor
    ) -> dict[str, float]:
        """A measure of the rows of each domain, of values (N, …) of the held images."""
        domains = self.data.domain[self.held]
        return {
            name: measure(*(rows[domains == k] for rows in values))
            for k, name in enumerate(self.data.domain_names)
        }

    @cached_property
    def client_of(self) -> np.ndarray:
        """The client of each held image, (N,)."""
        rows = np.concatenate(self.clients)
        client = np.repeat(np.arange(len(self.clients)), list(map(len, self.clients)))
        return client[np.argsort(rows)]

    def groups(self, size: int) -> np.ndarray:
        """Groups of ``size`` images of one client each, as positions in ``held``.

        At most 200 groups (G, size), evenly spaced over the clients.
        """
        whole = [rows[: len(rows) // size * size] for rows in self.clients]
        groups = np.concatenate([rows.reshape(-1, size) for rows in whole])
        chosen = groups[:: max(1, -(-len(groups) // 200))]
        return np.searchsorted(self.held, chosen)


def split_by_owner(
    data: DomainData, most_held: int, clients_per_domain: int = 0, device: str = "cpu"
) -> Split:
    """Make every other owner's images public and deal the others to clients.

    most_held:          images of all clients together, equally many of each domain.
    clients_per_domain: 0 makes each owner a client.

    A domain with one owner is split image by image.
    """
    data = replace(data, is_test=np.zeros(len(data), dtype=bool))
    public, held = [], []
    for domain in range(len(data.domain_names)):
        rows = np.flatnonzero(data.domain == domain)
        rows = np.random.default_rng(domain).permutation(rows)
        owners = np.unique(data.owner[rows])
        is_public = np.isin(data.owner[rows], owners[::2])
        if len(owners) == 1:
            is_public = np.arange(len(rows)) % 2 == 0
        public.append(np.sort(rows[is_public]))
        held.append(np.sort(rows[~is_public][: most_held // len(data.domain_names)]))
    public, held = np.concatenate(public), np.concatenate(held)
    if clients_per_domain:
        clients = by_domain(data, clients_per_domain, rng=0, among=held)
    else:
        clients = by_owner(data, held)
    return Split(data, public, np.sort(held), list(clients), device)
