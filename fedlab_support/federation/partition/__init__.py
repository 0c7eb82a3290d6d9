"""Who holds which samples: pure functions from labels, owners or domains to clients.

Each function returns one array of positions per client. Every sample that is dealt
lands in exactly one array, and an impossible request raises ValueError. What is dealt
is ``among``: by default everything that is not set aside for testing.

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

__all__ = [
    "Parts",
    "by_domain",
    "by_owner",
    "client_types",
    "dirichlet",
    "domain_ids",
    "heterogeneous",
    "iid",
    "leave_out",
    "shards",
]
