"""Samples of a data set on a device, and how they are batched."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.metrics import Regression, task
from ..data import DomainData
from ..data.images import Images


class Batch(NamedTuple):
    """A batch of samples for the model.

    x:      float (B, C, H, W), normalised, on the device; other inputs float or int64
            (B, …).
    y:      int64 (B,), or masks (B, H, W); after mixing labels, probabilities of the M
            classes, float (B, M) or (B, M, H, W); of a regression, float (B, M).
    index:  int64 (B,), positions in the client's own data: the key for caches.
    epoch:  number of the epoch, from 0.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    epoch: int


MOST_VALUES = 1_000_000
"""Maximum number of pixel values, 4 bytes each, that are normalised in one go."""

READY_VALUES = 4_000_000
"""A data set with at most this many values is normalised once and kept."""


class Store:
    """The inputs and labels of a data set on a device, shared by clients.

    Inputs are moved to the device once if they take at most half of its free memory;
    otherwise, and on a CPU, they stay where they are, such as in a memory-mapped file.
    Stored images smaller than the data set's are enlarged, a batch at a time.

    task:  the loss and the score of the data set.
    """

    def __init__(self, data: DomainData, device: str | torch.device = "cpu"):
        self.data, self.device = data, torch.device(device)
        inputs, self.rows, self.size = data.images, None, None
        if isinstance(inputs, Images):
            inputs, self.rows, self.size = inputs.array, inputs.rows, inputs.size
        if self.rows is not None and self._has_room(inputs[:1].nbytes * len(data)):
            inputs, self.rows = inputs[self.rows], None
        stays = not self._has_room(inputs.nbytes)
        self.images = _tensor(inputs).to("cpu" if stays else self.device)
        if self.rows is not None:
            self.rows = torch.from_numpy(self.rows)
        labels = _tensor(data.labels).to(self.device)
        self.labels = labels.long() if data.task == "classification" else labels
        self.task = task(data.task)
        if isinstance(self.task, Regression):
            variance = data.labels.var(0, dtype=np.float64)  # sums of many floats
            self.task = Regression(variance=tuple(variance.tolist()))
        if data.mean is not None:
            axes = (1, -1) + (1,) * (self.images.ndim - 2)
            std = torch.tensor(data.std, device=self.device).view(axes)
            mean = torch.tensor(data.mean, device=self.device).view(axes)
            largest = 255 if data.has_images else 1
            self.scale, self.shift = 1 / (largest * std), mean / std

    def _has_room(self, num_bytes: int) -> bool:
        """Whether inputs of this size are moved to the device; never to a CPU."""
        if self.device.type == "cuda":
            return num_bytes <= torch.cuda.mem_get_info(self.device)[0] / 2
        return self.device.type != "cpu"

    @cached_property
    def _ready(self) -> Tensor | None:
        """All inputs normalised, images as (N, H, W, C); None for a large data set."""
        num = len(self.data)
        if num * math.prod(self.data.image_shape) > READY_VALUES:
            return None
        x = self._normalised(torch.arange(num, device=self.device))
        return x.permute(0, 2, 3, 1) if x.ndim == 4 else x

    def inputs(self, rows: Tensor) -> Tensor:
        """Normalised inputs (B, …); images as float32 (B, C, H, W), channels last."""
        if self._ready is None:
            return self._normalised(rows)
        x = self._ready.index_select(0, rows)
        return x.permute(0, 3, 1, 2) if x.ndim == 4 else x

    def _normalised(self, rows: Tensor) -> Tensor:
        rows = rows.to(self.images.device)
        rows = rows if self.rows is None else self.rows[rows]
        x = self.images.index_select(0, rows).to(self.device)
        form = torch.channels_last if x.ndim == 4 else torch.preserve_format
        if self.data.mean is None:
            return x.to(memory_format=form)
        x = x.to(torch.float32, memory_format=form, copy=True)
        x = x.mul_(self.scale).sub_(self.shift)
        if self.size and x.shape[-1] != self.size:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear")
        return x

    def targets(self, rows: Tensor) -> Tensor:
        """Classes (B,) or masks (B, H, W), int64, or float targets (B, M)."""
        y = self.labels.index_select(0, rows)
        return y if y.is_floating_point() else y.long()

    def clip(self, x: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) clipped to the range of uint8 images."""
        return x.clamp(-self.shift, 255 * self.scale - self.shift)

    def shown(self, x: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) as colours, clipped to 0…1."""
        return ((x + self.shift) / (255 * self.scale)).clamp(0, 1)

    def normalised(self, colours: Tensor) -> Tensor:
        """Colours in 0…1, (B, C, H, W), as normalised images."""
        return colours * (255 * self.scale) - self.shift


