"""Differential privacy of uploads: clip the step, add noise, compute epsilon."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch

from ..core.checks import COUNT, Range, Settings, checked, setting
from ..core.messages import Message, Server, Tensors
from ..core.rng import secret_stream

REVEALING = ("client_setup", "before_training", "after_training", "aggregation_weights")
"""Hooks with which a method uploads, or weights clients by, more than their weights."""

DELTA = Range(above=0, below=1, hint="it should be well below 1 / clients")


@dataclass(frozen=True)
class Privacy(Settings):
    """Clip the step in every message to norm ``clip`` and add Gaussian noise to it.

    This protects a client's whole data set in each of its messages; ``epsilon``
    quantifies the protection. It does not cover which clients participate and when,
    client sizes (a selection such as ``by_size`` uses them), ``message.metrics``, or
    what ``Run`` measures; the last two belong to the simulation.

    The noise is seeded by the operating system, so two runs of one seed differ.
    ``seeded=True`` draws it from the run's seed: results can be repeated, but nothing
    is protected from anyone who knows or guesses the seed. Neither generator is
    cryptographic. With a ``clip`` that no step reaches and ``noise=0``, messages change
    only by rounding in double precision, and ``num_examples`` becomes 1.

    Source: McMahan et al., *Learning Differentially Private Recurrent Language Models*,
    ICLR 2018, Algorithm 1; there the server adds the noise, here each client does.
    """

    clip: float = setting(1.0, above=0)  # largest Euclidean norm of a client's step
    noise: float = setting(1.0, at_least=0)  # standard deviation / clip; 0: no noise
    seeded: bool = False  # True: repeatable noise, for experiments only

    def check(self, method, model, server: Server) -> None:
        """Raise ValueError when clients would upload more than their noisy step.

        model, server: as before round 1.
        """
        name = type(method).__name__
        revealing = [hook for hook in REVEALING if method.overrides(hook)]
        if method.upload_spec(model) == {}:  # then these hooks upload nothing
            harmless = ("before_training", "after_training")
            revealing = [hook for hook in revealing if hook not in harmless]
        if revealing:
            raise ValueError(
                f"privacy only covers a client's weights, but {name} overrides "
                f"{', '.join(revealing)}; use a method that only changes local training"
            )
        if method.weighting != "equal":
            raise ValueError(
                "with privacy every client must have the same weight, so that none "
                f"dominates the average, found {method.weighting!r}; use "
                f"{name}(weighting='equal')"
            )
        if buffers := sorted(server.weights.keys() - server.parameters):
            raise ValueError(
                f"with privacy only parameters may be sent, found {buffers}: noise "
                "makes running variances negative, and counters reveal a client's "
                "number of batches; use norm='group', or a method that keeps them "
                "private"
            )

    def protect(
        self, message: Message, received: Tensors, rng: torch.Generator | None = None
    ) -> Message:
        """The message as it may leave the client; ``num_examples`` becomes 1.

        received:  the weights v that training began with.
        rng:       a CPU generator; None: one that the operating system seeds.
        All tensors of a step count as one vector. Raises FloatingPointError for a step
        that is not finite, and ValueError for an upload besides the weights.
        """
        if message.upload:
            raise ValueError(
                "privacy only covers a client's weights, found an upload of "
                f"{sorted(message.upload)}; correct the method's upload_spec"
            )
        steps = {n: message.weights[n].double() - v for n, v in received.items()}
        length = math.sqrt(sum(step.square().sum().item() for step in steps.values()))
        if not math.isfinite(length):
            raise FloatingPointError(
                f"the step's norm became {length}; lower the learning rate"
            )
        rng, weights = rng or secret_stream(), {}
        for name, step in steps.items():
            noise = torch.randn(step.shape, generator=rng, dtype=torch.float64)
            # w = v + s min(1, clip / |s|) + N(0, (noise clip)^2)
            step = step * (self.clip / max(length, self.clip))
            step += self.noise * self.clip * noise.to(step.device)
            weights[name] = (received[name] + step).to(received[name].dtype)
        return replace(message, weights=weights, num_examples=1)

    @checked(rounds=COUNT, delta=DELTA, clients_per_round=COUNT, num_clients=COUNT)
    def epsilon(
        self,
        rounds: int,
        delta: float,
        clients_per_round: int = 1,
        num_clients: int = 1,
    ) -> float:
        """The epsilon of (epsilon, delta)-differential privacy spent in ``rounds``.

        By observer:

        - *The server* reads each message. Leave the last two numbers at 1; ``rounds``
          is the number of rounds in which the client participated.
        - *An observer of the averaged models* has to find a client among m =
          ``clients_per_round`` of K = ``num_clients``: the noise of m messages adds up
          to noise · clip · √m, and a client is in the sum with probability m / K.
          ``rounds`` counts all rounds of the run. This holds for plain averages (also
          FedAvgM) of m messages.

        In neighbouring federations one client's step is present, or zero while its
        noise stays (*zero-out*); if it is *replaced* instead, the server's epsilon is
        that of ``noise / 2``. The accountant assumes Poisson sampling; for
        ``uniform(m)``, m < K, the result is the customary estimate without a proof.

        An upper bound for the server; inf without noise. Raises ValueError for
        arguments out of range, and ImportError without Opacus.
        Source: Mironov, Talwar, Zhang, arXiv:1908.10530, 2019; the conversion to
        epsilon is Theorem 21 of Balle et al., AISTATS 2020.
        """
        if clients_per_round > num_clients:
            raise ValueError(
                "clients_per_round must be at most num_clients, found "
                f"{clients_per_round} of {num_clients}"
            )
        if self.noise == 0:
            return math.inf
        try:
            from opacus.accountants import RDPAccountant  # takes seconds
        except ImportError as error:
            raise ImportError(
                "computing a privacy budget needs Opacus: pip install opacus"
            ) from error
        rdp = RDPAccountant()
        sampled = clients_per_round / num_clients
        noise = self.noise * math.sqrt(clients_per_round)
        rdp.history = [(noise, sampled, rounds)]
        orders = [*rdp.DEFAULT_ALPHAS, 128, 256, 512]  # higher ones for small budgets
        with warnings.catch_warnings():  # that even more orders would be tighter
            warnings.filterwarnings("ignore", "Optimal order is the", UserWarning)
            return max(0.0, float(rdp.get_epsilon(delta, alphas=orders)))
