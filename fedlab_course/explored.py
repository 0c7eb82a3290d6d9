"""What each chapter explores: hyper-parameters, one at a time around a small setting.

Runs are small enough to train one more while a reader watches. Those of all values are
kept in ``figures/<chapter>/explored.zip``. ``explored.png`` shows where they end; for
chapter 06, ``trade_off.png`` shows the average against the worst domain:

    python -m fedlab_course.explored 01_fedavg      trains what is missing there
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from torch import nn

from fedlab_support import models
from fedlab_support.federation.selection import availability, power_of_choice
from fedlab_support.run.archive import pack
from fedlab_support.training.settings import LocalTraining

from . import dealing
from .chapter import ROOT
from .exploration import (
    AVERAGE,
    WORST,
    Axis,
    Exploration,
    Finished,
    main_measure,
    name_of,
    of_method,
    of_training,
    scores,
)
from .figures.exploration import ends_of, explored_picture, trade_off_picture
from .plots.export import save_figure
from .plots.style import Picture, label_of
from .protocols import CNN, PROMPTS, Protocol, protocol
from .settings import Setting, mixed

SEEDS = (0, 1)
"""Of every stored value; a reader trains more."""


def ruled(**changes: object) -> Setting:
    """FedAvg under other rules."""
    return Setting("FedAvg", {}, partial(replace, **changes))


def linear(image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """A linear classifier of 49 averages of 16 pixels each."""
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, num_classes))


# ---- the chapters -------------------------------------------------------------------
def _digits(*work: object, **more: object) -> Protocol:
    deal = partial(dealing.few_per_domain, images=60, tested=30)
    training = LocalTraining(lr=0.05, epochs=2, batch_size=16)
    return Protocol("", "digit_domains", deal, CNN, training, *work, **more)


def fedavg() -> Exploration:
    """Chapter 01: local epochs, clients per round, learning rate, two answers."""
    deal = partial(dealing.skewed_classes, clients=40, alpha=0.3)
    training = LocalTraining(lr=0.1, epochs=2, batch_size=16)
    work = (models.small_cnn, training, 16, 2, 5, SEEDS)
    axes = {
        "E": Axis("local epochs E", of_training("epochs"), (1, 2, 4)),
        "m": Axis("clients per round m", lambda m: ruled(cohort=m), (2, 5, 10)),
        "lr": Axis("learning rate", of_training("lr"), (0.02, 0.1, 0.3)),
        "mu": Axis("FedProx's μ", of_method("FedProx", "mu"), (0.0, 0.1, 1.0)),
        "beta": Axis(
            "FedAvgM's β", of_method("FedAvgM", "momentum"), (0.0, 0.5, 0.9), 0.9
        ),
    }
    rules = Protocol("", "digits", deal, *work, weighting=None)
    return Exploration("Digits, 40 clients with skewed classes", rules, axes)


def client_selection() -> Exploration:
    """Chapter 02: power of choice and availability."""
    training = LocalTraining(lr=0.1, epochs=2, batch_size=10)
    work = (linear, training, 30, 3, None, SEEDS)
    rules = Protocol("", "digits", dealing.rare_classes, *work, weighting=None)

    def loss(m: int = 10, d: int = 20) -> Setting:
        return ruled(select=power_of_choice(m, d), weighting="equal")

    def there(share: float = 0.3, probability: float = 0.1) -> Setting:
        select = availability(10, share, probability)
        return ruled(select=select, weighting="examples")

    axes = {
        "d": Axis("candidates d", lambda d: loss(d=d), (10, 20, 30, 40)),
        "m": Axis("clients per round m", lambda m: loss(m=m), (2, 5, 10, 20)),
        "s": Axis("share s of group 1", lambda s: there(s), (0.1, 0.3, 0.5, 0.8)),
        "p": Axis(
            "probability p of group 1",
            lambda p: there(probability=p),
            (0.0, 0.1, 0.3, 0.9),
        ),
    }
    about = "Digits, 40 clients, of which three hold the last two classes"
    return Exploration(about, rules, axes)


def held_out_domains() -> Exploration:
    """Chapter 03: FedSR's weights, FedDG's window and step."""
    fedsr, feddg = partial(of_method, "FedSR"), partial(of_method, "FedDG")
    axes = {
        "l2r": Axis("FedSR's weight of the norm", fedsr("l2r_weight"),
                    (0.0, 0.01, 0.1), 0.01),
        "cmi": Axis("FedSR's weight of the divergence", fedsr("cmi_weight"),
                    (0.0, 0.001, 0.1), 0.001),
        "window": Axis("FedDG's window α", feddg("alpha"), (0.0, 0.05, 0.2)),
        "step": Axis("FedDG's virtual step β", feddg("beta"),
                     (0.0, 0.001, 0.1), 0.001),
    }  # fmt: skip
    rules = _digits(12, 3, seeds=SEEDS, held_out=("street",), weighting=None)
    return Exploration("Four styles of digits, street numbers held out", rules, axes)


def fedfa() -> Exploration:
    """Chapter 04: FedFA's noise and FedFA+'s histograms."""
    noise, histogram = partial(of_method, "FedFA"), partial(of_method, "FedFA+")
    fusions = ("random", "client", "direct", "adaptive")
    axes = {
        "p": Axis("share p of changed batches", noise("p"), (0.0, 0.5, 1.0), 0.5),
        "alpha": Axis("momentum α", noise("alpha"), (0.0, 0.9, 0.99), 0.99),
        "stages": Axis("stages", noise("stages"), ((), (1,), (2,), None), None),
        "fusion": Axis("fusion", noise("fusion"), fusions, "adaptive"),
        "lambda": Axis("FedFA+'s λ", histogram("alignment"), (0.0, 0.1, 10.0), 0.1),
        "bins": Axis("FedFA+'s bins L", histogram("bins"), (2, 8, 64), 8),
        "tau": Axis("FedFA+'s τ", histogram("temperature"), (0.001, 0.01, 1.0), 0.01),
    }
    rules = _digits(12, 3, seeds=SEEDS)
    return Exploration("Five clients, one style of digits each", rules, axes)


def fisc() -> Exploration:
    """Chapter 05: mixtures of domains, FISC's weights, margin, strength and noise."""
    deal = partial(dealing.mixtures, size=None, clients=5, one_in=6)
    training = LocalTraining(0.003, 2, 16, optimiser="adam")
    work = (models.small_cnn, training, 8, 2)
    own = partial(of_method, "FISC")
    axes = {
        "lambda": Axis("λ of the mixture", lambda lam: Setting("FISC", {}, mixed(lam)),
                       (0.0, 0.1, 0.5, 1.0), 0.1),
        "gamma1": Axis("γ1, weight of the contrast", own("contrast_weight"),
                       (0.0, 0.25, 0.75, 2.0)),
        "gamma2": Axis("γ2, weight of the size", own("size_weight"),
                       (0.0, 0.05, 0.2, 1.0)),
        "margin": Axis("margin", own("margin"), (0.0, 0.1, 0.3, 1.0)),
        "strength": Axis("strength α of the transfer", own("strength"),
                         (0.0, 0.25, 0.5, 1.0)),
        "noise": Axis("noise on the uploaded style", own("noise"),
                      (0.0, 0.1, 0.5, 2.0), 0.0),
    }  # fmt: skip
    more = {"held_out": ("sketch",), "seeds": SEEDS, "weighting": None}
    rules = Protocol("", "picture_styles", deal, *work, **more)
    return Exploration("Five mixtures of styles, sketches held out", rules, axes)


