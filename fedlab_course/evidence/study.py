"""A study: a comparison of settings under one protocol, with chosen learning rates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fedlab_support.federation.federation import Federation
from fedlab_support.run.run import Run
from fedlab_support.run.tune import VAL

from ..protocols import Own, Protocol
from ..settings import Setting, run_of


@dataclass(frozen=True)
class Study:
    """A comparison of settings under one protocol, with new clients for every seed.

    place:    the folder of its finished runs, below figures/.
    rules:    the protocol. A method that has a learning rate of its own there keeps its
              ratio to the others' when rates are tried.
    deal:     test domain and seed → federation; the test domain "" tests the clients'
              own domains.
    arms:     by label, the most important first.
    tuned:    arms whose learning rate is chosen, out of ``rates``. The first rate is
              that of the protocol, the default.
    tests:    test domains; all arms are compared on the first, ``tuned`` on all.
    against:  pairs of method and reference.
    apart:    by arm, what deals its clients in place of ``deal``, as for pooled data.
    device:   of the training; finished runs are read whatever trained them.
    logged:   what the history shows of the mechanism, by name in "train" or "server".
    seeds:    of all arms; the ``num_tuning`` first ones choose the learning rates.
    """

    place: str
    rules: Protocol
    deal: Callable[[str, int], Federation]
    arms: Mapping[str, Setting]
    tuned: tuple[str, ...]
    rates: tuple[float, ...]
    against: tuple[tuple[str, str], ...]
    logged: tuple[str, ...] = ()
    tests: tuple[str, ...] = ("",)
    seeds: tuple[int, ...] = (0, 1, 2)
    num_tuning: int = 1
    apart: Mapping[str, Callable[[str, int], Federation]] = field(default_factory=dict)
    device: str = "cpu"

    @property
    def tuning_seeds(self) -> tuple[int, ...]:
        """The seeds on which learning rates are chosen."""
        return self.seeds[: self.num_tuning]

    def run(self, method: str, test: str, lr: float, seed: int) -> Run:
        """The run of an arm at one of the study's learning rates."""
        rules, deal = _at_rate(self.rules, lr), self.apart.get(method, self.deal)
        where = {"federation": deal(test, seed), "device": self.device}
        return run_of(self.arms[method], rules, seed, **where)

    def default(self) -> list[dict]:
        """Arguments of ``run`` for all arms at the default rate."""
        test, lr = self.tests[0], self.rules.training.lr
        return [
            {"method": name, "test": test, "lr": lr, "seed": seed}
            for name in self.arms
            for seed in self.seeds
        ]

    def trials(self, test: str, methods: Iterable[str]) -> list[dict]:
        """Arguments of ``run`` for all learning rates of these methods."""
        return [
            {"method": name, "test": test, "lr": lr, "seed": seed}
            for name in methods
            for lr in self.rates
            for seed in self.tuning_seeds
        ]


def validation_of(federation: Federation) -> str:
    """The validation domain, if there is one; else "val", the clients' own samples."""
    held_out = federation.held_out_domains
    return held_out[0] if len(held_out) > 1 else VAL


def _at_rate(rules: Protocol, lr: float) -> Protocol:
    """The protocol at another learning rate."""

    def at(own: Own) -> Own:
        if own.training is None:
            return own
        ratio = own.training.lr / rules.training.lr
        return replace(own, training=replace(own.training, lr=lr * ratio))

    own = {label: at(each) for label, each in rules.own.items()}
    return replace(rules, training=replace(rules.training, lr=lr), own=own)
