"""Fair comparisons on real data, and the runs behind them.

    python -m fedlab_course.evidence train --jobs 2     what is not yet kept
    python -m fedlab_course.evidence tables             of what is kept

``train`` goes from the most to the least important run and can be stopped at any time.

Each seed deals a new partition and draws a new network and new cohorts, the same for
all methods, so methods are compared seed by seed. The learning rate of each method is
chosen on the paper's validation domain, with equal budgets (see ``tune``). The last
round is reported, as in the paper.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache, partial
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from fedlab_support import models
from fedlab_support.core.files import replacing
from fedlab_support.core.history import History
from fedlab_support.data import DomainData, load
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import heterogeneous
from fedlab_support.federation.protocols import leave_two_domains_out
from fedlab_support.federation.selection import uniform
from fedlab_support.methods import CCST, FISC, FedAvg
from fedlab_support.run import archive
from fedlab_support.run.run import Run
from fedlab_support.run.study import each, fit_once, identity
from fedlab_support.run.tune import Tuned, tune
from fedlab_support.training.settings import LocalTraining

from .leaderboard.paired import Paired, holm, over_images, paired, verdict

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("figures/05_fisc/fair")
WEIGHTS = "mobilenetv2_100.fp16.safetensors"
STYLE = "style_cd16x_relu1to4.fp16.safetensors"
ROUNDS, EVERY = 50, 10
SEEDS = (0, 1, 2)
LRS = (1e-4, 3e-4, 1e-3)
DEFAULT_LR = 3e-4
TESTS = ("sketch", "art_painting")
COMMAND = "python -m fedlab_course.evidence train"
TUNED = ("FedAvg", "FISC", "CCST")


# ---- FISC on PACS -------------------------------------------------------------------
@dataclass(frozen=True)
class Arm:
    """A method, and the width of the embedding that is added to its network."""

    method: FedAvg
    embedding: int | None = None


_fisc = partial(FISC, network=STYLE)
ARMS = {
    "FedAvg": Arm(FedAvg()),
    "FISC": Arm(_fisc()),
    "FISC, size_weight 0": Arm(_fisc(size_weight=0.0)),
    "CCST": Arm(CCST(network=STYLE)),
    "FISC, embedding": Arm(_fisc(), 2048),
    "FedAvg, embedding": Arm(FedAvg(), 2048),
    "FISC, size_weight 0.02": Arm(_fisc(size_weight=0.02)),
}
"""What is compared, by label; the first is the reference."""


@cache
def _data() -> DomainData:
    return load("pacs", size=96)


@lru_cache(maxsize=2)  # each holds a gigabyte of images
def federation(test: str, seed: int) -> Federation:
    """A hundred mixtures of two domains, dealt by ``seed``; the others are held out."""
    deal = partial(heterogeneous, clients=100, lam=0.1, rng=seed)
    return leave_two_domains_out(_data(), deal)[test]


def run_of(method: str, test: str, lr: float, seed: int) -> Run:
    """Table 1 of FISC on a small network: 20 of 100 clients a round, Adam."""
    arm = ARMS[method]
    wider = {} if arm.embedding is None else {"embedding": arm.embedding}
    network = partial(models.mobilenet, weights=WEIGHTS, **wider)
    training = LocalTraining(lr=lr, batch_size=32, optimiser="adam")
    parts = arm.method, federation(test, seed), network, training, uniform(20)
    return Run(*parts, seed, workers=1, evaluate_every=EVERY)


def mechanism(test: str = TESTS[0]) -> list[dict]:
    """All arms with the default learning rate; the question of the size term first."""
    names = list(ARMS)
    return [
        {"method": method, "test": test, "lr": DEFAULT_LR, "seed": seed}
        for some in (names[:3], names[3:])
        for seed in SEEDS
        for method in some
    ]


def trials(test: str) -> list[dict]:
    """The learning rates that each method may try, with the first seed."""
    return [
        {"method": method, "test": test, "lr": lr, "seed": SEEDS[0]}
        for method in TUNED
        for lr in LRS
    ]


def tuned(test: str, folder: Path) -> Tuned:
    """The choice among ``trials`` on the paper's validation domain."""
    spaces = {method: {"lr": list(LRS)} for method in TUNED}
    validation = federation(test, SEEDS[0]).held_out_domains[0]
    build, kept = partial(run_of, test=test), folder / "runs"
    return tune(build, spaces, ROUNDS, validation, folder=kept, progress=False)


def reported(test: str, folder: Path) -> list[dict]:
    """The tuned methods, seed by seed."""
    choice = tuned(test, folder).choice
    return [
        {"method": method, "test": test, "seed": seed} | choice[method]
        for seed in SEEDS
        for method in TUNED
    ]


