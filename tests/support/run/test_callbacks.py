"""Callbacks: called after each round, and able to stop a fit."""

from functools import partial

import numpy as np
import pytest
import torch

import fedlab_support as fl
from tests.runs import a_run, distance, fitted, unequal


def until(round: int, run: fl.Run) -> bool:
    """Stops after a round."""
    return run.server.round >= round


def at_once(run: fl.Run) -> np.bool_:
    """Stops, with what comparisons of a table return."""
    return np.bool_(True)


def rounds_of(run: fl.Run) -> list[int]:
    """The evaluated rounds."""
    return sorted({row[0] for row in run.history.measured if row[1] == "test"})


def test_they_see_every_round_with_its_messages_and_change_no_bit():
    seen, run = [], a_run(fl.FedAvg(), unequal())
    watch = lambda run: seen.append((run.server.round, len(run.messages)))  # noqa: E731
    run.fit(3, progress=False, callbacks=[watch, lambda run: 1])
    assert seen == [(1, 5), (2, 5), (3, 5)]
    assert distance(run, fitted(fl.FedAvg(), unequal(), rounds=3)) == 0


def test_true_makes_a_round_the_last_all_are_called_and_it_is_evaluated():
    seen, run = [], a_run(fl.FedAvg(), unequal(), evaluate_every=4)
    run.fit(9, progress=False, callbacks=[partial(until, 3), seen.append])
    assert run.server.round == len(seen) == 3
    assert rounds_of(run) == [0, 3]
    run.fit(3, progress=False)
    assert rounds_of(run) == [0, 3, 4, 6]
    run.fit(3, progress=False, callbacks=[at_once])
    assert rounds_of(run) == [0, 3, 4, 6, 7]


@pytest.mark.parametrize("yes", [np.bool_(True), torch.tensor(True)])
def test_a_flag_of_numpy_or_torch_stops_and_a_number_does_not(yes):
    run = a_run(fl.FedAvg(), unequal())
    run.fit(2, progress=False, callbacks=[lambda run: yes])
    assert run.server.round == 1
    run.fit(2, progress=False, callbacks=[lambda run: torch.tensor(1.0)])
    assert run.server.round == 3


@pytest.mark.parametrize("last", [4, 6])
def test_a_round_that_was_due_is_evaluated_once(last):
    run = a_run(fl.FedAvg(), unequal(), evaluate_every=4)
    run.fit(6, progress=False, callbacks=[partial(until, last)])
    rows = [r[:5] for r in run.history.measured if r[:2] == (last, "test")]
    assert len(rows) == len(set(rows)) > 0


def test_a_stopped_run_that_is_started_again_stays_where_it_is(tmp_path):
    stop = [partial(until, 2)]
    for _ in range(2):
        run = a_run(fl.FedAvg(), unequal())
        run.fit(9, progress=False, checkpoint=tmp_path, every=5, callbacks=stop)
        assert run.server.round == 2
    assert run.messages == []  # nothing was trained the second time


@pytest.mark.parametrize("wrong", [3, print, [3], None])
def test_what_is_no_list_of_functions_is_refused(wrong):
    with pytest.raises(ValueError, match="callbacks must be a list of functions"):
        a_run(fl.FedAvg(), unequal()).fit(1, progress=False, callbacks=wrong)
