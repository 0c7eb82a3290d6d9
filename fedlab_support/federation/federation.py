"""Clients as views into one data set, and the federation they form."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data import DomainData
from .partition import domain_ids

if TYPE_CHECKING:
    import pandas as pd


class Batch(NamedTuple):
    """Samples on their way through the model.

    x:      float (B, C, H, W), normalised, on the device.
    y:      int64 (B,), or masks (B, H, W); where labels were mixed, probabilities of
            the M classes, float (B, M) or (B, M, H, W).
    index:  int64 (B,), positions in the client's own data: the key for caches.
    epoch:  number of the pass over the client's data, from 0.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    epoch: int


MOST_VALUES = 1_000_000
"""Values of images, 4 bytes each, that are made ready at once."""

READY_VALUES = 4_000_000
"""A data set with at most as many is made ready once, for all visits."""


class Store:
    """A data set's images and masks on one device, once, as uint8."""

    def __init__(self, data: DomainData, device: str | torch.device = "cpu"):
        self.data, self.device = data, torch.device(device)
        self.images = torch.from_numpy(data.images).to(self.device)
        labels = torch.from_numpy(data.labels).to(self.device)
        self.labels = labels if data.has_masks else labels.long()
        std = torch.tensor(data.std, device=self.device).view(1, -1, 1, 1)
        mean = torch.tensor(data.mean, device=self.device).view(1, -1, 1, 1)
        self.scale, self.shift = 1 / (255 * std), mean / std

    def __reduce__(self):
        # made anew from the data where it is unpickled: images travel once
        return Store, (self.data, self.device)

    @cached_property
    def _ready(self) -> Tensor | None:
        """All images normalised, (N, H, W, C), if they are few; made when needed."""
        if self.images.numel() > READY_VALUES:
            return None
        return self._normalised(self.images).permute(0, 2, 3, 1)

    def pictures(self, rows: Tensor) -> Tensor:
        """Normalised images, float32 (B, C, H, W), channels last."""
        if self._ready is None:
            return self._normalised(self.images.index_select(0, rows))
        return self._ready.index_select(0, rows).permute(0, 3, 1, 2)

    def _normalised(self, images: Tensor) -> Tensor:
        x = images.to(torch.float32, memory_format=torch.channels_last)
        return x.mul_(self.scale).sub_(self.shift)

    def targets(self, rows: Tensor) -> Tensor:
        """Classes (B,) or masks (B, H, W), int64."""
        return self.labels.index_select(0, rows).long()

    def clip(self, x: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) cut to what uint8 images can be."""
        return x.clamp(-self.shift, 255 * self.scale - self.shift)

    def shown(self, x: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) as colours in 0…1, cut to that."""
        return ((x + self.shift) / (255 * self.scale)).clamp(0, 1)

    def normalised(self, colours: Tensor) -> Tensor:
        """Colours in 0…1, (B, C, H, W), as networks get images."""
        return colours * (255 * self.scale) - self.shift


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of a data set: positions, no copies."""

    store: Store
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"Samples({len(self):,} of {self.store.data.name!r})"

    @property
    def labels(self) -> np.ndarray:
        """Classes, int (N,), or masks, uint8 (N, H, W)."""
        return self.store.data.labels[self.rows]

    @property
    def targets(self) -> Tensor:
        """Classes (N,) or masks (N, H, W), int64, on the device."""
        return self.store.targets(torch.from_numpy(self.rows).to(self.store.device))

    @property
    def domain(self) -> np.ndarray:
        """Domains, int (N,)."""
        return self.store.data.domain[self.rows]

    @property
    def owner(self) -> np.ndarray:
        """Owners, int (N,)."""
        return self.store.data.owner[self.rows]

    def batch(self, index: np.ndarray, epoch: int = 0) -> Batch:
        """The samples at positions ``index`` (B,) of this client's data."""
        rows = torch.from_numpy(self.rows[index]).to(self.store.device)
        x, y = self.store.pictures(rows), self.store.targets(rows)
        return Batch(x, y, torch.from_numpy(index).to(self.store.device), epoch)

    def whole(self) -> Batch:
        """All samples as one batch, in sequence."""
        return self.batch(np.arange(len(self)))

    def batches(
        self,
        size: int,
        epochs: int = 1,
        order: np.random.Generator | None = None,
        smallest: int = 1,
    ) -> Iterator[Batch]:
        """All samples in batches, as ``positions`` says."""
        plan = positions(len(self), size, epochs, order, smallest)
        values = size * math.prod(self.store.data.image_shape)
        while block := list(islice(plan, max(1, MOST_VALUES // values))):
            # many small batches are made in one go, and then cut
            x, y, index, _ = self.batch(np.concatenate([each for each, _ in block]))
            cuts = [len(each) for each, _ in block]
            parts = zip(
                *(part.split_with_sizes(cuts) for part in (x, y, index)), strict=True
            )
            for part, (_, epoch) in zip(parts, block, strict=True):
                yield Batch(*part, epoch)

    def mixed(self, order: np.random.Generator, size: int = 32) -> Iterator[Batch]:
        """All samples in batches of one domain each, ``size`` to 2 ``size`` - 1 of it.

        ``order`` mixes a domain's samples; one with fewer of them is one batch.
        """
        domain = self.domain
        for d in np.unique(domain):
            mine = order.permutation(np.flatnonzero(domain == d))
            for index in np.array_split(mine, max(1, len(mine) // size)):
                yield self.batch(index)


def positions(
    num: int,
    size: int,
    epochs: int = 1,
    order: np.random.Generator | None = None,
    smallest: int = 1,
) -> Iterator[tuple[np.ndarray, int]]:
    """How all samples are batched, in training too: ``epochs`` passes over ``num``.

    Yields positions, int (B,) with B ≤ ``size``, and the number of the pass. ``order``
    shuffles every pass anew; without it the samples come in sequence. The last batch of
    a pass is kept unless it has fewer than ``smallest`` samples.
    """
    for epoch in range(epochs):
        position = np.arange(num) if order is None else order.permutation(num)
        for start in range(0, num, size):
            index = position[start : start + size]
            if len(index) >= smallest:
                yield index, epoch


@dataclass(frozen=True, eq=False)
class Client:
    """One participant: what it trains on and what it keeps back to validate."""

    id: int
    train: Samples
    val: Samples


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that share a task, plus samples on which nobody trains.

    test:      samples set aside in the domains that clients train on.
    held_out:  every sample of the domains that no client has.

    Made by ``build``. Holding 100,000 clients costs three numbers each.
    """

    store: Store
    rows: np.ndarray  # all clients' samples, client after client, validation first
    starts: np.ndarray  # (K + 1,): client k owns rows[starts[k]:starts[k + 1]]
    num_val: np.ndarray  # (K,)
    test: Samples
    held_out: Samples
    held_out_domains: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        data: DomainData,
        parts: Sequence[np.ndarray],
        held_out: str | Iterable[str] = (),
        val: float = 0.0,
        seed: int = 0,
    ) -> Federation:
        """Turn a partition into a federation.

        parts:     one array of positions per client (see ``partition``).
        held_out:  names of domains that must not appear in any client.
        val:       share of each client's samples kept back, in [0, 1); drawn with
                   ``seed``; a client always keeps at least one sample to train on.

        Raises ValueError for an empty client, a sample in two clients, a sample set
        aside for testing or from a held-out domain in a client, an unknown domain.
        """
        if not 0 <= val < 1:
            raise ValueError(f"val is the share kept back, in [0, 1), found {val}")
        names = (held_out,) if isinstance(held_out, str) else tuple(held_out)
        is_held_out = np.isin(data.domain, domain_ids(data, names))
        sizes = _checked_sizes(data, parts, is_held_out, names)
        num_val = np.minimum((sizes * val).astype(np.int64), sizes - 1)
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(p) if val else np.asarray(p) for p in parts]
        store = Store(data)
        return cls(
            store,
            np.concatenate(rows).astype(np.int64),
            np.concatenate([[0], np.cumsum(sizes)]),
            num_val,
            Samples(store, np.flatnonzero(data.is_test & ~is_held_out)),
            Samples(store, np.flatnonzero(is_held_out)),
            names,
        )

    def on(self, device: str | torch.device) -> Federation:
        """The same federation with its images on ``device``."""
        if torch.device(device) == self.store.device:
            return self
        store = Store(self.data, device)
        return replace(
            self,
            store=store,
            test=Samples(store, self.test.rows),
            held_out=Samples(store, self.held_out.rows),
        )

    @property
    def data(self) -> DomainData:
        """The data set all clients are views of."""
        return self.store.data

    def __len__(self) -> int:
        return len(self.num_val)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples per client, int (K,)."""
        return np.diff(self.starts) - self.num_val

    @cached_property
    def with_val(self) -> np.ndarray:
        """Clients that keep samples back, in ascending sequence, int."""
        return np.flatnonzero(self.num_val)

    @cached_property
    def homes(self) -> dict[int, int]:
        """Domains on which one client alone trains: domain → client."""
        holds = self._counts(self.data.domain, len(self.data.domain_names)) > 0
        alone = np.flatnonzero(holds.sum(0) == 1)
        return dict(
            zip(alone.tolist(), holds[:, alone].argmax(0).tolist(), strict=True)
        )

    def train_rows(self, id: int) -> np.ndarray:
        """Rows of the store that client ``id`` trains on, int (N,)."""
        return self.rows[self.starts[id] + self.num_val[id] : self.starts[id + 1]]

    def client(self, id: int) -> Client:
        """Client ``id``, a view made on demand."""
        if not 0 <= id < len(self):
            raise ValueError(f"clients are numbered 0…{len(self) - 1}, found {id}")
        first = self.starts[id]
        val = Samples(self.store, self.rows[first : first + self.num_val[id]])
        return Client(int(id), Samples(self.store, self.train_rows(id)), val)

    def table(self) -> pd.DataFrame:
        """Training samples, clients × domains."""
        import pandas as pd

        counts = self._counts(self.data.domain, len(self.data.domain_names))
        table = pd.DataFrame(counts, columns=list(self.data.domain_names))
        return table.rename_axis("client").assign(all=self.sizes)

    def class_counts(self) -> np.ndarray:
        """Training samples, clients × classes, int (K, M); ValueError for masks."""
        classes = self.data.classes_for("class_counts")
        return self._counts(classes, self.data.num_classes)

    def _counts(self, column: np.ndarray, num_values: int) -> np.ndarray:
        owner = np.repeat(np.arange(len(self)), np.diff(self.starts))
        position = np.arange(len(self.rows)) - self.starts[owner]
        trained = position >= self.num_val[owner]
        cell = owner[trained] * num_values + column[self.rows[trained]]
        counts = np.bincount(cell, minlength=len(self) * num_values)
        return counts.reshape(len(self), num_values)

    def fingerprint(self) -> str:
        """A short hash of the data and of who holds what."""
        digest = hashlib.sha256(self.data.fingerprint().encode())
        for part in (self.rows, self.starts, self.num_val, self.held_out.rows):
            digest.update(np.ascontiguousarray(part, dtype=np.int64))
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        sizes, lines = self.sizes, []
        held = ", ".join(self.held_out_domains) or "none"
        lines.append(
            f"Federation of {len(self):,} clients on {self.data.name!r}: "
            f"{sizes.sum():,} training samples, {sizes.min()} to {sizes.max()} per "
            f"client (median {int(np.median(sizes))}); "
            f"{self.num_val.sum():,} for validation, "
            f"{len(self.test):,} for testing; held-out domains: {held}"
        )
        if len(self) <= 30:
            lines.append(self.table().to_string())
        return "\n".join(lines)


def _checked_sizes(data, parts, is_held_out, held_out_names) -> np.ndarray:
    """Sizes of the parts, int (K,), after looking for empty clients and leaks."""
    if len(parts) == 0:
        raise ValueError("expected at least one client, found none")
    sizes = np.array([len(part) for part in parts])
    if (sizes == 0).any():
        raise ValueError(
            f"every client needs a sample, {np.flatnonzero(sizes == 0)[:5]} have none; "
            "drop them or deal the samples to fewer clients"
        )
    rows = np.concatenate(parts)
    if rows.min() < 0 or rows.max() >= len(data):
        raise ValueError(
            f"positions must lie in 0…{len(data) - 1}, found {rows.min()}…{rows.max()};"
            " was the partition made for another data set?"
        )
    if (np.bincount(rows, minlength=len(data)) > 1).any():
        raise ValueError(
            "each sample belongs to one client, found samples that several clients "
            "hold; overlapping clients would leak validation samples into training"
        )
    if is_held_out[rows].any():
        raise ValueError(
            f"held-out domains {list(held_out_names)} must be in no client, found "
            f"{int(is_held_out[rows].sum())} of their samples; deal the others only: "
            "among=leave_out(data, held_out)"
        )
    if data.is_test[rows].any():
        raise ValueError(
            f"samples set aside for testing must be in no client, found "
            f"{int(data.is_test[rows].sum())}; deal leave_out(data) only"
        )
    return sizes