def fedgcr() -> Exploration:
    """Chapter 06: fairness, groups and prompts."""
    changes = {"images": 120, "tested": 25, "imbalance": 4}
    training = replace(PROMPTS, lr=0.01)
    axes = {
        "q": Axis("q of q-FFL", of_method("q-FFL", "q"), (0.0, 0.5, 1.0, 5.0)),
        "t": Axis("t of TERM", of_method("TERM", "tilt"), (0.0, 0.5, 1.0, 5.0)),
        "gamma": Axis("γ of AFL", of_method("AFL", "mixture_lr"),
                      (0.0, 0.01, 0.1, 0.5)),
        "delta": Axis("δ of FedGCR", of_method("FedGCR", "delta"),
                      (0.0, 0.3, 0.5, 0.9), 0.5),
        "groups": Axis("T', number of FedGCR's groups",
                       of_method("FedGCR", "num_groups"), (1, 3, 5, 8), 5),
        "prompts": Axis("number of prompts", of_method("VPT", "num_prompts"),
                        (0, 1, 4, 8), 4),
    }  # fmt: skip
    rules = replace(
        protocol("digit_types").dealing(**changes),
        training=training,
        rounds=8,
        every=2,
        seeds=SEEDS,
    )
    return Exploration("Common and rare styles of digits", rules, axes)


