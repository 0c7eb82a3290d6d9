"""A place to look at what passes between two stages of a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Tap(nn.Module):
    """Hands on what it gets; whoever listens sees it, with its gradient.

    A layer and not a hook: a compiled network forgets hooks that come and go.
    """

    def __init__(self):
        super().__init__()
        self._heard: list[Tensor] | None = None  # None: nobody listens, nothing is kept

    def forward(self, x: Tensor) -> Tensor:
        """``x`` itself."""
        if self._heard is not None:
            self._heard.append(x)
        return x

    @contextmanager
    def listening(self) -> Iterator[list[Tensor]]:
        """What passes inside the block, one tensor per call of the network."""
        self._heard = heard = []
        try:
            yield heard
        finally:
            self._heard = None
