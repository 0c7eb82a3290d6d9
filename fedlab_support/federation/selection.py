"""Who takes part in a round: plain callables from a roster to client numbers.

A selection decides who is visited; it cannot set the weights of the average. A study
that averages its chosen clients equally says ``weighting="equal"`` in its method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.checks import expect, expect_flags, expect_fractions
from ..core.messages import Tensors
from ..core.rng import numpy_stream


@dataclass(frozen=True)
class Roster:
    """What a selection may look at.

    ids:           the clients that can be chosen.
    sizes:         their training samples.
    times_chosen:  how often each took part; int (K,) each, in the same order.
    reports:       what each client reported when it last took part.
    ask_loss:      visits clients and returns the loss of the current model on their
                   training data; the question and the answers are counted on the wire,
                   and a client that was asked is not sent the same weights again.
    lasting:       a fresh stream of the run that starts the same in every round, for
                   what is drawn once and holds for the whole run.
    """

    ids: np.ndarray
    sizes: np.ndarray
    times_chosen: np.ndarray
    reports: dict[int, Tensors]
    ask_loss: Callable[[Sequence[int]], dict[int, float]]
    lasting: Callable[[], np.random.Generator]


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
    large clients twice (Li et al., MLSys 2020, Algorithm 2).
    """

    num_clients: int

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients."""
        _enough(self.num_clients, roster)
        share = roster.sizes / roster.sizes.sum()
        chosen = rng.choice(roster.ids, self.num_clients, replace=False, p=share)
        return chosen.tolist()


@dataclass(frozen=True)
class availability:  # noqa: N801
    """``num_clients`` clients, out of two groups that are not equally often there.

    A share ``share`` of the clients, drawn once per run, forms group 1. A draw falls
    into group 1 with probability ``probability``, into the others with the rest; within
    a group all are equal. A probability of |G1| / K, which is ``share`` where that is a
    whole number of clients, gives ``uniform``.

    The report's repository draws group 1 anew in every round, so that in the long run
    nobody is favoured (``redraw=True``), and with replacement; its text fixes the
    group. We follow the text, and draw without replacement: after each draw the rest is
    scaled up, so that a rare group is taken when the other is used up.

    Raises ValueError for a value outside 0…1 here, for an empty group in ``check``.
    Source: *Towards Real World Federated Learning*, equation 5.
    """

    num_clients: int
    share: float = 0.1  # s, of the clients in group 1, in (0, 1)
    probability: float = 0.5  # p, of group 1 as a whole, in [0, 1]
    redraw: bool = False  # True: another group 1 in every round

    def __post_init__(self) -> None:
        expect_fractions(self, "share", "probability")
        expect_flags(self)

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
        """Who is in group 1, bool (K,), drawn with ``rng``."""
        return np.isin(ids, rng.permutation(ids)[: self._group_size(len(ids))])

    def _group_size(self, num_clients: int) -> int:
        return math.floor(round(self.share * num_clients, 9))

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw this round's clients, and group 1 if it is not there yet."""
        _enough(self.num_clients, roster)
        self.check(len(roster.ids))
        in_group = self.group(roster.ids, rng if self.redraw else roster.lasting())
        chance = self.probabilities(in_group)
        # A group of probability 0 comes last instead of never: drawn when all else is.
        possible = roster.ids[chance > 0]
        wanted = min(self.num_clients, len(possible))
        chosen = rng.choice(possible, wanted, replace=False, p=chance[chance > 0])
        rest = rng.permutation(roster.ids[chance == 0])[: self.num_clients - wanted]
        return [*chosen.tolist(), *rest.tolist()]


