"""The federation playground: choose, press Start, watch, compare with the last run."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache, partial

import ipywidgets as W
import numpy as np

from fedlab_support.core.checks import Settings, expect, setting
from fedlab_support.core.history import ALL_CLIENTS
from fedlab_support.data import DomainData, load
from fedlab_support.data.builtin import BUILT_IN
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import (
    Parts,
    by_domain,
    by_owner,
    dirichlet,
    iid,
)
from fedlab_support.federation.selection import uniform
from fedlab_support.methods import catalogue
from fedlab_support.models import small_cnn, small_unet
from fedlab_support.run.run import Run
from fedlab_support.training.settings import LocalTraining

from .figures.progress import Progress, progress_picture
from .plots.style import Picture
from .widgets import LiveTraining, in_rows, readable, slider

MOST_CLIENTS = 50
MOST_PICTURES = 100
"""What one client holds at most: a round then takes about a second."""

ROUNDS, BY_CLASS = 20, "by class (Dirichlet)"
LABELS = {
    "data": "data",
    "skew": "clients differ",
    "concentration": "concentration",
    "clients": "clients",
    "cohort": "clients per round",
    "method": "method",
    "lr": "learning rate",
}
"""What the reader calls the fields of a setting."""

TRAINING = partial(LocalTraining, epochs=5, momentum=0.9)
"""How clients train, given a learning rate."""

_load = lru_cache(maxsize=2)(load)


@dataclass(frozen=True)
class Setting(Settings):
    """The checked values of the playground's controls.

    Raises ValueError for a value out of its range.
    """

    data: str = setting("digit_domains", one_of=BUILT_IN)  # a built-in set
    skew: str = "by domain"  # a key of SKEWS
    concentration: float = setting(  # of Dirichlet; large values are close to iid
        0.5, above=0, at_most=1000
    )
    clients: int = setting(10, at_least=2, at_most=MOST_CLIENTS)  # K
    cohort: int = setting(5, at_least=1)  # drawn for every round, at most K
    method: str = "FedAvg"  # a label of `methods.catalogue`, with its own defaults
    lr: float = setting(0.05, at_least=0, at_most=10)  # learning rate of the clients

    def __post_init__(self) -> None:
        try:
            self._check()
        except ValueError as error:  # which starts with the name of a field
            name, said = str(error).split(" ", 1)
            raise ValueError(f"{LABELS.get(name, name)} {said}") from None

    def _check(self) -> None:
        super().__post_init__()
        for name, known in {"skew": SKEWS, "method": catalogue()}.items():
            one_of = f"one of {', '.join(known)}"
            expect(self, name, one_of, getattr(self, name) in known)
        is_possible = self.cohort <= self.clients
        expect(self, "cohort", f"at most the {self.clients} clients", is_possible)

    def run(self, seed: int = 0) -> Run:
        """The run that these settings ask for, nothing trained yet.

        Raises ValueError when data, skew and method do not fit each other.
        """
        data, rng = _load(self.data), np.random.default_rng(seed)
        parts = SKEWS[self.skew](self, data, rng)
        parts = [np.sort(rng.permutation(part)[:MOST_PICTURES]) for part in parts]
        return Run(
            catalogue()[self.method](),
            Federation.build(data, parts, val=0.1),
            small_unet if data.has_masks else small_cnn,
            TRAINING(self.lr),
            uniform(self.cohort),
            seed,
            name=f"{self.method} on {self.data}",
        )


def _some(parts: Parts, setting: Setting, rng: np.random.Generator) -> Parts:
    """As many of the parts as there shall be clients, drawn at random."""
    if len(parts) < setting.clients:
        raise ValueError(
            f"{setting.data} has {len(parts)} owners to train on, found "
            f"{setting.clients} clients; ask for fewer or choose another skew"
        )
    drawn = rng.choice(len(parts), setting.clients, replace=False)
    return [parts[i] for i in np.sort(drawn)]


def _by_domain(setting: Setting, data: DomainData, rng: np.random.Generator) -> Parts:
    """Domains cut into equally many clients, or some of the domains."""
    num_domains = len(data.domain_names) - len(data.unseen_domains)
    per_domain = -(-setting.clients // num_domains)
    return _some(by_domain(data, per_domain, rng), setting, rng)


SKEWS: dict[str, Callable[[Setting, DomainData, np.random.Generator], Parts]] = {
    "none (iid)": lambda s, data, rng: iid(data, s.clients, rng),
    BY_CLASS: lambda s, data, rng: dirichlet(data, s.clients, s.concentration, rng),
    "by owner": lambda s, data, rng: _some(by_owner(data), s, rng),
    "by domain": _by_domain,
}
"""Partitions: a name, and how samples are split among clients."""


@lru_cache(maxsize=1)
def _example() -> Federation:
    data = _load("digits")
    return Federation.build(data, iid(data, 2, 0), val=0.1)


def offered() -> list[str]:
    """Labels of the methods whose defaults accept the small network and the training.

    Every method of the catalogue is tried; one that needs others raises.
    """
    labels = []
    for label, kind in catalogue().items():
        try:
            Run(kind(), _example(), small_cnn, TRAINING(), workers=1)
        except ValueError:
            continue
        labels.append(label)
    return labels


@dataclass(frozen=True, eq=False)
class Outcome:
    """Progress of a run, as the figure and the table show it."""

    setting: Setting
    progress: Progress
    kilobytes: float  # on the wire, both directions
    left_out: int  # visits whose message was refused
    reason: str  # of the last of them

    @classmethod
    def of(cls, setting: Setting, run: Run) -> Outcome:
        """What a run shows after its last round."""
        chosen = tuple(run.times_chosen.tolist())
        progress = Progress(run.history.run, run.history.table(), chosen)
        events = run.history.events()
        refused = events.loc[events["client"] != ALL_CLIENTS, "reason"].tolist()
        kilobytes = run.wire["bytes"].sum() / 1000
        return cls(setting, progress, kilobytes, len(refused), "".join(refused[-1:]))

    def rows(self) -> dict[str, str]:
        """Settings and results in words, one row of the comparison each."""
        settings = {LABELS[n]: str(value) for n, value in asdict(self.setting).items()}
        if self.setting.skew != BY_CLASS:
            settings["concentration"] = "–"
        last, domains = self.progress.curve().iloc[-1], self.progress.domains()
        return settings | {
            "rounds": f"{last['round']:.0f}",
            self.progress.metric: f"{last['value']:.1%}",
            "worst domain": f"{domains.min():.1%} ({domains.idxmin()})",
            "on the wire": f"{self.kilobytes:,.0f} kB",
            "visits left out": f"{self.left_out} {self.reason}".strip(),
        }


def comparison(now: Outcome, before: Outcome | None = None) -> str:
    """An HTML table of a run and the one before it; bold where they differ."""
    columns = [now.rows()] + ([before.rows()] if before else [])
    heads = ["", "this run", "run before"][: 1 + len(columns)]
    left = "style='text-align:left; padding-right:1em'"
    lines = "<tr>" + "".join(f"<th {left}>{head}</th>" for head in heads)
    for name in columns[0] | columns[-1]:
        found = [html.escape(column.get(name, "–")) for column in columns]
        kind = "th" if len(set(found)) > 1 else "td"
        cells = "".join(f"<{kind} {left}>{text}</{kind}>" for text in found)
        lines += f"</tr><tr><td>{html.escape(name)}</td>{cells}"
    return f"<table class='fl-comparison' style='line-height:1.5'>{lines}</tr></table>"


class Playground(LiveTraining):
    """A federation with controls; made by `playground`.

    Settings are read when Start is pressed. After Stop, Start goes on if they are as
    they were; with others a new run begins, and the previous one stays in the figure.
    """

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.controls = _controls()
        self.run: Run | None = None
        self.latest: Outcome | None = None
        self.before: Outcome | None = None
        self.asked: dict[str, object] = {}  # of the controls, when a run began
        super().__init__(self._round, self._draw, rounds)
        self.comparison = W.HTML()
        rows = in_rows(self.controls)
        self.children = (rows, *self.children, self.comparison)
        self.add_class("fl-playground")
        for name in ("skew", "clients"):
            self.controls[name].observe(self._enable, names="value")
        self._enable()

    def begin(self) -> None:
        """Start, go on, or begin anew where the controls have changed."""
        wanted = {name: control.value for name, control in self.controls.items()}
        if not self.is_running and wanted != self.asked:
            self.asked, self.results = wanted, []
        super().begin()

    def _enable(self, _change: object = None) -> None:
        """Only Dirichlet has a concentration; at most all clients take part."""
        self.controls["cohort"].max = self.controls["clients"].value
        self.controls["concentration"].disabled = (
            self.controls["skew"].value != BY_CLASS
        )

    def _round(self, number: int) -> Outcome:
        """One round, the first of a new run if ``number`` is 0."""
        if number == 0:
            self.run = Setting(**self.asked).run()
            self.before = self.latest
        self.run.step()
        self.latest = Outcome.of(Setting(**self.asked), self.run)
        self.comparison.value = comparison(self.latest, self.before)
        return self.latest

    def _draw(self, results: list[Outcome]) -> Picture:
        now, before = (results[-1:] or [None])[0], self.before
        pictured = [None if run is None else run.progress for run in (now, before)]
        return progress_picture(*pictured, rounds=self.rounds)


def _controls() -> dict[str, W.Widget]:
    """One control per field of Setting, with its default."""
    start = Setting()
    made = {
        "data": W.Dropdown(options=list(BUILT_IN)),
        "skew": W.Dropdown(options=list(SKEWS)),
        "concentration": W.FloatText(step=0.1),
        "clients": slider(2, MOST_CLIENTS),
        "cohort": slider(1, MOST_CLIENTS),
        "method": W.Dropdown(options=offered()),
        "lr": W.FloatText(step=0.01),
    }
    for name, control in made.items():
        control.value, control.description = getattr(start, name), LABELS[name]
    return {name: readable(control) for name, control in made.items()}


def playground(rounds: int = ROUNDS) -> Playground:
    """A federation to play with: choose, press Start, watch, change, compare.

    rounds: how many a run has, at least 1. Nothing is trained before Start is pressed.
    """
    return Playground(rounds)