EXPLORED: dict[str, Callable[[], Exploration]] = {
    "01_fedavg": fedavg,
    "02_client_selection": client_selection,
    "03_fedsr_feddg": held_out_domains,
    "04_fedfa": fedfa,
    "05_fisc": fisc,
    "06_fedgcr": fedgcr,
}
"""The exploration of each chapter."""

TRADED = {"06_fedgcr": ("q", "t", "gamma", "delta")}
"""Axes that are also drawn as the average against the worst domain."""


def place(chapter: str) -> Path:
    """Where the runs of a chapter's exploration are kept: a folder or its archive."""
    return ROOT / "figures" / chapter / "explored"


def sheet(exploration: Exploration, folder: Path) -> Picture:
    """All axes side by side: the score at the end of the runs kept in a folder.

    The score is that of the held-out domain, where there is one.
    """
    finished, parts = Finished(exploration, folder), []
    for name, axis in exploration.axes.items():
        table = finished.table(name)
        measure = main_measure(table)
        ends = ends_of(scores(table, measure)).assign(axis=axis.label)
        parts.append(ends.assign(paper=ends["name"] == name_of(axis.paper)))
    score = label_of("accuracy")
    title = f"{exploration.about}: {measure}"
    return explored_picture(pd.concat(parts, ignore_index=True), score, title=title)


def trade_offs(
    exploration: Exploration, folder: Path, axes: Sequence[str]
) -> pd.DataFrame:
    """How accurate the values of some axes are on average and on the worst domain.

    Returns columns axis, name (of the value), average, worst, num_seeds; accuracies in
    per cent at the end of the runs kept in a folder.
    """
    finished, parts = Finished(exploration, folder), []
    for name in axes:
        table = finished.table(name)
        both = ends_of(scores(table, AVERAGE)).rename(columns={"mean": "average"})
        worst = ends_of(scores(table, WORST)).set_index("name")["mean"]
        both = both.assign(worst=both["name"].map(worst))
        parts.append(both.assign(axis=exploration.axes[name].label))
    columns = ["axis", "name", "average", "worst", "num_seeds"]
    return pd.concat(parts, ignore_index=True)[columns]


def make(chapter: str) -> None:
    """Train what a chapter's archive lacks, add it, and draw the sheet of all axes."""
    exploration, folder = EXPLORED[chapter](), place(chapter)
    for axis in exploration.axes:
        exploration.study(axis, folder)
        if list(folder.glob("*.zip")):
            pack(folder)
    labels = ", ".join(axis.label for axis in exploration.axes.values())
    text = f"End values of small runs, one panel per setting: {labels}."
    figure, rules = sheet(exploration, folder), exploration.rules
    about = {"dataset": rules.dataset, "rounds": rules.rounds, "seeds": rules.seeds}
    save_figure(figure, "explored", folder.parent, parameters=about, description=text)
    if chapter in TRADED:
        ends = trade_offs(exploration, folder, TRADED[chapter])
        title = f"{exploration.about}: the average against the worst style"
        figure = trade_off_picture(ends, "Worst style: accuracy (%)", title=title)
        text = "Average and worst accuracy at the end of small runs, by setting."
        kept = {"parameters": about, "description": text}
        save_figure(figure, "trade_off", folder.parent, **kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fedlab_course.explored")
    parser.add_argument(
        "chapters", nargs="*", metavar="chapter", help=", ".join(EXPLORED)
    )
    chosen = parser.parse_args().chapters
    if unknown := set(chosen) - set(EXPLORED):
        parser.error(f"expected chapters out of {[*EXPLORED]}, found {sorted(unknown)}")
    for name in chosen or EXPLORED:
        make(name)
