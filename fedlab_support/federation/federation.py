"""Clients as views into one data set, and the federation they form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..core.checks import SEED, SHARE, Range, checked
from ..data import DomainData
from .partition import domain_ids
from .partition.dealing import row_positions
from .samples import Samples, Store

if TYPE_CHECKING:
    import pandas as pd

DATA = Range(
    holds=lambda data: isinstance(data, DomainData),
    allowed="DomainData",
    hint="from_arrays, from_dataset and from_folders make it of data of your own",
)


@dataclass(frozen=True, eq=False)
class Client:
    """A client with its training, validation and test samples."""

    id: int
    train: Samples
    val: Samples
    test: Samples


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients that share a task, plus test samples that no client has.

    test:      test samples of all domains that are not held out.
    held_out:  all samples of the held-out domains.

    Created by ``build``. A client takes the memory of three numbers, so 100,000 clients
    are possible.
    """

    store: Store
    rows: np.ndarray  # of client after client: for validation, testing and training
    starts: np.ndarray  # (K + 1,): client k owns rows[starts[k]:starts[k + 1]]
    num_val: np.ndarray  # (K,)
    num_test: np.ndarray  # (K,)
    test: Samples
    held_out: Samples
    held_out_domains: tuple[str, ...] = ()

    @classmethod
    @checked(data=DATA, val=SHARE, test=SHARE, seed=SEED)
    def build(
        cls,
        data: DomainData,
        parts: Sequence[np.ndarray],
        held_out: str | Iterable[str] = (),
        val: float = 0.0,
        seed: int = 0,
        test: float = 0.0,
    ) -> Federation:
        """Turn a partition into a federation.

        parts:     one array of positions per client, as ``iid`` returns.
        held_out:  name or names of domains that must not appear in any client.
        val, test: shares of each client's samples, in [0, 1), that it sets aside for
                   validation and for a test of its own (the splits "val" and
                   "client_test" of the history); it keeps at least one for training.
        seed:      of the draw of validation and test samples.

        Raises ValueError for an empty client, a sample in two clients, a client with a
        test sample or a sample of a held-out domain, and an unknown domain.
        """
        names = (held_out,) if isinstance(held_out, str) else tuple(held_out)
        is_held_out = np.isin(data.domain, domain_ids(data, names))
        parts = [np.asarray(part) for part in parts]
        if wrong := [part for part in parts if part.ndim != 1]:
            raise ValueError(
                "parts must be a list of arrays of positions, one per client, found "
                f"{wrong[0]!r} as one; see iid(data, clients=10, rng=0)"
            )
        sizes = _checked_sizes(data, parts, is_held_out, names)
        num_val = np.minimum(_share(sizes, val), sizes - 1)
        num_test = np.minimum(_share(sizes, test), sizes - 1 - num_val)
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(p) if val or test else p for p in parts]
        store = Store(data)
        return cls(
            store,
            np.concatenate(rows).astype(np.int64),
            np.concatenate([[0], np.cumsum(sizes)]),
            num_val,
            num_test,
            Samples(store, np.flatnonzero(data.is_test & ~is_held_out)),
            Samples(store, np.flatnonzero(is_held_out)),
            names,
        )

    def on(self, device: str | torch.device) -> Federation:
        """The same federation with its images on ``device``.

        Raises ValueError for a device that this machine lacks, or without float64.
        """
        try:
            found = torch.zeros((), dtype=torch.float64, device=str(device))
            found.item()  # "meta" holds no values
        except (AssertionError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"expected a device of this machine that computes in float64, found "
                f"{device!r}; use 'cpu', or 'cuda' where PyTorch finds a GPU"
            ) from error
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
        """The data set that clients are views of."""
        return self.store.data

    def __len__(self) -> int:
        return len(self.num_val)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Training samples per client, int (K,)."""
        return np.diff(self.starts) - self.num_val - self.num_test

    @cached_property
    def with_val(self) -> np.ndarray:
        """Numbers of the clients with validation samples, ascending, int."""
        return np.flatnonzero(self.num_val)

    @cached_property
    def with_test(self) -> np.ndarray:
        """Numbers of the clients with test samples of their own, ascending, int."""
        return np.flatnonzero(self.num_test)

    @cached_property
    def homes(self) -> dict[int, int]:
        """Domains on which exactly one client trains: domain → client."""
        trains = self._counts(self.data.domain, len(self.data.domain_names)) > 0
        alone = np.flatnonzero(trains.sum(0) == 1)
        clients = trains[:, alone].argmax(0)
        return dict(zip(alone.tolist(), clients.tolist(), strict=True))

    def client(self, id: int) -> Client:
        """Client ``id``, a view created on demand."""
        if not isinstance(id, int | np.integer) or not 0 <= id < len(self):
            raise ValueError(f"clients are numbered 0…{len(self) - 1}, found {id}")
        own, first = self.rows[self.starts[id] : self.starts[id + 1]], self.num_val[id]
        val, test, train = np.split(own, [first, first + self.num_test[id]])
        return Client(int(id), *(Samples(self.store, p) for p in (train, val, test)))

    def table(self) -> pd.DataFrame:
        """Training samples, clients × domains; the column ``all`` is their sum."""
        import pandas as pd

        counts = self._counts(self.data.domain, len(self.data.domain_names))
        table = pd.DataFrame(counts, columns=list(self.data.domain_names))
        return table.rename_axis("client").assign(all=self.sizes)

    def class_counts(self) -> np.ndarray:
        """Training samples, clients × classes, int (K, M).

        Raises ValueError when labels are masks or targets of a regression.
        """
        classes = self.data.classes_for("class_counts")
        return self._counts(classes, self.data.num_classes)

    def _counts(self, column: np.ndarray, num_values: int) -> np.ndarray:
        owner = np.repeat(np.arange(len(self)), np.diff(self.starts))
        position = np.arange(len(self.rows)) - self.starts[owner]
        trained = position >= (self.num_val + self.num_test)[owner]
        cell = owner[trained] * num_values + column[self.rows[trained]]
        counts = np.bincount(cell, minlength=len(self) * num_values)
        return counts.reshape(len(self), num_values)

    def fingerprint(self) -> str:
        """A short hash of the data and its partition."""
        digest = hashlib.sha256(self.data.fingerprint().encode())
        parts = [self.rows, self.starts, self.num_val, self.held_out.rows]
        if len(self.with_test):  # others keep the hash of before there were any
            parts.append(self.num_test)
        for part in parts:
            digest.update(np.ascontiguousarray(part, dtype=np.int64))
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        sizes = self.sizes
        summary = (
            f"Federation of {len(self):,} clients on {self.data.name!r}: "
            f"{sizes.sum():,} training samples, {sizes.min()} to {sizes.max()} per "
            f"client (median {int(np.median(sizes))}); "
            f"{self.num_val.sum():,} for validation, "
            f"{len(self.test) + self.num_test.sum():,} for testing; "
            f"held-out domains: {', '.join(self.held_out_domains) or 'none'}"
        )
        return summary if len(self) > 30 else f"{summary}\n{self.table().to_string()}"


def _share(sizes: np.ndarray, share: float) -> np.ndarray:
    """A share of each size, rounded down; 0.35 of 180 is 63, not 62.9999…."""
    return np.round(sizes * share, 9).astype(np.int64)


def _checked_sizes(data, parts, is_held_out, held_out_names) -> np.ndarray:
    """Sizes of the parts, int (K,); raises ValueError for empty clients and leaks."""
    if len(parts) == 0:
        raise ValueError("expected at least one client, found none")
    sizes = np.array([len(part) for part in parts])
    if (sizes == 0).any():
        raise ValueError(
            f"every client needs a sample, {np.flatnonzero(sizes == 0)[:5]} have none; "
            "drop them or partition the samples over fewer clients"
        )
    rows = row_positions("parts", np.concatenate(parts), len(data))
    if is_held_out[rows].any():
        raise ValueError(
            f"held-out domains {list(held_out_names)} must be in no client, found "
            f"{int(is_held_out[rows].sum())} of their samples; partition the others "
            "only: among=leave_out(data, held_out)"
        )
    if data.is_test[rows].any():
        raise ValueError(
            f"test samples must be in no client, found {int(data.is_test[rows].sum())};"
            " partition leave_out(data) only"
        )
    return sizes
