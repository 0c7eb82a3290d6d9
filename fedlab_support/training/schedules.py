"""Learning rates that change from round to round: ``LocalTraining(schedule=…)``.

A schedule maps the number of the round (1, 2, …) to a factor of the learning rate; any
function of the round is one. It sees nothing else, so that every engine, a resumed run
and a client that has missed rounds train with the same rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..core.checks import Settings, setting


@dataclass(frozen=True)
class Step(Settings):
    """Multiply the learning rate by ``factor`` after every ``every`` rounds."""

    every: int = setting(at_least=1)  # rounds
    factor: float = setting(0.1, at_least=0)  # 1: constant

    def __call__(self, round: int) -> float:
        """Return factor ^ floor((round - 1) / every)."""
        return self.factor ** ((round - 1) // self.every)


@dataclass(frozen=True)
class Cosine(Settings):
    """Half a cosine from 1 in the first round to ``last`` after ``rounds`` rounds.

    Source: Loshchilov and Hutter, ICLR 2017, eq. 5, without restarts.
    """

    rounds: int = setting(at_least=1)
    last: float = setting(0.0, at_least=0)  # 1: constant

    def __call__(self, round: int) -> float:
        """Return last + (1 - last) (1 + cos(pi (round - 1) / rounds)) / 2."""
        done = min(round - 1, self.rounds) / self.rounds
        return self.last + (1 - self.last) * (1 + math.cos(math.pi * done)) / 2