def _tensor(array: np.ndarray) -> Tensor:
    """The array without a copy, unless it runs backwards, as in ``images[:, ::-1]``."""
    return torch.from_numpy(array.copy() if min(array.strides) < 0 else array)


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a data set, stored as positions without copying."""

    store: Store
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Samples({len(self):,} of {self.store.data.name!r})"

    @property
    def labels(self) -> np.ndarray:
        """Classes, int (N,), masks, uint8 (N, H, W), or float targets (N, M)."""
        return self.store.data.labels[self.rows]

    @property
    def targets(self) -> Tensor:
        """Classes (N,) or masks (N, H, W), int64, or float targets, on the device."""
        return self.store.targets(torch.from_numpy(self.rows).to(self.store.device))

    @property
    def domain(self) -> np.ndarray:
        """Domains, int (N,)."""
        return self.store.data.domain[self.rows]

    @property
    def owner(self) -> np.ndarray:
        """Owners, int (N,)."""
        return self.store.data.owner[self.rows]

    def batch(self, index: np.ndarray) -> Batch:
        """The samples at positions ``index`` (B,) of this client's data as a batch."""
        rows = torch.from_numpy(self.rows[index]).to(self.store.device)
        x, y = self.store.inputs(rows), self.store.targets(rows)
        return Batch(x, y, torch.from_numpy(index).to(self.store.device), 0)

    def whole(self) -> Batch:
        """All samples as one batch, in order."""
        return self.batch(np.arange(len(self)))

    def batches(
        self,
        size: int,
        epochs: int = 1,
        order: np.random.Generator | None = None,
        smallest: int = 1,
    ) -> Iterator[Batch]:
        """All samples in batches; see ``positions`` for the arguments."""
        plan = positions(len(self), size, epochs, order, smallest)
        values = size * math.prod(self.store.data.image_shape)
        while block := list(islice(plan, max(1, MOST_VALUES // values))):
            # many small batches are gathered in one go and then split
            x, y, index, _ = self.batch(np.concatenate([each for each, _ in block]))
            cuts = [len(each) for each, _ in block]
            parts = zip(
                *(part.split_with_sizes(cuts) for part in (x, y, index)), strict=True
            )
            for part, (_, epoch) in zip(parts, block, strict=True):
                yield Batch(*part, epoch)

    def domain_batches(self, order: np.random.Generator) -> Iterator[Batch]:
        """All samples in shuffled batches of one domain each, of 32 to 63.

        A smaller domain is one batch.
        """
        domain = self.domain
        for d in np.unique(domain):
            mine = order.permutation(np.flatnonzero(domain == d))
            for index in np.array_split(mine, max(1, len(mine) // 32)):
                yield self.batch(index)


def positions(
    num: int,
    size: int,
    epochs: int = 1,
    order: np.random.Generator | None = None,
    smallest: int = 1,
) -> Iterator[tuple[np.ndarray, int]]:
    """Split ``num`` samples into batches; also used in training.

    size:      maximum number of samples of a batch.
    epochs:    passes over the samples.
    order:     shuffles each epoch; None keeps the samples in order.
    smallest:  the last batch of an epoch is dropped if it has fewer samples.
    Yields positions, int (B,), and the number of the epoch, from 0.
    """
    for epoch in range(epochs):
        position = np.arange(num) if order is None else order.permutation(num)
        for start in range(0, num, size):
            index = position[start : start + size]
            if len(index) >= smallest:
                yield index, epoch