@dataclass(frozen=True)
class power_of_choice:  # noqa: N801
    """The ``num_clients`` candidates on whose data the model is worst.

    ``candidates`` clients are drawn by size and asked for the loss of the current
    model; the highest losses win, ties by lot. With ``candidates=num_clients`` it is
    ``by_size``, with all clients it takes the worst of all. A loss that is not
    finite counts as the highest; with one among them, both modes take the top. Use it
    with ``weighting="equal"``.

    ``mode="proportional"`` is what the report's text says: among the candidates, one
    draw without replacement with probabilities that grow with the loss. Its code takes
    the top, as Cho et al. do, and so do we.

    Raises ValueError when there are fewer candidates than winners.
    Source: Cho, Wang, Joshi, arXiv:2010.01243, 2020.
    """

    num_clients: int
    candidates: int = 10  # d, in num_clients…K; num_clients gives by_size
    mode: str = "top"  # or "proportional"

    def __post_init__(self) -> None:
        is_whole = isinstance(self.candidates, int | np.integer)
        expect(self, "candidates", "a whole number", is_whole)
        if self.candidates < self.num_clients:
            raise ValueError(
                "candidates must be at least num_clients, found "
                f"{self.candidates} candidates for {self.num_clients} clients"
            )
        modes = ("top", "proportional")
        expect(self, "mode", "'top' or 'proportional'", self.mode in modes)

    def check(self, num_clients: int) -> None:
        """Raise ValueError when there are fewer clients than candidates."""
        if self.candidates > num_clients:
            raise ValueError(
                f"candidates must be at most {num_clients}, the number of clients of "
                f"the federation, found {self.candidates}"
            )

    def __call__(self, roster: Roster, rng: np.random.Generator) -> list[int]:
        """Draw candidates, ask them, choose."""
        asked = by_size(self.candidates)(roster, rng)
        answers = roster.ask_loss(asked)
        asked = rng.permutation(asked)  # so that ties are decided by lot
        losses = np.array([answers[i] for i in asked])
        losses = np.where(np.isfinite(losses), losses, np.inf)
        if self.mode == "proportional" and np.isfinite(losses).all():
            likely = losses + np.finfo(float).tiny
            p = likely / likely.sum()
            return rng.choice(asked, self.num_clients, replace=False, p=p).tolist()
        worst = np.argsort(-losses, kind="stable")[: self.num_clients]
        return asked[worst].tolist()


def rehearse(
    select: Callable[[Roster, np.random.Generator], Sequence[int]],
    sizes: Sequence[int],
    losses: Sequence[float] | None = None,
    rounds: int = 1000,
    seed: int = 0,
) -> np.ndarray:
    """How often each client would take part, as a share of ``rounds``, (K,).

    Nobody trains: ``sizes`` (K,) stay, and so do ``losses`` (K,), all equal by default.
    """
    sizes = np.asarray(sizes)
    losses = np.ones(len(sizes)) if losses is None else np.asarray(losses)
    check_selection(select, len(sizes))
    ids, times = np.arange(len(sizes)), np.zeros(len(sizes), dtype=np.int64)
    roster = Roster(
        ids,
        sizes,
        times,
        reports={},
        ask_loss=lambda asked: {i: float(losses[i]) for i in asked},
        lasting=lambda: numpy_stream(seed, "select", 0),
    )
    for round in range(1, rounds + 1):
        times[select(roster, numpy_stream(seed, "select", round))] += 1
    return times / rounds


def check_selection(select, num_clients: int) -> None:
    """Raise ValueError when ``select`` cannot be had with ``num_clients`` clients."""
    asked = getattr(select, "num_clients", 1)
    if not isinstance(asked, int | np.integer) or not 1 <= asked <= num_clients:
        raise ValueError(
            f"clients per round must lie in 1…{num_clients}, the number of clients of "
            f"the federation, found {asked}"
        )
    if hasattr(select, "check"):
        select.check(num_clients)


def _enough(asked: int, roster: Roster) -> None:
    if asked > len(roster.ids):
        raise ValueError(
            f"expected at least {asked} clients to choose from, found "
            f"{len(roster.ids)}; some left the run, see run.history.events()"
        )
