"""Federations that a reader puts together in the playground, and what came of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache, partial

import numpy as np
import pandas as pd
from torch import nn

from fedlab_support import models
from fedlab_support.core.checks import Settings, expect, ranges, setting
from fedlab_support.core.history import ALL_CLIENTS, concat
from fedlab_support.data import DomainData, load
from fedlab_support.data.builtin import BUILT_IN
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    Parts,
    by_domain,
    by_owner,
    dirichlet,
    heterogeneous,
    iid,
    leave_out,
)
from fedlab_support.federation.selection import uniform
from fedlab_support.methods import FedAvg, catalogue
from fedlab_support.run.run import Run
from fedlab_support.training.settings import LocalTraining

from .figures.progress import HELD_OUT, Progress
from .protocols import PROMPTED

MOST_CLIENTS = 50
MOST_PICTURES = 100
"""What one client holds at most: a round then takes about a second."""

OPTIMISERS = ranges(LocalTraining)["optimiser"][1].one_of
BY_CLASS, MIXED, NONE, AS_NEEDED = "by class (Dirichlet)", "mixtures", "none", "usual"
LABELS = {
    "skew": "clients differ",
    "cohort": "clients per round",
    "lr": "learning rate",
    "epochs": "local epochs",
}
"""What the reader calls the fields that are not called by their names."""


def words(name: str) -> str:
    """What the reader calls a field of ``Setting``, or a setting of a method."""
    return LABELS.get(name, name.replace("_", " "))


@contextmanager
def _in_words() -> Iterator[None]:
    """Errors about a field, whose name comes first, call it as the reader does."""
    try:
        yield
    except ValueError as error:
        name, said = str(error).split(" ", 1)
        raise ValueError(f"{words(name)} {said}") from None


Kinds = Mapping[str, type[FedAvg]]
"""Methods by label: those of the package and the reader's own."""

_load = lru_cache(maxsize=2)(load)


@dataclass(frozen=True)
class Setting(Settings):
    """The checked values of the playground's controls.

    Raises ValueError for a value out of its range.
    """

    data: str = setting("digit_domains", one_of=BUILT_IN)  # a built-in set
    held_out: str = NONE  # a domain that no client trains on
    skew: str = "by domain"  # a key of SKEWS
    concentration: float = setting(  # of Dirichlet; large values are close to iid
        0.5, above=0, at_most=1000
    )
    clients: int = setting(10, at_least=2, at_most=MOST_CLIENTS)  # K
    cohort: int = setting(5, at_least=1)  # drawn for every round, at most K
    network: str = AS_NEEDED  # a key of NETWORKS
    method: str = "FedAvg"  # a label
    own: Mapping[str, object] = field(default_factory=dict)  # the method's settings
    lr: float = setting(0.05, at_least=0, at_most=10)  # learning rate of the clients
    epochs: int = setting(5, at_least=1, at_most=100)  # per round
    batch_size: int = setting(32, at_least=1)
    momentum: float = setting(0.9, at_least=0, below=1)  # of sgd
    optimiser: str = setting("sgd", one_of=OPTIMISERS)

    def __post_init__(self) -> None:
        with _in_words():
            super().__post_init__()
            is_possible = self.cohort <= self.clients
            expect(self, "cohort", f"at most the {self.clients} clients", is_possible)

    def run(
        self,
        seed: int = 0,
        kinds: Kinds | None = None,
        rounds: int = 1,
        device: str = "cpu",
    ) -> Run:
        """The run that these settings ask for, nothing trained yet.

        rounds: for methods that depend on them.
        Raises ValueError when data, partition, network and method do not fit.
        """
        kind = (kinds or catalogue())[self.method]
        given = {"rounds": rounds} if _has(kind, "rounds") else {}
        with _in_words():
            method = kind(**given | dict(self.own))
        data, rng = _load(self.data), np.random.default_rng(seed)
        parts = self._parts(data, rng)
        parts = [np.sort(rng.permutation(part)[:MOST_PICTURES]) for part in parts]
        momentum = self.momentum if self.optimiser == "sgd" else 0.0
        how = {"momentum": momentum, "optimiser": self.optimiser}
        return Run(
            method,
            Federation.build(data, parts, val=0.1, held_out=self._left_out()),
            self._network(data, kind),
            LocalTraining(self.lr, self.epochs, self.batch_size, **how),
            uniform(self.cohort),
            seed,
            name=f"{self.method} on {self.data}",
            device=device,
        )

    def _left_out(self) -> tuple[str, ...]:
        return () if self.held_out == NONE else (self.held_out,)

    def _parts(self, data: DomainData, rng: np.random.Generator) -> Parts:
        among = leave_out(data, self._left_out())
        try:
            return SKEWS[self.skew](self, data, rng, among)
        except ValueError as error:
            said = str(error)
            if self.skew in (BY_CLASS, MIXED):
                said = said.replace("alpha", "the concentration")
                said = said.replace("lam ", "the concentration ")
            raise ValueError(said) from None

    def _network(self, data: DomainData, kind: type[FedAvg]) -> Callable:
        if data.has_masks:
            return models.small_unet
        if _has(kind, "num_prompts"):  # which it adds itself
            return models.tiny_vit
        return NETWORKS[self.network]


