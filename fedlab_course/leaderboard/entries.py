"""What is compared: every method that has a file, and what keeps one from running."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedlab_support.methods import catalogue
from fedlab_support.run.run import Run
from fedlab_support.run.study import each, fit_once

from .. import settings
from ..protocols import protocol
from ..settings import AUGMENTATIONS, Setting, augmented
from .measures import measured

if TYPE_CHECKING:
    import pandas as pd


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
    """The setting of an entry: a method by label, or FedAvg with an augmentation."""
    label, _, change = entry.partition(" + ")
    if change:
        return Setting(label, {}, augmented(AUGMENTATIONS[change]))
    return Setting(label)


def run_of(
    entry: str, name: str, seed: int = 0, held_out: str | None = None, device="cpu"
) -> Run:
    """The run of an entry under the protocol ``name``; ValueError where it cannot.

    held_out: None: the first domain that the protocol holds out.
    """
    rules = protocol(name)
    held_out = rules.held_out[0] if held_out is None else held_out
    return settings.run_of(setting_of(entry), rules, seed, held_out, device)


@cache
def gap(entry: str, name: str) -> str:
    """Why an entry cannot run under a protocol; nothing where it can.

    Weights that are absent are a reason, too; FileNotFoundError for absent data.
    """
    rules = protocol(name)
    rules.federation(rules.held_out[0])
    try:
        run_of(entry, name)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return ""


def gaps(entries: Iterable[str], names: Iterable[str]) -> pd.DataFrame:
    """A row per protocol and entry that cannot run there, with the reason."""
    import pandas as pd

    pairs = ((name, entry) for name in names for entry in entries)
    rows = [(*pair, gap(pair[1], pair[0])) for pair in pairs if gap(pair[1], pair[0])]
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
    others:      where else to look for them: folders, archives, or patterns of either,
                 such as build/sweeps/*/runs and figures/*/runs.zip.
    last_rounds: evaluations that a reported number averages.
    length:      share of each protocol's rounds, > 0; with 1 runs are the chapters'.
    """

    folder: str | Path | None = None
    others: Sequence[str] = ()
    last_rounds: int = 2
    length: float = 1.0
    device: str = "cpu"
    jobs: int = 1
    progress: bool = True

    def places(self) -> list[Path]:
        """The folders and archives that `others` matches."""
        return [
            place
            for pattern in map(Path, self.others)
            for place in sorted(Path(pattern.anchor).glob(_below(pattern)))
            if place.is_dir() or place.suffix == ".zip"
        ]


def _below(pattern: Path) -> str:
    return str(pattern.relative_to(pattern.anchor)) if pattern.anchor else str(pattern)


def collect(
    names: Sequence[str],
    entries: Sequence[str],
    seeds: Sequence[int] = (),
    keeping: Keeping = Keeping(),
) -> Board:
    """All runs of entries under protocols; what is finished is read, not made again.

    seeds: none means each protocol's own.
    Raises ValueError for an unknown name, FileNotFoundError for data that are absent.
    """
    import pandas as pd

    cells = [
        {"name": name, "entry": entry, "seed": seed, "held_out": held_out}
        for name in names
        for seed in seeds or protocol(name).seeds
        for held_out in protocol(name).held_out
        for entry in entries
        if not gap(entry, name)
    ]
    places = keeping.places()
    fit = partial(_fitted, keeping=keeping, places=places)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="round .* left out")  # see events()
        found = each(fit, cells, keeping.jobs, keeping.progress)
    curves = [curve for curve, _ in found]
    return Board(
        pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(),
        pd.DataFrame([row for _, row in found]),
        gaps(entries, names),
    )


def _fitted(cell: dict, keeping: Keeping, places: Sequence[Path]) -> tuple:
    """The history of one run as a table, and its measures."""
    run = run_of(**cell, device=keeping.device)
    rounds = max(1, round(keeping.length * protocol(cell["name"]).rounds))
    history = fit_once(run, rounds, keeping.folder, places)
    who = {"protocol": cell["name"], "method": cell["entry"], "seed": cell["seed"]}
    row = who | measured(history, run.federation, keeping.last_rounds)
    return history.table().assign(**who), row
