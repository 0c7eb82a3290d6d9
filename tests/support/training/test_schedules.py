"""Schedules: the learning rate of a round is a function of its number, everywhere."""

import math
from dataclasses import dataclass, replace

import pytest

import fedlab_support as fl
from fedlab_support import FedAvg, LocalTraining, study
from fedlab_support.engines.flower.records import identity
from fedlab_support.training.schedules import Cosine, Step
from tests.runs import TRAINING, a_run, distance, unequal

RATES: list[tuple[int, float]] = []


@dataclass(frozen=True)
class Watched(FedAvg):
    """FedAvg that writes down the rate of each visit."""

    def optimiser(self, named_params, training):
        """The usual one."""
        RATES.append(training.lr)
        return super().optimiser(named_params, training)


def halved(round: int) -> float:
    """1, 1/2, 1/4, …"""
    return 0.5 ** (round - 1)


def fitted(schedule, rounds=3, **settings):
    """A run after some rounds."""
    training = replace(TRAINING, schedule=schedule)
    settings = {"model": fl.small_cnn, "method": FedAvg(), **settings}
    run = a_run(federation=unequal(), training=training, **settings)
    run.fit(rounds, progress=False)
    return run


def test_factors_of_the_ready_schedules():
    assert [Step(2)(r) for r in range(1, 6)] == [1, 1, 0.1, 0.1, 0.1**2]
    cosine = [Cosine(4, last=0.2)(r) for r in (1, 2, 3, 5, 6, 99)]
    half = math.sqrt(0.5)
    assert cosine == pytest.approx([1, 0.6 + 0.4 * half, 0.6, 0.2, 0.2, 0.2])
    assert Cosine(4)(5) == 0
    with pytest.raises(ValueError, match="rounds must be a whole number ≥ 1, found 0"):
        Cosine(0)


def test_every_client_has_the_rate_of_the_round_even_after_missing_some():
    RATES.clear()
    run = fitted(halved, 4, method=Watched(), select=fl.uniform(1))
    assert RATES == [0.05, 0.025, 0.0125, 0.00625]
    assert len(set(run.times_chosen)) > 1


@pytest.mark.parametrize("schedule", [Step(1, factor=1.0), Cosine(3, last=1.0)])
def test_a_factor_of_one_changes_no_bit(schedule):
    assert distance(fitted(schedule), fitted(None)) == 0


def test_a_factor_of_zero_keeps_the_weights():
    ended = fitted(Step(2, factor=0.0), rounds=5)
    assert distance(ended, fitted(None, rounds=2)) < 1e-7
    assert distance(ended, fitted(None, rounds=5)) > 1e-3


@pytest.mark.parametrize("schedule", [Step(1, factor=0.3), Cosine(3), halved])
def test_the_stacked_engine_and_other_numbers_of_workers_agree(schedule):
    local = fitted(schedule)
    assert distance(local, fitted(schedule, workers=3)) == 0
    assert distance(local, fitted(schedule, engine="stacked")) < 1e-6
    assert distance(local, fitted(None, engine="stacked")) > 1e-3


def test_a_resumed_run_goes_on_with_its_rate(tmp_path):
    whole = fitted(halved)

    def resumed(rounds: int) -> fl.Run:
        training = replace(TRAINING, schedule=halved)
        run = a_run(FedAvg(), unequal(), fl.small_cnn, training)
        run.fit(rounds, progress=False, checkpoint=tmp_path)
        return run

    resumed(2)
    run = resumed(3)
    assert len(run.messages) == 5  # of the third round alone
    assert distance(run, whole) == 0


def test_only_a_schedule_is_described_and_by_a_name_of_every_process():
    plain, own = fitted(None, 1).describe(), fitted(halved, 1).describe()
    assert "schedule" not in plain and "schedule" not in plain["training"]
    assert own == plain | {"schedule": "halved"}
    ready = fitted(Step(2), 1)
    assert ready.describe()["schedule"] == "Step(every=2, factor=0.1)"
    assert "Step(every=2" in repr(ready)
    assert " at 0x" not in identity(fitted(halved, 1).job)["training"]
    assert identity(ready.job) != identity(fitted(Step(3), 1).job)


def test_a_nameless_schedule_is_not_kept(tmp_path):
    def build(seed: int) -> fl.Run:
        training = LocalTraining(schedule=lambda round: 1 / round)
        return fl.Run(FedAvg(), unequal(), fl.small_cnn, training, seed=seed)

    with pytest.raises(ValueError, match=r"its schedule is only known as .*<lambda>"):
        study(build, {"seed": [0]}, 1, tmp_path, progress=False)
    with pytest.raises(ValueError, match="its schedule is only known as"):
        build(0).fit(1, progress=False, checkpoint=tmp_path)


@pytest.mark.parametrize("wrong", ["cosine", 0.1, Cosine, {"every": 3}])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(ValueError, match="schedule must be None or a function"):
        LocalTraining(schedule=wrong)


@pytest.mark.parametrize("factor", [None, -1, float("nan"), "0.1"])
def test_what_is_no_factor_is_refused_in_the_first_round(factor):
    with pytest.raises(ValueError, match=r"factor of lr ≥ 0 .* for round 1"):
        fitted(lambda round: factor)


# ---- read-only ----------------------------------------------------------------------
def test_the_training_of_a_run_cannot_be_replaced():
    run = fitted(None, 1)
    with pytest.raises(AttributeError, match="training"):
        run.training = LocalTraining(lr=1.0)
    assert run.training == TRAINING


def test_a_hook_cannot_replace_the_training_of_its_context():
    class Faster(FedAvg):
        """Trains with other settings than those of the run."""

        stackable = True

        def before_training(self, model, context):
            """Refused in every engine alike."""
            context.training = replace(context.training, lr=9.0)
            return {}

    for engine in ("local", "stacked"):
        with pytest.raises(AttributeError, match="read-only; override the hook"):
            fitted(None, 1, method=Faster(), engine=engine)
