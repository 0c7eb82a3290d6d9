"""Pool one-time uploads and return to each client everyone else's entries.

Amplitudes and averaged batches are shared this way. Entries are ordered by
group (client or class), so that drawing one only needs the sizes of the groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.messages import Tensors


def gather(
    uploads: dict[int, Tensors],
    entries: str,
    groups: str | None = None,
    beside: tuple[str, ...] = (),
) -> Tensors:
    """Pool the set-up uploads of all clients, which are alike (``upload_validation``).

    uploads: set-up uploads by client.
    entries: name of the tensors to pool, (n_k, …) each.
    groups:  name of the group of each entry, int64 (n_k,); without it, each client is a
             group.
    beside:  names of tensors that belong to each entry, (n_k, …) each.

    Returns ``entries`` (N, …), ``owner`` and ``group`` (N,), and the tensors of
    ``beside``.
    """
    each = list(uploads.values())
    sizes = torch.tensor([len(upload[entries]) for upload in each])
    owner = torch.tensor(list(uploads)).repeat_interleave(sizes)
    group = owner
    if groups in each[0]:
        group = torch.cat([upload[groups] for upload in each]).to(owner)
    rows = {name: torch.cat([upload[name] for upload in each]) for name in beside}
    pooled = torch.cat([upload[entries] for upload in each])
    return {"entries": pooled, **rows, "owner": owner, "group": group}


def others(pooled: Tensors, client_id: int) -> Tensors:
    """The entries of all other clients, ordered by group, and the groups' ``sizes``.

    The last size is 0 and stands for every group without an entry. Raises ValueError if
    no other client has an entry.
    """
    theirs = (pooled["owner"] != client_id).nonzero()[:, 0]
    if not len(theirs):
        raise ValueError(
            "expected entries of at least two clients, found one; split the data "
            "among more, or let clients with few images share, too"
        )
    group = pooled["group"][theirs]
    sizes = group.bincount(minlength=int(pooled["group"].max()) + 2)
    order = theirs[group.argsort(stable=True)]
    names = sorted(pooled.keys() - {"owner", "group"})
    rows = {name: pooled[name][order.to(pooled[name].device)] for name in names}
    return {**rows, "sizes": sizes}


def draw(
    sizes: Tensor, num: int, rng: torch.Generator, group: Tensor | None = None
) -> Tensor:
    """Draw positions of ``num`` entries: a non-empty group, then one of its entries.

    group: the groups to draw from, (num,); if one is empty, any entry may be drawn.
    """
    sizes = sizes.cpu()
    if group is None:
        group = torch.multinomial((sizes > 0).double(), num, True, generator=rng)
    group = group.cpu().clamp(max=len(sizes) - 1)
    size = sizes[group]
    first = torch.where(size > 0, sizes.cumsum(0)[group] - size, 0)
    place = torch.rand(num, generator=rng, dtype=torch.float64)
    return first + (place * torch.where(size > 0, size, sizes.sum())).long()
