"""Finished runs of studies and their answers, image by image."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np

from fedlab_support.core.files import replacing
from fedlab_support.core.history import History
from fedlab_support.federation.federation import Federation
from fedlab_support.run import archive
from fedlab_support.run.evaluation import by_only_client
from fedlab_support.run.study import each, fit_once, identity
from fedlab_support.run.tune import Tuned, tune

from .study import Study, validation_of

ANSWERS = "answers"


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    federation: its federation.
    history:    its history.
    correct:    whether the last weights classify each image correctly, bool (N,), of
                the held-out domains, or else of the clients' test samples, where a
                domain that only one client has is classified with its own layers.
    rows:       positions of these images in the data set, int (N,).
    domain:     their domains, text (N,).
    """

    federation: Federation
    history: History
    correct: np.ndarray
    rows: np.ndarray
    domain: np.ndarray

    @property
    def domains(self) -> list[str]:
        """The domains of the images, sorted."""
        return sorted(set(self.domain))

    def share(self, domain: str) -> float:
        """Accuracy on the images of a domain."""
        return float(self.correct[self.domain == domain].mean())

    def deviation(self) -> float:
        """Standard deviation of the accuracy between domains."""
        return float(np.std([self.share(name) for name in self.domains]))


def outcome(study: Study, cell: dict, folder: Path, trains=True) -> Outcome | None:
    """Fit a run, or read it and its answers from disk.

    cell:   arguments of ``study.run``.
    folder: holds ``runs``, as for ``fit_once``, and ``answers``, a bit per image; each
            may be an archive. If only the answers are lost, the run is trained again.
    trains: False returns None for a run that is not there.
    """
    run, rounds, runs = study.run(**cell), study.rules.rounds, folder / "runs"
    name = identity(run, rounds, runs)[1].name
    home = folder / ANSWERS / f"{Path(name).stem}.bits"
    bits, held_out = _kept_answers(home), run.federation.held_out
    asked = held_out if len(held_out) else run.federation.test
    if not trains and (not bits or archive.find(name, runs) is None):
        return None
    history = fit_once(run, rounds, runs)
    if not bits:
        if run.server.round < rounds:
            run.fit(rounds - run.server.round, progress=False)
        correct = run.scores(asked).score > 0.5
        for domain, own in by_only_client(run).items() if asked is not held_out else ():
            correct[asked.domain == domain] = own.score > 0.5
        bits = np.packbits(correct).tobytes()
        home.parent.mkdir(parents=True, exist_ok=True)
        with replacing(home) as part:
            part.write_bytes(bits)
    correct = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(asked))
    names = np.array(run.federation.data.domain_names)[asked.domain]
    return Outcome(run.federation, history, correct.astype(bool), asked.rows, names)


def _kept_answers(home: Path) -> bytes:
    """The answers of a run, a bit each; nothing if they are not there.

    home: their file, which may be packed into an archive beside its folder.
    """
    if home.exists():
        return home.read_bytes()
    if (packed := home.parent.with_suffix(".zip")).exists():
        with ZipFile(packed) as answers:
            if home.name in answers.NameToInfo:
                return answers.read(home.name)
    return b""


def pack(folder: Path) -> None:
    """Move finished runs and their answers into ``runs.zip`` and ``answers.zip``.

    Raises ValueError if there are neither, and as ``archive.pack``.
    """
    loose = sorted((folder / ANSWERS).glob("*.bits"))
    if not loose or any((folder / "runs").glob("*.zip")):
        archive.pack(folder / "runs")
    packed, found = folder / f"{ANSWERS}.zip", {}
    if packed.exists():
        with ZipFile(packed) as file:
            found = {name: file.read(name) for name in file.namelist()}
    found |= {home.name: home.read_bytes() for home in loose}
    with replacing(packed) as part, ZipFile(part, "w") as file:
        for name in sorted(found):
            file.writestr(ZipInfo(name), found[name], ZIP_STORED)
    for home in loose:
        home.unlink()


def tuned(study: Study, test: str, folder: Path, methods: Iterable[str]) -> Tuned:
    """The rates that methods choose for a test domain; missing trials are trained."""
    spaces = {name: {"lr": list(study.rates)} for name in methods}
    build = partial(study.run, test=test)
    where = validation_of(study.deal(test, study.seeds[0]))
    quiet = {"folder": folder / "runs", "progress": False}
    rounds, seeds = study.rules.rounds, study.tuning_seeds
    return tune(build, spaces, rounds, where, seeds=seeds, **quiet)


def reported(
    study: Study, test: str, folder: Path, methods: Iterable[str]
) -> list[dict]:
    """Methods at their chosen rates on a test domain, for all seeds."""
    choice = tuned(study, test, folder, methods).choice
    return [
        {"method": name, "test": test, "seed": seed} | rate
        for name, rate in choice.items()
        for seed in study.seeds
    ]


def train(study: Study, folder: Path, jobs: int = 1) -> None:
    """Train the missing runs, the most important first.

    These are the tuned methods on the first test domain; then all arms at the default
    rate, and the tuned methods on the other test domains.
    """

    def fit_tuned(test: str) -> None:
        for name in study.tuned:
            _fit(study, study.trials(test, [name]), folder, jobs)
            _fit(study, reported(study, test, folder, [name]), folder, jobs)

    first, *others = study.tests
    fit_tuned(first)
    _fit(study, study.default(), folder, jobs)
    for test in others:
        fit_tuned(test)


def _fit(study: Study, cells: Sequence[dict], folder: Path, jobs: int) -> None:
    def fit(cell: dict) -> None:
        began = time.perf_counter()
        outcome(study, cell, folder)
        print(f"{time.perf_counter() - began:6.0f} s  {cell}", flush=True)

    each(fit, cells, jobs, progress=False)
