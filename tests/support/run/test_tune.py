"""Tuning tries equally many settings for each method, and never looks at the test."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedlab_support import tune
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_owner, leave_out
from fedlab_support.methods import FedAvg, FedProx
from fedlab_support.run.run import Run
from fedlab_support.training.settings import LocalTraining
from tests.support.run.test_study import fits, tiny_cnn  # noqa: F401
from tests.tiny import tiny_data

DATA = tiny_data(num=150, owners=6, domains=3)
HELD_OUT = DATA.domain_names[:2]
VALIDATION, TEST = HELD_OUT


def federation(held_out=HELD_OUT, val=0.0) -> Federation:
    return Federation.build(
        DATA, by_owner(DATA, among=leave_out(DATA, held_out)), held_out, val
    )


TWO_OUT = federation()
METHODS = {"FedAvg": FedAvg(), "FedProx": FedProx(mu=5.0)}


def build(method, seed, lr=0.1, mu=None, among=TWO_OUT) -> Run:
    chosen = METHODS[method] if mu is None else FedProx(mu=mu)
    training = LocalTraining(lr=lr, batch_size=16)
    return Run(chosen, among, tiny_cnn, training, seed=seed, workers=1)


LRS = [0.0, 0.05, 0.5]
SPACES = {"FedAvg": {"lr": LRS}, "FedProx": {"lr": LRS}}
quiet = partial(tune, progress=False)


def score_of(history, domain: str) -> float:
    table = history.table()
    rows = table.query(
        "split == 'held_out' and metric == 'accuracy' and domain == @domain"
    )
    return rows[rows["round"] == rows["round"].max()]["value"].item()


# ---- what is chosen -----------------------------------------------------------------
@pytest.mark.slow
def test_the_choice_is_the_best_on_the_validation_domain():
    seeds = (0, 1)
    found = quiet(build, SPACES, 3, VALIDATION, seeds=seeds)
    assert found.trials.groupby("method").size().tolist() == [6, 6]
    for method in METHODS:
        scores = [
            [
                score_of(build(method, seed, lr).fit(3, progress=False), VALIDATION)
                for seed in seeds
            ]
            for lr in LRS
        ]
        mine = found.trials[found.trials["method"] == method]
        assert mine["score"].tolist() == np.ravel(scores).tolist()
        best = LRS[int(np.mean(scores, 1).argmax())]
        assert found.choice[method] == {"lr": best}
        assert mine[mine["is_chosen"]]["lr"].tolist() == [best, best]
    assert found.trials["score"].nunique() > 2


@pytest.mark.slow
def test_the_test_domain_has_no_say(monkeypatch):
    """Whatever the last domain scores, the choice stays."""
    usual = quiet(build, SPACES, 2, VALIDATION)
    relabelled = DATA.labels.copy()
    is_test = DATA.domain == DATA.domain_names.index(TEST)
    relabelled[is_test] = (relabelled[is_test] + 1) % DATA.num_classes
    data = replace(DATA, labels=relabelled)
    parts = by_owner(data, among=leave_out(data, HELD_OUT))
    other = partial(build, among=Federation.build(data, parts, HELD_OUT))
    again = quiet(other, SPACES, 2, VALIDATION)
    assert again.trials.equals(usual.trials) and again.choice == usual.choice


def test_validation_samples_of_clients_can_choose():
    among = federation(HELD_OUT[1:], val=0.4)
    found = quiet(partial(build, among=among), SPACES, 2, "val")
    table = build("FedAvg", 0, 0.5, among=among).fit(2, progress=False).table()
    rows = table.query("split == 'val' and metric == 'accuracy' and round == 2")
    assert rows["client"].nunique() == 4
    assert found.trials["score"][2] == rows["value"].mean()


def test_the_first_of_equal_settings_is_chosen():
    neutral = {"FedProx": {"mu": [3.0, 1.0, 2.0]}}
    found = quiet(partial(build, lr=0.0), neutral, 1, VALIDATION)
    assert found.trials["score"].nunique() == 1
    assert found.choice == {"FedProx": {"mu": 3.0}}
    assert found.trials["is_chosen"].tolist() == [True, False, False]


# ---- equal budgets ------------------------------------------------------------------
UNEQUAL = {"FedAvg": {"lr": LRS}, "FedProx": {"lr": LRS, "mu": [0.1, 1.0]}}


def test_methods_that_would_be_tried_more_often_are_refused(fits):  # noqa: F811
    with pytest.raises(ValueError, match=r"'FedAvg': 3, 'FedProx': 6.*budget=3"):
        quiet(build, UNEQUAL, 1, VALIDATION)
    with pytest.raises(ValueError, match=r"budget=4 settings of FedAvg, found 3"):
        quiet(build, UNEQUAL, 1, VALIDATION, budget=4)
    assert not fits


def test_a_budget_draws_the_same_settings_every_time():
    found = quiet(build, UNEQUAL, 1, VALIDATION, budget=3)
    assert found.trials.groupby("method").size().tolist() == [3, 3]
    tried = found.trials[found.trials["method"] == "FedProx"][["lr", "mu"]]
    assert len(tried.drop_duplicates()) == 3
    again = quiet(build, UNEQUAL, 1, VALIDATION, budget=3)
    assert again.trials.equals(found.trials)


# ---- what is refused ----------------------------------------------------------------
def test_the_test_domain_is_refused_before_any_training(fits):  # noqa: F811
    with pytest.raises(ValueError, match=f"'{TEST}' is the domain that is tested on"):
        quiet(build, SPACES, 1, TEST)
    one_out = partial(build, among=federation(HELD_OUT[:1]))
    with pytest.raises(ValueError, match="oracle selection"):
        quiet(one_out, SPACES, 1, VALIDATION)
    assert not fits


@pytest.mark.parametrize(
    ("validate_on", "spaces", "message"),
    [
        ("val", SPACES, "clients with validation samples, found none"),
        (DATA.domain_names[2], SPACES, "validate_on must be 'val' or a held-out"),
        (VALIDATION, {}, "at least one method"),
        (VALIDATION, {"FedAvg": {}}, "needs a setting of FedAvg"),
        (VALIDATION, {"FedAvg": {"lr": []}}, "'lr' needs a list of at least one"),
        (VALIDATION, {"FedAvg": {"lr": 0.1}}, "'lr' needs a list"),
        (VALIDATION, {"FedAvg": {"lr": [0.1, 0.1]}}, "'lr' has a value twice"),
        (VALIDATION, {"FedAvg": {"lr": [0.1], "seed": [1]}}, "'seed'"),
    ],
)
def test_what_cannot_be_tuned_is_refused(validate_on, spaces, message):
    with pytest.raises(ValueError, match=message):
        quiet(build, spaces, 1, validate_on)


def test_a_seed_counts_once():
    with pytest.raises(ValueError, match="'seeds' has a value twice"):
        quiet(build, SPACES, 1, VALIDATION, seeds=(0, 1, 0))


def test_a_setting_that_changes_nothing_is_refused():
    def deaf(method, seed, lr) -> Run:
        return build(method, seed)

    with pytest.raises(ValueError, match="'lr' of grid changes nothing"):
        quiet(deaf, SPACES, 1, VALIDATION)


# ---- keeping ------------------------------------------------------------------------
@pytest.mark.slow
def test_finished_trials_are_read_and_others_trained(tmp_path, fits):  # noqa: F811
    first = {"FedAvg": {"lr": LRS[:2]}}
    quiet(build, first, 1, VALIDATION, folder=tmp_path)
    assert len(fits) == 2
    found = quiet(build, SPACES, 1, VALIDATION, folder=tmp_path)
    assert [run.training.lr for run in fits[2:]] == [0.5, *LRS]
    again = quiet(build, SPACES, 1, VALIDATION, folder=tmp_path)
    assert len(fits) == 6 and again.trials.equals(found.trials)
