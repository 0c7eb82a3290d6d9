"""Client selection: plain callables from a roster to client numbers.

A selection decides which clients participate; it does not set the weights of the
average. To average the selected clients equally, set ``weighting="equal"`` in the
method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.checks import Range, Settings, setting
from ..core.messages import Tensors


@dataclass(frozen=True)
class Roster:
    """What a selection may use.

    ids:           the clients that can be selected, int (K,).
    sizes:         their numbers of training samples, int (K,), in the same order.
    times_chosen:  the number of rounds for which each was selected, int (K,).
    reports:       by client, the last accepted upload besides the weights, if any.
    ask_loss:      sends the current model to the given clients and returns, by client,
                   its mean loss on their training data (with the client's private
                   weights if it predicts with them). Queries and replies count as
                   traffic, and these clients are not sent the same weights again in
                   this round.
    lasting:       a new generator that is the same in every round, for draws that hold
                   for the whole run.
    """

    ids: np.ndarray
    sizes: np.ndarray
    times_chosen: np.ndarray
    reports: dict[int, Tensors]
    ask_loss: Callable[[Sequence[int]], dict[int, float]]
    lasting: Callable[[], np.random.Generator]


@dataclass(frozen=True)
class everyone:  # noqa: N801 - reads as the function it is
    """Every client participates in every round."""

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """All clients of the roster."""
        return roster.ids.tolist()


@dataclass(frozen=True)
class uniform(Settings):  # noqa: N801
    """``num_clients`` clients, drawn uniformly without replacement.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    num_clients: int = setting(at_least=1)

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        _expect_enough(self.num_clients, roster)
        return rng.choice(roster.ids, self.num_clients, replace=False).tolist()


@dataclass(frozen=True)
class poisson(Settings):  # noqa: N801
    """Each client by itself, with probability ``rate``: Poisson sampling.

    The number of clients varies; in a round without clients the weights do not change.
    This is the sampling that privacy accountants assume.
    Source: McMahan et al., ICLR 2018, Algorithm 1.
    """

    rate: float = setting(above=0, at_most=1)

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        return roster.ids[rng.random(len(roster.ids)) < self.rate].tolist()


@dataclass(frozen=True)
class by_size(Settings):  # noqa: N801
    """``num_clients`` clients without replacement, with probabilities by size.

    Use it with ``weighting="equal"``: drawing by size and weighting by size would count
    large clients twice (Li et al., MLSys 2020, Algorithm 2).
    """

    num_clients: int = setting(at_least=1)

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        _expect_enough(self.num_clients, roster)
        share, num = roster.sizes / roster.sizes.sum(), self.num_clients
        return rng.choice(roster.ids, num, replace=False, p=share).tolist()


