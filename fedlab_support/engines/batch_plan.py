"""The padded batches of a stack: which client sees which samples at which step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..federation.federation import Federation
from ..federation.samples import Batch, Store


def batch_of_rows(store: Store, rows: Tensor) -> Batch:
    """The samples of some rows of the store, (B,) or (K, B)."""
    x, y = store.inputs(rows.flatten()), store.targets(rows.flatten())
    return Batch(x.unflatten(0, rows.shape), y.unflatten(0, rows.shape), rows, epoch=0)


class BatchPlan:
    """The batches of K clients over T steps, padded to B samples.

    batches:    for each client of `ids` its batches, as positions among its own
                samples; the client with the most batches comes first.
    rows:       positions in the store, (T, K, B).
    share:      weight of each sample in its client's loss, (T, K, B); 0 for padding.
    num_active: clients that still train at each step, (T,).
    width:      samples of the largest batch of each step, (T,).
    """

    def __init__(
        self,
        batches: Sequence[Sequence[np.ndarray]],
        ids: Sequence[int],
        federation: Federation,
    ):
        counts = np.zeros((len(batches), len(batches[0]), 1), dtype=np.int64)
        for k, client in enumerate(batches):
            counts[k, : len(client), 0] = [len(index) for index in client]
        is_real = np.arange(counts.max()) < counts
        position = np.zeros(is_real.shape, dtype=np.int64)  # padding repeats sample 0
        position[is_real] = np.concatenate(
            [index for client in batches for index in client]
        )
        aside = federation.num_val[ids] + federation.num_test[ids]
        first = federation.starts[ids] + aside
        rows = federation.rows[position + first[:, None, None]].swapaxes(0, 1)
        device = federation.store.device
        share = (is_real / np.maximum(counts, 1)).astype(np.float32)
        steps = (counts > 0).sum((1, 2))
        self.num_active = (counts > 0).sum((0, 2)).tolist()
        self.width = counts.max((0, 2)).tolist()
        self.rows = torch.from_numpy(rows).to(device)
        self.share = torch.from_numpy(share.swapaxes(0, 1)).to(device)
        self.steps = torch.from_numpy(steps).to(device)

    def batch(self, step: int, store: Store) -> tuple[Batch, Tensor]:
        """The batch of a step, x and y (K, B, …), and its shares (K, B)."""
        where = (step, slice(self.num_active[step]), slice(self.width[step]))
        return batch_of_rows(store, self.rows[where]), self.share[where]

    def means(self, logged: list[Tensor]) -> list[float]:
        """Mean over each client's own steps, from values (active,) per step."""
        total = torch.zeros(len(self.steps), device=self.steps.device)
        for values in logged:
            total[: len(values)] += values
        return (total / self.steps).tolist()
