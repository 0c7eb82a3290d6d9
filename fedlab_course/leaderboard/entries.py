"""The entries of the leaderboard, and the reasons why one cannot run."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd

from fedlab_support.methods import FedAvg, catalogue
from fedlab_support.run.run import Run
from fedlab_support.run.study import each, fit_once

from .. import settings
from ..protocols import protocol
from ..settings import AUGMENTATIONS, Setting, augmented, setting_for
from .measures import measured


def entries(
    methods: Sequence[str] = (), augmentations: Sequence[str] = ()
) -> list[str]:
    """Names of what is compared: methods by label, and FedAvg with augmentations.

    methods: of the catalogue, in its order, behind FedAvg, which is always there; none
    means all. Raises ValueError for an unknown name.
    """
    known = list(catalogue())
    for wanted, names in ((methods, known), (augmentations, list(AUGMENTATIONS))):
        if unknown := [name for name in wanted if name not in names]:
            raise ValueError(f"expected some of {names}, found {unknown}")
    chosen = [name for name in known if name in methods or not methods]
    chosen = ["FedAvg", *(name for name in chosen if name != "FedAvg")]
    return chosen + [f"FedAvg + {name}" for name in augmentations]


def setting_of(entry: str) -> Setting:
    """The setting of an entry: a method by label, or FedAvg with an augmentation.

    Raises ValueError for an unknown name.
    """
    label, _, change = entry.partition(" + ")
    entries([label], [change] if change else [])
    if change:
        return Setting(label, {}, augmented(change))
    return Setting(label)


def run_of(entry: str, name: str, seed: int = 0, device: str = "cpu") -> Run:
    """The run of an entry under the protocol ``name``; ValueError where it cannot.

    The first domain is held out that the protocol holds out, if any.
    """
    rules = protocol(name)
    return settings.run_of(setting_of(entry), rules, seed, rules.held_out[0], device)


@cache
def gap(entry: str, name: str) -> str:
    """Why an entry cannot run under a protocol; nothing where it can.

    Weights that are absent are a reason, too; FileNotFoundError for absent data.
    """
    return _refusal(setting_of(entry), name)


def _refusal(setting: Setting, name: str) -> str:
    rules = protocol(name)
    rules.federation(rules.held_out[0])
    try:
        settings.run_of(setting, rules, held_out=rules.held_out[0])
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return ""


def gaps(entries: Iterable[str], names: Iterable[str]) -> pd.DataFrame:
    """A row per protocol and entry that cannot run there, with the reason."""
    return _table({(name, each): gap(each, name) for name in names for each in entries})


def _table(reasons: Mapping[tuple[str, str], str]) -> pd.DataFrame:
    rows = [(*pair, reason) for pair, reason in reasons.items() if reason]
    return pd.DataFrame(rows, columns=["protocol", "method", "reason"])


@dataclass(frozen=True)
class Board:
    """What was compared: ``curves``, tidy, with a column ``protocol``; ``runs``, a row
    per run with its measures; ``gaps``, what could not run, and why.
    """

    curves: pd.DataFrame
    runs: pd.DataFrame
    gaps: pd.DataFrame


@dataclass(frozen=True)
class Keeping:
    """Where runs are kept and found, and how they are run.

    folder:      where finished runs are kept; None keeps nothing.
    others:      where else they are found, as in ``fl.study``.
    last_rounds: evaluations that a reported number averages.
    length:      share of each protocol's rounds, > 0; with 1 runs are the chapters'.
    """

    folder: str | Path | None = None
    others: Sequence[str] = ()
    last_rounds: int = 2
    length: float = 1.0
    device: str = "cpu"
    jobs: int = 1


def collect(
    names: Sequence[str],
    entries: Sequence[str],
    seeds: Sequence[int] = (),
    keeping: Keeping = Keeping(),
    extra: Mapping[str, FedAvg] | None = None,
) -> Board:
    """All runs of entries under protocols; what is finished is read, not made again.

    seeds: none means each protocol's own.
    extra: methods of your own by the name that they get on the board, as in
           ``{"Mine": Mine(part=0.3)}``. One that subclasses a method of the package
           runs with the network, training and settings that a protocol gives that
           method, except for settings that it changes. When its code changes, its runs
           are made again.
    Raises ValueError for an unknown name, or one that is taken, FileNotFoundError for
    data that are absent.
    """
    extra = dict(extra or {})
    if taken := set(extra) & {*entries, *catalogue()}:
        raise ValueError(f"expected new names in extra, found those of {sorted(taken)}")
    found = {entry: setting_of(entry) for entry in entries}
    found |= {name: setting_for(mine) for name, mine in extra.items()}
    reasons = {
        (name, entry): _refusal(setting, name) if entry in extra else gap(entry, name)
        for name in names
        for entry, setting in found.items()
    }
    cells = [
        {"name": name, "entry": entry, "seed": seed, "held_out": held_out}
        for name in dict.fromkeys(names)
        for seed in dict.fromkeys(seeds) or protocol(name).seeds
        for held_out in protocol(name).held_out
        for entry in found
        if not reasons[name, entry]
    ]
    fit = partial(_fitted, settings_of=found, keeping=keeping)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="round .* left out")  # see events()
        made = each(fit, cells, keeping.jobs, progress=True)
    curves = [curve for curve, _ in made]
    return Board(
        pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(),
        pd.DataFrame([row for _, row in made]),
        _table(reasons),
    )


def _fitted(cell: dict, settings_of: Mapping[str, Setting], keeping: Keeping) -> tuple:
    """The history of one run as a table, and its measures."""
    setting, rules = settings_of[cell["entry"]], protocol(cell["name"])
    how = cell["seed"], cell["held_out"], keeping.device
    run = settings.run_of(setting, rules, *how)
    rounds = max(1, round(keeping.length * rules.rounds))
    history = fit_once(run, rounds, keeping.folder, keeping.others)
    who = {"protocol": cell["name"], "method": cell["entry"], "seed": cell["seed"]}
    row = who | measured(history, run.federation, keeping.last_rounds)
    return history.table().assign(**who), row
