"""What the wire is said to have carried: questions for the loss, and other parts."""

import time
from functools import partial

import numpy as np
import pytest

from fedlab_support import (
    FedAvg,
    FedBN,
    Federation,
    LocalTraining,
    Run,
    power_of_choice,
    small_cnn,
    uniform,
)
from fedlab_support.core.messages import nbytes
from fedlab_support.engines.local import LocalEngine
from fedlab_support.federation.partition import by_owner
from fedlab_support.run.traffic import LOSS_BYTES
from tests.support.methods.test_methods import linear
from tests.tiny import tiny_data

TRAINING = LocalTraining(lr=0.05, batch_size=16)


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=60)
    return Federation.build(data, by_owner(data))


def a_run(federation, select) -> Run:
    return Run(FedAvg(), federation, linear, TRAINING, select, workers=1)


def parts(run: Run, round: int, client: int) -> dict[tuple[str, str], int]:
    """Bytes by direction and part; no part may be written down twice."""
    rows = run.wire.query("round == @round and client == @client")
    assert not rows.duplicated(["direction", "part"]).any()
    return rows.set_index(["direction", "part"]).bytes.to_dict()


def without_question(weights: int) -> dict[tuple[str, str], int]:
    return {
        ("down", "weights"): weights,
        ("up", "weights"): weights,
        ("up", "num_examples"): 8,
    }


def asked(weights: int) -> dict[tuple[str, str], int]:
    return {("down", "loss_query"): weights, ("up", "loss_query"): LOSS_BYTES}


def test_candidates_get_the_model_and_answer_with_four_bytes(federation):
    candidates = []

    class Watched(power_of_choice):
        def __call__(self, roster, rng):
            usual = roster.ask_loss

            def ask(ids):
                candidates.append(set(ids))
                return usual(ids)

            object.__setattr__(roster, "ask_loss", ask)
            return super().__call__(roster, rng)

    run = a_run(federation, Watched(2, candidates=4))
    weights = nbytes(run.server.weights)
    assert weights == 4 * (64 * 4 + 4) and LOSS_BYTES == 4
    for round in (1, 2, 3):
        run.step()
        winners = {m.client for m in run.messages}
        assert len(winners) == 2 and winners < candidates[-1]
        for client in range(5):
            expected = asked(weights) if client in candidates[-1] else {}
            if client in winners:  # the model is there already
                expected |= without_question(weights)
                del expected["down", "weights"]
            assert parts(run, round, client) == expected
    # d S + 4 d in the question, m S + 8 m in the answer, as the specification counts
    per_round = run.wire.groupby("round").bytes.sum()
    assert set(per_round) == {4 * (weights + 4) + 2 * (weights + 8)}


def test_rounds_without_a_question_are_as_ever(federation):
    run = a_run(federation, uniform(2))
    weights = nbytes(run.server.weights)
    run.fit(2, progress=False)
    assert set(run.wire.part) == {"weights", "num_examples"}
    for client in (m.client for m in run.messages):
        assert parts(run, 2, client) == without_question(weights)


def test_who_was_asked_and_who_was_chosen_need_not_be_the_same(federation):
    """A question saves the weights only in its own round, and only to the asked."""

    def select(roster, rng):
        if roster.times_chosen.sum() == 0:
            assert set(roster.ask_loss([1, 3])) == {1, 3}
        return [3, 4]

    run = a_run(federation, select).step().step()
    weights = nbytes(run.server.weights)
    plain = without_question(weights)
    light = {key: value for key, value in plain.items() if key != ("down", "weights")}
    assert parts(run, 1, 1) == asked(weights)
    assert parts(run, 1, 3) == asked(weights) | light
    assert parts(run, 1, 4) == plain
    assert parts(run, 2, 3) == parts(run, 2, 4) == plain
    assert parts(run, 2, 1) == {}


def test_what_clients_predict_with_and_keep_is_not_sent_to_candidates(federation):
    method, net = FedBN(unseen="average"), partial(small_cnn, norm="batch")
    run = Run(method, federation, net, TRAINING, power_of_choice(1, 3), workers=1)
    run.step().step()
    sent = run.wire.query("part == 'loss_query' and direction == 'down'").bytes
    assert set(sent) == {nbytes(run.server.weights)} and run.server.memory


def test_who_is_asked_again_does_not_get_the_model_again(federation):
    def select(roster, rng):
        first, again = (roster.ask_loss(ids) for ids in ([0, 2], [2, 4]))
        assert first[2] == again[2]
        return [2]

    run = a_run(federation, select).step()
    weights = nbytes(run.server.weights)
    wire = run.wire.groupby(["client", "direction", "part"]).bytes.sum()
    assert wire[:, "down", "loss_query"].to_dict() == dict.fromkeys((0, 2, 4), weights)
    assert wire[:, "up", "loss_query"].to_dict() == {0: 4, 2: 8, 4: 4}


@pytest.mark.slow
def test_the_seconds_of_a_round_include_the_asking(federation, monkeypatch):
    usual = LocalEngine.evaluate

    def slow(self, requests, round):
        time.sleep(0.3)
        return usual(self, requests, round)

    run = a_run(federation, power_of_choice(1, candidates=3)).step()
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "evaluate", slow)
        run.step(evaluate=False)
    run.select = uniform(1)
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "evaluate", slow)
        run.step(evaluate=True)  # measuring is no part of the round
    seconds = run.history.table().query("metric == 'seconds'").value.to_numpy()
    assert seconds[1] >= 0.3
    assert seconds[2] < 0.3 and np.isfinite(seconds).all()