# ---- finished runs and their answers ------------------------------------------------
@dataclass(frozen=True)
class Outcome:
    """A finished run.

    history: its history.
    correct: whether the last weights classify each held-out image correctly, bool (N,).
    domain:  the domain of each of these images, text (N,), in the data set's order.
    """

    history: History
    correct: np.ndarray
    domain: np.ndarray


def outcome(run: Run, folder: Path, trains: bool = True) -> Outcome | None:
    """Fit a run, or read it and its answers on held-out images, if they are kept.

    folder: holds ``runs``, as for ``fit_once``, and ``answers``, a bit per image; each
            may be an archive. If only the answers are lost, the run is trained again.
    trains: False returns None for a run that is not there.
    """
    name = identity(run, ROUNDS, folder / "runs")[1].name
    bits, held_out = _answers(name, folder), run.federation.held_out
    if not trains and (not bits or archive.find(name, folder / "runs") is None):
        return None
    history = fit_once(run, ROUNDS, folder / "runs")
    if not bits:
        if run.server.round < ROUNDS:
            run.fit(ROUNDS - run.server.round, progress=False)
        bits = np.packbits(run.scores(held_out).score > 0.5).tobytes()
        home = folder / "answers" / f"{Path(name).stem}.bits"
        home.parent.mkdir(parents=True, exist_ok=True)
        with replacing(home) as part:
            part.write_bytes(bits)
    row = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(held_out))
    names = np.array(run.federation.data.domain_names)
    return Outcome(history, row.astype(bool), names[held_out.domain])


def _answers(name: str, folder: Path) -> bytes:
    """The answers of a run, a bit each; nothing if they are not there."""
    file = folder / "answers" / f"{Path(name).stem}.bits"
    if file.exists():
        return file.read_bytes()
    if (packed := folder / "answers.zip").exists():
        with ZipFile(packed) as answers:
            if file.name in answers.NameToInfo:
                return answers.read(file.name)
    return b""


def pack(folder: Path) -> None:
    """Move finished runs and their answers into ``runs.zip`` and ``answers.zip``."""
    archive.pack(folder / "runs")
    packed, found = folder / "answers.zip", {}
    if packed.exists():
        with ZipFile(packed) as file:
            found = {name: file.read(name) for name in file.namelist()}
    loose = sorted((folder / "answers").glob("*.bits"))
    found |= {each.name: each.read_bytes() for each in loose}
    with replacing(packed) as part, ZipFile(part, "w") as file:
        for name in sorted(found):
            file.writestr(ZipInfo(name), found[name], ZIP_STORED)
    for each_file in loose:
        each_file.unlink()


def fitted(cells: Sequence[dict], folder: Path, jobs: int = 1) -> None:
    """Train the runs of cells, arguments of ``run_of``, that are not kept."""

    def fit(cell: dict) -> None:
        began = time.perf_counter()
        outcome(run_of(**cell), folder)
        print(f"{time.perf_counter() - began:6.0f} s  {cell}", flush=True)

    each(fit, cells, jobs, progress=False)


def train(folder: Path, jobs: int = 1) -> None:
    """Train what is not kept, the most important first."""
    for test in TESTS:
        first = mechanism() if test == TESTS[0] else []
        fitted([*first, *trials(test)], folder, jobs)
        fitted(reported(test, folder), folder, jobs)


Answers = dict[int, np.ndarray]
"""By seed, whether each image of the test domain is classified correctly."""


# ---- tables of what is kept ---------------------------------------------------------
ACTS = ("task_loss", "contrast", "size", "near", "far", "active")
"""What FISC logs: parts of the loss, and what its triplets are like."""

AGAINST = (
    ("FISC", "FedAvg"),
    ("FISC, size_weight 0", "FedAvg"),
    ("FISC, size_weight 0.02", "FedAvg"),
    ("CCST", "FedAvg"),
    ("FISC", "CCST"),
    ("FISC", "FISC, size_weight 0"),
    ("FISC, embedding", "FedAvg, embedding"),
)
"""Method and reference of each comparison."""


def runs_table(cells: Sequence[dict], folder: Path) -> pd.DataFrame:
    """A row per kept run: accuracy on both held-out domains, and FISC's mechanism.

    Columns ``active_first`` and ``active_last`` hold the mean over the clients of round
    1 and of the last ten rounds; likewise the others of ``ACTS``.
    """
    import pandas as pd

    rows = []
    for cell in cells:
        run = run_of(**cell)
        if (found := outcome(run, folder, trains=False)) is not None:
            chosen, tested = run.federation.held_out_domains
            shares = {
                f"{name} accuracy": found.correct[found.domain == domain].mean()
                for name, domain in (("validation", chosen), ("test", tested))
            }
            rows.append(cell | shares | _acting(found.history.table()))
    return pd.DataFrame(rows)


