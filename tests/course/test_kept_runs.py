"""Every finished run of the course is still there, under the name of its settings."""

import io
import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from fedlab_course import leaderboard
from fedlab_course.chapter import Chapter
from fedlab_course.comparison import Comparison
from fedlab_support.run.archive import find, name_for
from fedlab_support.run.run import Run
from fedlab_support.run.study import fit_once
from tests.paths import ROOT, shared

KEPT = json.loads(
    (ROOT / "tests" / "course" / "kept_runs.json").read_text(encoding="utf-8")
)
"""Names of runs: of each chapter, those that were there before they were packed, and of
each fair comparison, as in "05_fisc/fair", all."""


def place(chapter: str) -> Path:
    return ROOT / "figures" / chapter / "runs"


def test_there_are_as_many_as_were_packed():
    chapters = [runs for name, runs in KEPT.items() if "/" not in name]
    assert sum(map(len, chapters)) == 1108
    top = ROOT / "figures"
    packed = {p.parent.relative_to(top).as_posix() for p in top.glob("**/runs.zip")}
    assert packed == set(KEPT)


@pytest.mark.parametrize("chapter", KEPT)
def test_no_run_of_a_chapter_is_lost(chapter):
    with ZipFile(f"{place(chapter)}.zip") as archive:
        assert set(KEPT[chapter]) <= {Path(n).stem for n in archive.namelist()}
        for name in archive.namelist():
            with ZipFile(io.BytesIO(archive.read(name))) as file:
                assert name_for(file.read("made_by.json").decode()) == name


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [name for name in KEPT if "/" not in name])
def test_runs_of_a_chapter_can_be_read(chapter):
    """Every sixth; those of studies are read in test_evidence."""
    for name in KEPT[chapter][::6]:
        history = find(f"{name}.zip", place(chapter))
        assert history.measured and history.traffic, name


# ---- found under their settings -----------------------------------------------------
@pytest.fixture
def real(shared_data, monkeypatch):
    """Real data and weights, and nothing is trained."""
    monkeypatch.setenv("FEDLAB_DATA", str(shared_data))
    monkeypatch.setenv("FEDLAB_WEIGHTS", str(shared("weights")))

    def refuse(run, *_, **__):
        raise AssertionError(f"{run} was trained although its history is kept")

    monkeypatch.setattr(Run, "fit", refuse)
    monkeypatch.setattr(Run, "step", refuse)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chapter", "name", "labels"),
    [
        (
            "04_fedfa",
            "digits5",
            ("FedAvg", "FedFA+", "FedFA", "FedBN", "FedSR", "HarmoFL", "FedFA, p 0.3"),
        ),
        ("04_fedfa", "cifar10, 0.6", ("FedAvg", "FedFA+", "FedMix")),
        ("05_fisc", "pacs", ("FedAvg", "FISC", "CCST", "FedDG-GA", "CCST, λ 1.0")),
        (
            "06_fedgcr",
            "pacs_types",
            ("FedAvg", "FedGCR", "FedGR", "q-FFL", "AFL", "FedAvg, head"),
        ),
    ],
)
def test_runs_as_a_chapter_builds_them_are_found(chapter, name, labels, real):
    comparison = Comparison(Chapter(chapter, {"device": "cpu"}), name)
    rounds, (left_out, *_) = comparison.rules.rounds, comparison.rules.held_out
    for label in labels:
        run = comparison.run_of(label, seed=0, left_out=left_out)
        history = fit_once(run, rounds, place(chapter))
        assert max(round for round, *_ in history.measured) == rounds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("digits5", ("FedAvg", "FedFA", "FedMix", "FedAvg + MixStyle")),
        ("office10", ("FedAvg", "FPL", "FedGMA")),
        ("femnist", ("FedAvg", "FedFA", "TERM")),
        ("pacs", ("FedAvg", "FISC", "CCST")),
        ("picture_styles", ("FedAvg", "FedBN")),
        ("digit_types", ("FedAvg", "q-FFL", "FedGCR")),
    ],
)
def test_runs_as_the_leaderboard_builds_them_are_found(name, entries, real):
    rounds = leaderboard.protocol(name).rounds
    for entry in entries:
        run = leaderboard.run_of(entry, name)
        history = fit_once(run, rounds, place("07_leaderboard"))
        assert max(round for round, *_ in history.measured) == rounds
