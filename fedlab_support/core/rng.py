"""The one seed rule: every random stream comes from (seed, purpose, round, client).

A method that draws more numbers than another therefore does not shift the order in
which batches are visited, and neither the number of workers nor the order of visits
changes any result. Nothing in the package draws from a global generator. One exception:
the noise of ``Privacy`` has a seed from the operating system, unless it is ``seeded``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

PURPOSES = (
    *("order", "layers", "method", "augment", "init", "select", "evaluate"),
    *("faults", "privacy"),
)
"""The purposes of streams; the position in this tuple enters the seed."""

_layer_noise: ContextVar[Stream | torch.Generator] = ContextVar("layer_noise")


def sequence(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> np.random.SeedSequence:
    """The seed sequence of one stream; all four arguments are ≥ 0."""
    key = (seed, PURPOSES.index(purpose), round, client)
    is_short = min(key) >= 0 and max(key) < 2**32
    return np.random.SeedSequence(np.array(key, np.uint32) if is_short else key)


def numpy_stream(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> np.random.Generator:
    """A NumPy generator for one purpose, round and client."""
    return np.random.default_rng(sequence(seed, purpose, round, client))


def torch_stream(
    seed: int, purpose: str, round: int = 0, client: int = 0
) -> torch.Generator:
    """A PyTorch generator (CPU) for one purpose, round and client."""
    state = sequence(seed, purpose, round, client).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) >> 1)


def secret_stream() -> torch.Generator:
    """A PyTorch generator (CPU) with a 64-bit seed from the operating system."""
    return torch.Generator().manual_seed(secrets.randbits(64))


class Stream:
    """A PyTorch generator that is created on first use: most visits draw nothing."""

    def __init__(self, seed: int, purpose: str, round: int = 0, client: int = 0):
        self.key = (seed, purpose, round, client)

    @cached_property
    def generator(self) -> torch.Generator:
        """The generator itself (CPU)."""
        return torch_stream(*self.key)

    def mark(self) -> Tensor | None:
        """The state of the stream, for ``rewind``; None before the first draw."""
        generator = self.__dict__.get("generator")
        return None if generator is None else generator.get_state()

    def rewind(self, mark: Tensor | None) -> None:
        """Return to the state at which ``mark`` was taken."""
        if mark is not None:
            self.generator.set_state(mark)
        else:
            self.__dict__.pop("generator", None)


@contextmanager
def layer_noise(stream: Stream | torch.Generator) -> Iterator[None]:
    """Make noise layers inside the block draw from ``stream``."""
    token = _layer_noise.set(stream)
    try:
        yield
    finally:
        _layer_noise.reset(token)


def current_layer_noise() -> torch.Generator:
    """The generator that a noise layer must draw from.

    Raises RuntimeError outside local training and evaluation, where a layer would have
    to draw from PyTorch's global generator, whose numbers depend on the workers.
    """
    try:
        stream = _layer_noise.get()
        return stream.generator if isinstance(stream, Stream) else stream
    except LookupError:
        raise RuntimeError(
            "a layer drew noise outside local training or evaluation; expected a "
            "stream set by layer_noise(...). Predict with run.scores(samples); call "
            "model.eval() before using a network with dropout; or wrap the call in "
            "`with layer_noise(torch.Generator().manual_seed(0)):`"
        ) from None