def _has(kind: type[FedAvg], name: str) -> bool:
    """Whether a method has a setting of this name."""
    return name in {field.name for field in fields(kind)}


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    AS_NEEDED: models.small_cnn,
    "small CNN, BatchNorm": partial(models.small_cnn, norm="batch"),
    "tiny transformer, 4 prompts": partial(models.tiny_vit, **PROMPTED),
}
"""Networks by name. Masks get a U-Net, and methods with prompts the transformer."""


def _some(parts: Parts, setting: Setting, rng: np.random.Generator) -> Parts:
    """As many of the parts as there shall be clients, drawn at random."""
    if len(parts) < setting.clients:
        raise ValueError(
            f"{setting.data} has {len(parts)} owners to train on, found "
            f"{setting.clients} clients; ask for fewer, or change 'clients differ'"
        )
    drawn = rng.choice(len(parts), setting.clients, replace=False)
    return [parts[i] for i in np.sort(drawn)]


def _by_domain(setting: Setting, data: DomainData, rng, among: np.ndarray) -> Parts:
    """Domains cut into equally many clients, or some of the domains."""
    per_domain = -(-setting.clients // len(np.unique(data.domain[among])))
    return _some(by_domain(data, per_domain, rng, among), setting, rng)


def _rare(setting: Setting, data: DomainData, rng, among: np.ndarray) -> Parts:
    """One domain per client; each has half as many clients as the one before it."""
    domains = np.unique(data.domain[among])
    shares = 0.5 ** np.arange(len(domains))
    counts = np.maximum(1, np.floor(setting.clients * shares / shares.sum()))
    counts[0] = max(1, setting.clients - counts[1:].sum())
    parts = []
    for domain, count in zip(domains, counts.astype(int), strict=True):
        members = rng.permutation(among[data.domain[among] == domain])
        parts += np.array_split(members, count)
    return parts[: setting.clients]


SKEWS: dict[str, Callable[[Setting, DomainData, object, np.ndarray], Parts]] = {
    "none (iid)": lambda s, data, rng, among: iid(data, s.clients, rng, among),
    BY_CLASS: lambda s, data, rng, among: dirichlet(
        data, s.clients, s.concentration, rng, among
    ),
    "by owner": lambda s, data, rng, among: _some(by_owner(data, among), s, rng),
    "by domain": _by_domain,
    MIXED: lambda s, data, rng, among: heterogeneous(
        data, s.clients, s.concentration, rng, among
    ),
    "common and rare domains": _rare,
}
"""Partitions: a name, and how samples are split among clients."""


def domains_of(data: str) -> tuple[str, ...]:
    """The domains of a built-in set, one of which can be held out."""
    names = _load(data).domain_names
    return tuple(names) if len(names) > 1 else ()


@lru_cache(maxsize=1)
def _example() -> Federation:
    data = _load("digits")
    return Federation.build(data, iid(data, 2, 0), val=0.1)


def offered(own: Sequence[type[FedAvg]] = ()) -> dict[str, type[FedAvg]]:
    """Methods, by label, whose defaults accept the usual network and the training.

    own: the reader's methods, which come last.
    Every method of the catalogue is tried on the small CNN; one that needs others
    raises. Those with prompts get their transformer.
    """
    found, training = {}, LocalTraining(momentum=Setting().momentum)
    for label, kind in catalogue().items():
        try:
            if not _has(kind, "num_prompts"):
                Run(kind(), _example(), models.small_cnn, training, workers=1)
        except ValueError:
            continue
        found[label] = kind
    if wrong := [kind for kind in own if not isinstance(kind, type)]:
        raise ValueError(f"expected classes, as in [Mine], found {wrong[0]!r}")
    return found | {kind().label: kind for kind in own}


@dataclass(frozen=True, eq=False)
class Outcome:
    """Progress of a run, or of several seeds, as the figure and the table show it."""

    setting: Setting
    progress: Progress
    kilobytes: float  # on the wire, both directions, per seed
    left_out: int  # visits whose message was refused
    reason: str  # of the last of them

    @classmethod
    def of(
        cls, setting: Setting, runs: Sequence[Run], name: str, place: int
    ) -> Outcome:
        """What runs of one setting show after their last rounds."""
        table = concat(run.history for run in runs)
        chosen = tuple(np.sum([run.times_chosen for run in runs], axis=0).tolist())
        progress = Progress(name, table, chosen, place)
        events = pd.concat([run.history.events() for run in runs])
        refused = events.loc[events["client"] != ALL_CLIENTS, "reason"].tolist()
        kilobytes = sum(run.wire["bytes"].sum() for run in runs) / len(runs) / 1000
        return cls(setting, progress, kilobytes, len(refused), "".join(refused[-1:]))

    def rows(self) -> dict[str, str]:
        """Settings and results in words, one row of the comparison each."""
        chosen = asdict(self.setting)
        own = {words(name): str(value) for name, value in chosen.pop("own").items()}
        settings = {words(name): str(value) for name, value in chosen.items()}
        method = self.setting.method  # FedAvgM's momentum is not the clients'
        own = {n if n not in settings else f"{method}'s {n}": v for n, v in own.items()}
        if self.setting.skew not in (BY_CLASS, MIXED):
            settings["concentration"] = "–"
        progress = self.progress
        domains = progress.domains
        tested = domains[[not name.startswith(HELD_OUT) for name in domains.index]]
        found = {
            "rounds": f"{progress.curve()['round'].iloc[-1]:.0f}",
            "seeds": str(progress.num_seeds),
            progress.metric: _last(progress, "", "%"),
            "worst domain": f"{tested.min():.1%} ({tested.idxmin()})",
            "on the wire": f"{self.kilobytes:,.0f} kB",
            "visits left out": f"{self.left_out} {self.reason}".strip(),
        }
        for name in progress.measures[2:]:  # besides the score and the loss
            is_score = name == HELD_OUT
            label = f"{name}, {progress.metric}" if is_score else name.replace("_", " ")
            found[label] = _last(progress, name, "%" if is_score else "")
        return settings | own | found


def _last(progress: Progress, measure: str, unit: str = "") -> str:
    """The last value of a curve, with its spread over seeds where there is one."""
    curve = progress.curve(measure)
    if curve.empty:
        return "–"
    value, spread = curve[["mean", "sd"]].iloc[-1]
    if unit == "%":
        return f"{value:.1%}" + (f" ± {spread:.1%}" if spread == spread else "")
    return f"{value:.3g}" + (f" ± {spread:.2g}" if spread == spread else "")
