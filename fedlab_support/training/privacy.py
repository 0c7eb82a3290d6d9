"""Differential privacy of what a client says: clip its step, add noise, count."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from ..core.checks import expect, expect_not_negative
from ..core.messages import Message, Server, Tensors

TELLING = ("client_setup", "before_training", "after_training", "aggregation_weights")
"""Hooks with which a method says, or weighs by, more than a client's weights."""


@dataclass(frozen=True)
class Privacy:
    """Every message's step is clipped to length ``clip`` and gets Gaussian noise.

    What is protected is a client's whole data set, in each of its messages, before it
    leaves the client; ``epsilon`` counts how well. Not protected: who took part and
    when; ``message.metrics`` and all that ``Run`` measures, which are the
    simulator's own; and the sizes a selection like ``by_size`` looks at. The noise is
    drawn from the run's seed, so that a run can be repeated: who knows the seed can
    take it off again, and a real federation draws it in secret.

    With a ``clip`` that no step reaches and ``noise=0`` messages are as without it, to
    double precision, but for ``num_examples``.

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*,
    ICLR 2018, Algorithm 1; there the server adds the noise, here each client does.
    """

    clip: float = 1.0  # largest Euclidean length of a client's step, > 0
    noise: float = 1.0  # the noise's standard deviation / clip, ≥ 0; 0: no noise

    def __post_init__(self) -> None:
        expect(self, "clip", "> 0 and finite", 0 < self.clip < math.inf)
        expect_not_negative(self, "noise")

    def check(self, method, base: type, model, server: Server) -> None:
        """Raise ValueError when clients would say more than their noisy step.

        base:  FedAvg, whose own hooks say nothing; ``model`` and ``server``: as before
               round 1.
        """
        name = type(method).__name__
        silent = (
            ("before_training", "after_training")
            if method.upload_spec(model) == {}
            else ()
        )
        asked = [hook for hook in TELLING if hook not in silent]
        telling = [h for h in asked if getattr(type(method), h) != getattr(base, h)]
        if telling:
            raise ValueError(
                f"privacy covers a client's weights and no more, but {name} overrides "
                f"{', '.join(telling)}; take a method that only changes local training"
            )
        if method.weighting != "equal":
            raise ValueError(
                "with privacy every client must count the same, or one of them could "
                f"be most of the average; found {method.weighting!r}, say "
                f"{name}(weighting='equal')"
            )
        if buffers := sorted(server.weights.keys() - server.parameters):
            raise ValueError(
                f"with privacy only parameters may travel, found {buffers}: noise "
                "makes running variances negative, and counters tell how many batches "
                "a client has; take norm='group', or a method that keeps them private"
            )

    def protect(
        self, message: Message, received: Tensors, rng: torch.Generator
    ) -> Message:
        """The message as it may leave the client.

        received:  the weights v that training began with.
        rng:       a CPU stream. All tensors of a step count as one vector.
                   ``num_examples`` becomes 1.
        Raises FloatingPointError when the step is not finite, ValueError when there is
        a report: nothing may leave then.
        """
        if message.upload:
            raise ValueError(
                "privacy covers a client's weights and no more, found a report of "
                f"{sorted(message.upload)}; correct the method's report_form"
            )
        steps = {n: message.weights[n].double() - v for n, v in received.items()}
        length = math.sqrt(sum(step.square().sum().item() for step in steps.values()))
        if not math.isfinite(length):
            raise FloatingPointError(
                f"the step's length became {length}; lower the learning rate"
            )
        weights = {}
        for name, step in steps.items():
            noise = torch.randn(step.shape, generator=rng, dtype=torch.float64)
            # w = v + s min(1, clip / |s|) + N(0, (noise clip)^2)
            step = step * (self.clip / max(length, self.clip))
            step += self.noise * self.clip * noise.to(step.device)
            weights[name] = (received[name] + step).to(received[name].dtype)
        return replace(message, weights=weights, num_examples=1)

    def epsilon(
        self,
        rounds: int,
        delta: float,
        clients_per_round: int = 1,
        num_clients: int = 1,
    ) -> float:
        """The epsilon of (epsilon, delta)-differential privacy spent in ``rounds``.

        Two observers, two answers:

        - *The server* reads each message and knows whose it is. Leave the last two
          arguments at 1; ``rounds`` are those in which the client took part
          (``run.times_chosen``).
        - *Who sees only the averaged models* finds a client among m =
          ``clients_per_round`` out of K = ``num_clients``: the noises of m messages add
          up to noise · clip · √m, and a client is in the sum with probability m / K.
          That holds if the server uses nothing but the plain average (FedAvgM does) and
          all m answer: who is absent takes their noise along.

        Neighbours are federations in which one client's step is there, or is zero while
        its noise stays (*zero-out*). Against a step *replaced* by another one, which
        may lie 2 · clip away, the server's answer is that of ``noise / 2``. The
        accountant assumes that each client throws its own coin (Poisson sampling).
        ``uniform(m)`` draws exactly m without replacement: for m < K the number is then
        the customary estimate and no proof.

        It is an upper bound, inf without noise. Raises ValueError for arguments out of
        range, ImportError without Opacus.
        Source: Mironov, Talwar, Zhang, arXiv:1908.10530, 2019; the conversion to
        epsilon is Theorem 21 of Balle et al., AISTATS 2020.
        """
        _check_exposure(rounds, delta, clients_per_round, num_clients)
        accountant = _opacus().RDPAccountant()
        multiplier = self.noise * math.sqrt(clients_per_round)
        accountant.history = [(multiplier, clients_per_round / num_clients, rounds)]
        spent = _quietly(accountant.get_epsilon, delta=delta, alphas=_orders())
        return max(0.0, spent)

    @staticmethod
    def noise_for(
        epsilon: float,
        rounds: int,
        delta: float,
        clients_per_round: int = 1,
        num_clients: int = 1,
    ) -> float:
        """The least ``noise`` with which ``epsilon`` stays within ``epsilon``.

        It is found to a thousandth of the budget. Raises as ``epsilon`` does, and
        ValueError for a budget too small to be counted.
        """
        _check_exposure(rounds, delta, clients_per_round, num_clients)
        if not 0 < epsilon < math.inf:
            raise ValueError(f"epsilon must be > 0 and finite, found {epsilon}")
        multiplier = _quietly(
            _opacus().utils.get_noise_multiplier,
            target_epsilon=epsilon,
            target_delta=delta,
            sample_rate=clients_per_round / num_clients,
            steps=rounds,
            epsilon_tolerance=epsilon / 1000,
            alphas=_orders(),
        )
        return multiplier / math.sqrt(clients_per_round)


def _check_exposure(rounds, delta, clients_per_round, num_clients) -> None:
    if rounds < 1 or not 1 <= clients_per_round <= num_clients:
        raise ValueError(
            "expected at least one round and 1 ≤ clients_per_round ≤ num_clients, "
            f"found {rounds} rounds and {clients_per_round} of {num_clients} clients"
        )
    if not 0 < delta < 1:
        raise ValueError(
            f"delta must lie between 0 and 1, well below 1 / clients; found {delta}"
        )


def _opacus():
    """Opacus' accountants, imported when they are needed: that takes seconds."""
    try:
        import opacus.accountants
        import opacus.accountants.utils
    except ImportError as error:
        raise ImportError(
            "counting a privacy budget needs Opacus: "
            "pip install 'fedlab_support[privacy]'"
        ) from error
    return opacus.accountants


def _orders() -> list[float]:
    """Rényi orders to try: higher ones than Opacus' own for small budgets."""
    return [*_opacus().RDPAccountant.DEFAULT_ALPHAS, 128, 256, 512]


def _quietly(count: Callable, **arguments) -> float:
    """Call without the hint that more orders would give a tighter bound."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)
        return float(count(**arguments))
