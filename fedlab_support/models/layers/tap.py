"""A layer that records the features between two stages of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Tap(nn.Module):
    """The identity; inside a ``listening`` block it records its inputs with gradients.

    This is a layer instead of a hook because compiled networks ignore hooks that are
    added later.
    """

    def __init__(self):
        super().__init__()
        self._recorded: list[Tensor] | None = None  # None outside listening()

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        if self._recorded is not None:
            self._recorded.append(x)
        return x

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """The inputs recorded inside the block, one tensor per call of the network."""
        self._recorded = recorded = []
        try:
            yield recorded
        finally:
            self._recorded = None