def _acting(table: pd.DataFrame) -> dict[str, float]:
    seen = table[(table["split"] == "train") & table["metric"].isin(ACTS)]
    periods = {"first": seen["round"] == 1, "last": seen["round"] > ROUNDS - EVERY}
    return {
        f"{metric}_{name}": value
        for name, when in periods.items()
        for metric, value in seen[when].groupby("metric")["value"].mean().items()
    }


def comparisons(groups: dict[str, Sequence[dict]], folder: Path) -> pd.DataFrame:
    """Method minus reference on the test domain, in points, paired by seed.

    groups: name of a comparison → its cells. Columns as in ``Paired``, with images_low
    and images_high (``over_images``), and p_holm, over all rows.
    """
    import pandas as pd

    rows = []
    for group, cells in groups.items():
        answers = _test_answers(cells, folder)
        for method, reference in AGAINST:
            mine, other = (answers.get(one, {}) for one in (method, reference))
            if seeds := sorted(set(mine) & set(other)):
                a, b = (np.stack([of[seed] for seed in seeds]) for of in (mine, other))
                row = {"group": group, "method": method, "reference": reference}
                row |= vars(paired(100 * (a.mean(1) - b.mean(1))))
                low, high = over_images(a, b)
                rows.append(row | {"images_low": 100 * low, "images_high": 100 * high})
    table = pd.DataFrame(rows)
    return table.assign(p_holm=holm(table["p"])) if rows else table


def _test_answers(cells: Sequence[dict], folder: Path) -> dict[str, Answers]:
    """Answers on the test domain by method and seed, of the runs that are kept."""
    found: dict[str, Answers] = {}
    for cell in cells:
        if (kept := outcome(run_of(**cell), folder, trains=False)) is not None:
            rows = kept.correct[kept.domain == cell["test"]]
            found.setdefault(cell["method"], {})[cell["seed"]] = rows
    return found


def groups(folder: Path) -> dict[str, list[dict]]:
    """The comparisons: at the default learning rate and, once it is chosen, tuned."""
    found = {f"{TESTS[0]}, default lr": mechanism()}
    for test in TESTS:
        kept = [outcome(run_of(**cell), folder, trains=False) for cell in trials(test)]
        if all(kept):
            found[f"{test}, tuned lr"] = reported(test, folder)
    return found


def claims() -> pd.DataFrame:
    """The papers' main claims; ``group``, ``ours`` and ``ours_reference`` name the
    comparison that tests one, and are empty where there is none yet.
    """
    import pandas as pd

    with (files("fedlab_course.leaderboard") / "claims.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False)


KEYS = ["paper", "table", "data", "claim"]
MEASURED = ["mean", "low", "high", "num", "images_low", "images_high", "p_holm"]


def verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """The papers' main claims, a row each, and what our comparisons say of them.

    table: of ``comparisons``. Returns the claim; printed, the difference in the paper;
    the columns ``MEASURED`` of our comparison; verdict, in the words of the function of
    that name, or "not run fairly yet"; differs, from the paper; and the command.
    """
    import pandas as pd

    names = ["group", "method", "reference"]
    rows = []
    for claim in claims().to_dict("records"):
        printed = claim["value"] - claim["reference_value"]
        row = {name: claim[name] for name in KEYS} | {"printed": printed}
        key = [claim[name] for name in ("group", "ours", "ours_reference")]
        ours = table[(table[names] == key).all(axis=1)] if len(table) else table
        if not len(ours):
            rows.append(row | {"verdict": "not run fairly yet"})
            continue
        it = ours.iloc[0]
        found = Paired(**{f.name: it[f.name] for f in fields(Paired)})
        row |= {name: it[name] for name in MEASURED}
        row |= {"verdict": verdict(printed, found, it["p_holm"])}
        rows.append(row | {"differs": claim["differs"], "command": COMMAND})
    columns = [*KEYS, "printed", *MEASURED, "verdict", "differs", "command"]
    return pd.DataFrame(rows, columns=columns)


def tables(folder: Path, verdicts_to: Path) -> None:
    """Write ``runs.csv`` and ``comparisons.csv`` into a folder, and the verdicts."""
    by_group = groups(folder)
    cells = list(chain(*by_group.values(), *map(trials, TESTS)))
    cells = [cell for i, cell in enumerate(cells) if cell not in cells[:i]]
    written = {"float_format": "%.4g", "index": False, "lineterminator": "\n"}
    runs_table(cells, folder).to_csv(folder / "runs.csv", **written)
    table = comparisons(by_group, folder)
    table.to_csv(folder / "comparisons.csv", **written)
    verdicts(table).to_csv(verdicts_to, **written)


def main() -> None:
    """Train, pack or tabulate."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=("train", "pack", "tables"))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--verdicts", type=Path, default=Path("figures/verdicts.csv"))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.task == "train":
        train(options.folder, options.jobs)
    elif options.task == "pack":
        pack(options.folder)
    else:
        tables(options.folder, options.verdicts)


if __name__ == "__main__":
    main()
