"""A round that is given up leaves the run as it was before it."""

import threading
from dataclasses import dataclass

import pytest
import torch

from fedlab_support.core.cancellation import Stopped, stop_check, stopping_on
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_owner
from fedlab_support.methods import FedAvg
from fedlab_support.models import small_cnn
from fedlab_support.run.run import Run
from tests.tiny import tiny_data


@dataclass(frozen=True)
class Interrupted(FedAvg):
    """The first step of all asks for the end of the round."""

    def loss(self, model, batch, context):
        EVENT.set()
        return super().loss(model, batch, context)


EVENT = threading.Event()


def a_run(method, workers: int) -> Run:
    data = tiny_data(120, size=12)
    federation = Federation.build(data, by_owner(data))
    return Run(method, federation, small_cnn, workers=workers)


def test_nobody_is_stopped_outside_a_block_or_before_the_event():
    event = threading.Event()
    stop_check()()
    with stopping_on(event):
        inside = stop_check()
        inside()
        event.set()
        with pytest.raises(Stopped):
            inside()
    stop_check()()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_goes_on_as_if_nothing_had_been(workers, one_thread):
    stopped, plain = a_run(Interrupted(), workers), a_run(FedAvg(), workers)
    EVENT.clear()
    with stopping_on(EVENT), pytest.raises(Stopped):
        stopped.step()
    assert stopped.server.round == 0
    assert stopped.times_chosen.sum() == 0
    assert stopped.wire.empty
    for run in (stopped, plain):
        run.fit(2, progress=False)
    for name, value in plain.server.weights.items():
        assert torch.equal(stopped.server.weights[name], value)
    rows = [
        run.history.table().query("metric != 'seconds'") for run in (stopped, plain)
    ]
    assert rows[0]["value"].tolist() == rows[1]["value"].tolist()