@dataclass(frozen=True)
class availability(Settings):  # noqa: N801
    """``num_clients`` clients from two groups that are available at different rates.

    A share ``share`` of the clients, drawn once per run, forms group 1. Each draw picks
    group 1 with probability ``probability`` and the other group otherwise; within a
    group all clients are equally likely. A probability of |G1| / K, which equals
    ``share`` if ``share`` · K is a whole number, gives ``uniform``.

    The report's code draws a new group 1 in every round (``redraw=True``), so that no
    client is favoured in the long run, and draws with replacement; its text fixes the
    group. We follow the text, and draw without replacement: probabilities are
    renormalised after each draw, so that the rarer group is used when the other one is
    exhausted.

    Raises ValueError for a value outside 0…1, and in ``check`` for an empty group.
    Source: *Towards Real World Federated Learning*, equation 5.
    """

    num_clients: int = setting(at_least=1)
    share: float = setting(0.1, at_least=0, at_most=1)  # s, of the clients in group 1
    probability: float = setting(0.5, at_least=0, at_most=1)  # p, of group 1 as a whole
    redraw: bool = False  # True: another group 1 in every round

    def check(self, num_clients: int) -> None:
        """Raise ValueError when a group of ``num_clients`` clients would be empty."""
        size = self._group_size(num_clients)
        if not 0 < size < num_clients:
            raise ValueError(
                f"both groups need a client, found {size} of {num_clients} in group 1; "
                f"share must lie in [1/{num_clients}, 1)"
            )

    def probabilities(self, in_group: np.ndarray) -> np.ndarray:
        """Probability of each client, (K,), summing to 1; ``in_group``: bool (K,)."""
        # P(k) = p / |G1| in group 1, (1 - p) / (C - |G1|) elsewhere
        size = in_group.sum()
        rest = (1 - self.probability) / (len(in_group) - size)
        return np.where(in_group, self.probability / size, rest)

    def group(self, ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Which clients are in group 1, bool (K,), drawn with ``rng``."""
        return np.isin(ids, rng.permutation(ids)[: self._group_size(len(ids))])

    def _group_size(self, num_clients: int) -> int:
        return math.floor(round(self.share * num_clients, 9))

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw group 1 and this round's clients."""
        _expect_enough(self.num_clients, roster)
        self.check(len(roster.ids))
        in_group = self.group(roster.ids, rng if self.redraw else roster.lasting())
        chance = self.probabilities(in_group)
        # A group of probability 0 is drawn only when the other one is exhausted.
        possible = roster.ids[chance > 0]
        wanted = min(self.num_clients, len(possible))
        chosen = rng.choice(possible, wanted, replace=False, p=chance[chance > 0])
        rest = rng.permutation(roster.ids[chance == 0])[: self.num_clients - wanted]
        return [*chosen.tolist(), *rest.tolist()]


@dataclass(frozen=True)
class power_of_choice(Settings):  # noqa: N801
    """The ``num_clients`` candidates with the highest loss of the current model.

    ``candidates`` clients are drawn by size and asked for the loss of the current
    model; those with the highest losses are selected, and ties are broken at random.
    With ``candidates=num_clients`` this is ``by_size``; with all clients as candidates
    it selects the highest losses overall. A loss that is not finite counts as the
    highest, and both modes then select the highest losses. Use it with
    ``weighting="equal"``.

    ``mode="proportional"`` follows the text of the report *Towards Real World Federated
    Learning*: draw among the candidates without replacement, with probabilities
    proportional to the loss. The report's code selects the highest losses, as Cho et
    al. do, and so does our default.

    Raises ValueError when there are fewer candidates than ``num_clients``.
    Source: Cho, Wang, Joshi, arXiv:2010.01243, 2020.
    """

    num_clients: int = setting(at_least=1)
    candidates: int = setting(10, at_least=1)  # d; as num_clients, it gives by_size
    mode: str = setting("top", one_of=("top", "proportional"))  # or "proportional"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates < self.num_clients:
            raise ValueError(
                "candidates must be at least num_clients, found "
                f"{self.candidates} candidates for {self.num_clients} clients"
            )

    def check(self, num_clients: int) -> None:
        """Raise ValueError when there are fewer clients than candidates."""
        if self.candidates > num_clients:
            raise ValueError(
                f"candidates must be at most {num_clients}, the number of clients of "
                f"the federation, found {self.candidates}"
            )

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw candidates, query their losses, and select from them."""
        drawn = by_size(self.candidates)(roster, rng)
        loss_of = roster.ask_loss(drawn)
        candidates = rng.permutation(drawn)  # breaks ties at random
        losses = np.array([loss_of[i] for i in candidates])
        losses = np.where(np.isfinite(losses), losses, np.inf)
        if self.mode == "proportional" and np.isfinite(losses).all():
            positive = losses + np.finfo(float).tiny
            p = positive / positive.sum()
            return rng.choice(candidates, self.num_clients, replace=False, p=p).tolist()
        worst = np.argsort(-losses, kind="stable")[: self.num_clients]
        return candidates[worst].tolist()


def check_selection(select, num_clients: int) -> None:
    """Raise ValueError when ``select`` is not possible with ``num_clients`` clients."""
    wanted = getattr(select, "num_clients", 1)
    if not Range(at_least=1, at_most=num_clients).contains(wanted, "int"):
        raise ValueError(
            f"clients per round must lie in 1…{num_clients}, the number of clients of "
            f"the federation, found {wanted}"
        )
    if hasattr(select, "check"):
        select.check(num_clients)


def cohort_of(chosen: Sequence[int], clients: np.ndarray) -> list[int]:
    """What a selection returned, in order of clients.

    Raises ValueError unless all are different ones of ``clients`` (K,).
    """
    found = np.asarray(chosen)
    if found.size == 0:
        return []
    is_row = found.ndim == 1 and np.issubdtype(found.dtype, np.integer)
    if not (
        is_row and len(np.unique(found)) == len(found) and np.isin(found, clients).all()
    ):
        raise ValueError(
            f"a selection must return distinct clients of the roster, found {chosen}"
        )
    return np.sort(found).tolist()


def _expect_enough(num_clients: int, roster: Roster) -> None:
    if num_clients > len(roster.ids):
        raise ValueError(
            f"expected at least {num_clients} clients to select from, found "
            f"{len(roster.ids)}; some left the run, see run.history.events()"
        )
