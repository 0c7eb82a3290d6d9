"""Fair runs: dealt by seed, kept with their answers, compared in pairs."""

from functools import partial

import numpy as np
import pandas as pd
import pytest

from fedlab_course import evidence
from fedlab_course.leaderboard.paired import over_images, paired
from fedlab_support.federation.partition import heterogeneous
from fedlab_support.federation.protocols import leave_two_domains_out
from fedlab_support.methods import FedAvg, FedProx
from fedlab_support.run.run import Run
from fedlab_support.training.settings import LocalTraining
from tests.support.run.test_study import fits, tiny_cnn  # noqa: F401
from tests.tiny import tiny_data

DATA = tiny_data(num=240, owners=8, domains=4)
TEST = "domain 3"
METHODS = {"FedAvg": FedAvg(), "FISC": FedProx(mu=2.0), "CCST": FedProx(mu=20.0)}


def run_of(method: str, test: str, lr: float, seed: int) -> Run:
    training = LocalTraining(lr=lr, batch_size=16)
    parts = METHODS[method], evidence.federation(test, seed), tiny_cnn, training
    return Run(*parts, seed=seed, workers=1, evaluate_every=2)


def dealt(test: str, seed: int):
    deal = partial(heterogeneous, clients=6, lam=0.3, rng=seed)
    return leave_two_domains_out(DATA, deal)[test]


def make_small(monkeypatch) -> None:
    """Tiny runs with the names of the real ones."""
    for name, value in {
        "run_of": run_of,
        "federation": dealt,
        "ARMS": METHODS,
        "ROUNDS": 3,
        "EVERY": 2,
        "DEFAULT_LR": 0.3,
        "LRS": (0.1, 0.3),
        "TESTS": (TEST,),
    }.items():
        monkeypatch.setattr(evidence, name, value)
    monkeypatch.setattr(evidence.mechanism, "__defaults__", (TEST,))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    make_small(monkeypatch)


CELL = {"method": "FISC", "test": TEST, "lr": 0.3, "seed": 1}


# ---- the comparison -----------------------------------------------------------------
def test_a_seed_deals_a_partition_for_all_methods(monkeypatch):
    monkeypatch.undo()
    data = tiny_data(num=1600, owners=8, domains=4, channels=3, size=4)
    monkeypatch.setattr(evidence, "_data", lambda: data)
    deals = [evidence.federation("domain 0", seed) for seed in (0, 1)]
    assert len({one.fingerprint() for one in deals}) == 2
    assert all(len(one) == 100 for one in deals)
    assert evidence.federation("domain 0", 1) is deals[1]
    evidence.federation.cache_clear()


def test_seeds_are_complete_one_after_the_other():
    cells = evidence.mechanism(TEST)
    assert [cell["seed"] for cell in cells] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [cell["method"] for cell in cells[:3]] == list(METHODS)


# ---- finished runs ------------------------------------------------------------------
def test_answers_are_those_of_the_last_round_and_are_kept(tmp_path, fits):  # noqa: F811
    found = evidence.outcome(run_of(**CELL), tmp_path)
    table = found.history.table().query("split == 'held_out' and metric == 'accuracy'")
    last = table[(table["round"] == 3) & (table["domain"] != "")]
    assert set(last["domain"]) == {"domain 2", TEST} == set(found.domain)
    for row in last.itertuples():
        mine = found.correct[found.domain == row.domain]
        assert mine.mean() == pytest.approx(row.value) and 0 < mine.mean() < 1
    again = evidence.outcome(run_of(**CELL), tmp_path)
    assert len(fits) == 1 and np.array_equal(again.correct, found.correct)


def test_lost_answers_are_made_again(tmp_path):
    first = evidence.outcome(run_of(**CELL), tmp_path)
    (lost,) = (tmp_path / "answers").iterdir()
    lost.unlink()
    assert evidence.outcome(run_of(**CELL), tmp_path, trains=False) is None
    again = evidence.outcome(run_of(**CELL), tmp_path)
    assert np.array_equal(first.correct, again.correct) and lost.exists()


def test_packed_runs_are_found(tmp_path, fits):  # noqa: F811
    cells = [CELL, CELL | {"seed": 2}]
    for cell in cells:
        evidence.outcome(run_of(**cell), tmp_path)
        evidence.pack(tmp_path)
    assert not [*tmp_path.glob("runs/*.zip"), *tmp_path.glob("answers/*")]
    assert len(fits) == 2
    for cell in cells:
        assert evidence.outcome(run_of(**cell), tmp_path, trains=False) is not None


# ---- tables -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        folder = tmp_path_factory.mktemp("evidence")
        evidence.train(folder)
    return folder


def test_training_leaves_nothing_to_train(trained, fits):  # noqa: F811
    evidence.train(trained)
    assert not fits


def test_comparisons_are_paired_by_seed(trained):
    groups = {"all": evidence.reported(TEST, trained)}
    table = evidence.comparisons(groups, trained).set_index(["method", "reference"])
    answers = {}
    for cell in groups["all"]:
        found = evidence.outcome(run_of(**cell), trained, trains=False)
        rows = found.correct[found.domain == TEST]
        answers.setdefault(cell["method"], []).append(rows)
    a, b = np.stack(answers["FISC"]), np.stack(answers["FedAvg"])
    row = table.loc[("FISC", "FedAvg")]
    expected = paired(100 * (a.mean(1) - b.mean(1)))
    assert row["num"] == 3
    assert row["mean"] == pytest.approx(expected.mean)
    assert row["low"] == pytest.approx(expected.low, nan_ok=True)
    assert row["images_low"] == pytest.approx(100 * over_images(a, b)[0])
    assert (table["p_holm"] >= table["p"]).all()


def test_without_runs_nothing_is_claimed(tmp_path):
    table = evidence.comparisons({"all": evidence.mechanism(TEST)}, tmp_path)
    found = evidence.verdicts(table)
    assert set(found["verdict"]) == {"not run fairly yet"}
    assert found["mean"].isna().all() and found["printed"].notna().all()


def test_a_claim_gets_the_verdict_of_its_comparison():
    row = {"group": "sketch, tuned lr", "method": "FISC", "reference": "CCST"}
    row |= vars(paired([6.0, 6.2, 6.4])) | {"images_low": 4.0, "images_high": 8.0}
    found = evidence.verdicts(pd.DataFrame([row | {"p_holm": 0.01}]))
    is_run = found["verdict"] != "not run fairly yet"
    (claim,) = found[is_run].to_dict("records")
    assert claim["claim"] == "FISC ahead of CCST" and "sketch" in claim["data"]
    assert (claim["verdict"], claim["mean"]) == ("holds", pytest.approx(6.2))
    assert claim["printed"] == pytest.approx(66.20 - 59.91)


def test_tables_are_written_from_kept_runs(trained, tmp_path, fits):  # noqa: F811
    evidence.tables(trained, tmp_path / "verdicts.csv")
    runs = pd.read_csv(trained / "runs.csv")
    assert len(runs) == len(runs.drop_duplicates(["method", "test", "lr", "seed"]))
    assert len(pd.read_csv(tmp_path / "verdicts.csv")) == len(evidence.claims())
    assert not fits
