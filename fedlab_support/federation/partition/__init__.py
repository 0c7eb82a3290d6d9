"""Partitions: pure functions that assign samples to clients.

Each function returns one array of positions per client and raises ValueError for an
impossible request. It partitions the samples ``among``, by default all that are not
test samples, and assigns each of them to exactly one client.

``rng`` is a NumPy generator or an integer seed.
"""

from .dealing import (
    Parts,
    by_domain,
    by_owner,
    dirichlet,
    domain_ids,
    iid,
    leave_out,
    shards,
)
from .imbalance import client_types
from .mixtures import heterogeneous
