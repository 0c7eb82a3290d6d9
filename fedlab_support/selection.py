"""Who takes part in a round: plain callables from a roster to client numbers.

A selection decides who is visited; it cannot set the weights of the average. A study
that averages its chosen clients equally says ``weighting="equal"`` in its method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .messages import Tensors


@dataclass(frozen=True)
class Roster:
    """What a selection may look at.

    - ``ids``: the clients that can be chosen; ``sizes``: their training samples;
      ``times_chosen``: how often each took part; int (K,) each, in the same order.
    - ``reports``: what each client reported when it last took part.
    - ``ask_loss``: visits clients and returns the loss of the current model on their
      training data; the question and the answers are counted on the wire.
    """

    ids: np.ndarray
    sizes: np.ndarray
    times_chosen: np.ndarray
    reports: dict[int, Tensors]
    ask_loss: Callable[[Sequence[int]], dict[int, float]]


@dataclass(frozen=True)
class everyone:  # noqa: N801 - reads as the function it is
    """Every client takes part in every round."""

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """All clients of the roster."""
        return roster.ids.tolist()


@dataclass(frozen=True)
class uniform:  # noqa: N801
    """``num_clients`` clients, each as likely as any other, without replacement.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    num_clients: int

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        _enough(self.num_clients, roster)
        return rng.choice(roster.ids, self.num_clients, replace=False).tolist()


@dataclass(frozen=True)
class by_size:  # noqa: N801
    """``num_clients`` clients without replacement, likelier the more samples they hold.

    Use it with ``weighting="equal"``: to draw by size and to weigh by size would count
    large clients twice (Li et al., MLSys 2020, footnote to Algorithm 2).
    """

    num_clients: int

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        _enough(self.num_clients, roster)
        share = roster.sizes / roster.sizes.sum()
        chosen = rng.choice(roster.ids, self.num_clients, replace=False, p=share)
        return chosen.tolist()


def check_selection(select, num_clients: int) -> None:
    """Raise ValueError when ``select`` asks for more clients than there are."""
    asked = getattr(select, "num_clients", 1)
    if not isinstance(asked, int | np.integer) or not 1 <= asked <= num_clients:
        raise ValueError(
            f"clients per round must lie in 1…{num_clients}, the number of clients of "
            f"the federation, found {asked}"
        )


def _enough(asked: int, roster: Roster) -> None:
    if asked > len(roster.ids):
        raise ValueError(
            f"expected at least {asked} clients to choose from, found "
            f"{len(roster.ids)}; some left the run, see run.history.events()"
        )
