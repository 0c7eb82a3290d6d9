"""Clients that hang, leave, or write where they must not; runs used by two threads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from fedlab_support import FedAvg, LocalTraining, Run, small_cnn
from fedlab_support.core.cancellation import Stopped, stopping_on
from tests.runs import distance, unequal

pytestmark = pytest.mark.usefixtures("one_thread")


def run_of(method, **settings) -> Run:
    training = LocalTraining(lr=0.05, batch_size=8)
    settings = {"workers": 2, "training": training, **settings}
    return Run(method, unequal(), small_cnn, **settings)


@dataclass(frozen=True)
class Hangs(FedAvg):
    """Client 2 never ends its step in round 2."""

    asleep: bool = False

    def loss(self, model, batch, context):
        """The usual loss, after a very long time."""
        if (context.client.id, context.received.round) == (2, 2):
            if self.asleep:
                time.sleep(20)
            while True:
                pass
        return super().loss(model, batch, context)


@dataclass(frozen=True)
class Exits(FedAvg):
    """Client 2 ends its process, as it thinks."""

    def loss(self, model, batch, context):
        """The usual loss, for the others."""
        if context.client.id == 2:
            raise SystemExit("enough")
        return super().loss(model, batch, context)


@dataclass(frozen=True)
class Writes(FedAvg):
    """A hook writes into what it was given."""

    hook: str = ""

    stackable: ClassVar[bool] = True

    def before_training(self, model, context):
        """Write into the broadcast, on request."""
        if self.hook == "before_training":
            next(iter(context.received.weights.values())).zero_()
        return {}

    def upload_spec(self, model):
        """Nothing is uploaded."""
        return {}

    def aggregate(self, server, messages):
        """Write into the server's weights or a message, on request."""
        if self.hook == "server":
            next(iter(server.weights.values())).add_(1)
        if self.hook == "message":
            next(iter(messages[0].weights.values())).add_(1)
        return super().aggregate(server, messages)

    def server_metrics(self, server, messages):
        """Write into the server's weights, on request."""
        if self.hook == "server_metrics":
            next(iter(server.weights.values())).add_(1)
        return {}

    def evaluation_state(self, server, private, client_id):
        """Write into the server's weights, on request."""
        if self.hook == "evaluation_state":
            next(iter(server.weights.values())).add_(1)
        return super().evaluation_state(server, private, client_id)


@dataclass(frozen=True)
class WritesAtSetup(FedAvg):
    """A hook of the set-up, or a check, writes into what it was given."""

    hook: str = ""

    def client_setup(self, model, context):
        """The client's number."""
        return {"me": torch.tensor([context.client.id])}

    after_training = client_setup

    def check_setup(self, tensors, model, most):
        """Write into client 2's upload, on request."""
        if self.hook == "check_setup" and tensors["me"] == 2:
            tensors["me"].add_(1)

    def check_upload(self, tensors, model):
        """Write into client 2's upload, on request."""
        if self.hook == "check_upload" and tensors["me"] == 2:
            tensors["me"].add_(1)

    def server_setup(self, uploads):
        """Write into an upload, on request."""
        if self.hook == "server_setup":
            uploads[0]["me"].add_(1)
        return {"total": sum(upload["me"] for upload in uploads.values())}

    def setup_reply(self, memory, client_id):
        """Write into the server's memory, on request."""
        if self.hook == "setup_reply":
            memory["total"].add_(1)
        return memory


class WritesBroadcast(FedAvg):
    """Only the local engine lets clients receive different things."""

    def client_broadcast(self, server, client_id):
        """Write into the server's weights."""
        next(iter(server.weights.values())).add_(1)
        return {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round 2.* left out")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("asleep", [False, True])
def test_a_client_that_hangs_is_left_out_and_the_round_goes_on(workers, asleep):
    run = run_of(Hangs(asleep=asleep), deadline=1.0, workers=workers)
    began = time.monotonic()
    run.fit(3, progress=False)
    assert time.monotonic() - began < 12
    events = run.history.events()
    assert events["client"].tolist() == [2] and events["round"].tolist() == [2]
    assert "hung past its deadline" in events["reason"].item()
    assert [message.client for message in run.messages] == [0, 1, 2, 3, 4]


@dataclass(frozen=True)
class Sleeps(FedAvg):
    """Clients that train longer than others, in seconds."""

    seconds: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0, 0.0)

    def before_training(self, model, context):
        """Sleep."""
        time.sleep(self.seconds[context.client.id])
        return {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round .* left out")
def test_a_client_that_hung_does_not_leave_its_model_behind():
    run = run_of(Sleeps(seconds=(0, 0, 0, 0, 0.9)), deadline=0.1)
    run.step().step().step()
    time.sleep(1)
    assert run.engine._learners.qsize() <= 3


@pytest.mark.slow
def test_no_client_of_a_cancelled_round_is_still_at_work_in_the_next():
    method, event = Sleeps(seconds=(0, 0, 0.1, 1.0, 1.0)), threading.Event()
    run = run_of(method, workers=3, deadline=60.0)
    threading.Timer(0.05, event.set).start()
    with stopping_on(event), pytest.raises(Stopped):
        run.step()
    assert run.engine._learners.qsize() == 3


def test_a_deadline_that_nobody_reaches_changes_nothing():
    plain, watched = run_of(FedAvg()), run_of(FedAvg(), deadline=600.0)
    for run in (plain, watched):
        run.fit(2, progress=False)
    assert distance(plain, watched) == 0


@pytest.mark.filterwarnings("ignore:round .* left out")
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("deadline", [None, 600.0])
def test_a_client_that_exits_leaves_out_itself_only(workers, deadline):
    run = run_of(Exits(), workers=workers, deadline=deadline)
    run.fit(2, progress=False)
    assert [message.client for message in run.messages] == [0, 1, 3, 4]
    assert "SystemExit: enough" in run.history.events()["reason"].iloc[0]


@pytest.mark.parametrize("engine", ["local", "stacked"])
@pytest.mark.parametrize(
    "hook",
    ["before_training", "server", "message", "server_metrics", "evaluation_state"],
)
def test_a_hook_that_writes_into_what_it_received_is_refused(hook, engine):
    run = run_of(Writes(hook=hook), engine=engine)
    with pytest.raises(RuntimeError, match=r"must not be changed in place.*clone\(\)"):
        run.step()


def test_a_broadcast_that_writes_into_the_server_is_refused():
    with pytest.raises(RuntimeError, match=r"must not be changed in place.*clone\(\)"):
        run_of(WritesBroadcast()).step()


@pytest.mark.parametrize("hook", ["server_setup", "setup_reply"])
def test_a_set_up_that_writes_into_what_it_received_is_refused(hook):
    with pytest.raises(RuntimeError, match=r"must not be changed in place.*clone\(\)"):
        run_of(WritesAtSetup(hook=hook)).step()


@pytest.mark.parametrize("hook", ["check_setup", "check_upload"])
def test_a_check_that_writes_into_an_upload_leaves_the_client_out(hook):
    method = WritesAtSetup(hook=hook)
    with pytest.warns(UserWarning, match="upload must not be changed in place"):
        run = run_of(method).step()
    assert 2 not in [message.client for message in run.messages]


def test_what_a_hook_made_itself_it_may_write_into():
    run_of(WritesAtSetup()).step()
    run_of(Writes()).fit(2, progress=False)


def test_a_run_is_stepped_by_one_thread_at_a_time():
    inside, go = threading.Event(), threading.Event()

    @dataclass(frozen=True)
    class Waits(FedAvg):
        def aggregate(self, server, messages):
            inside.set()
            assert go.wait(20)
            return super().aggregate(server, messages)

    run = run_of(Waits())
    first = threading.Thread(target=run.step)
    first.start()
    assert inside.wait(20)
    with pytest.raises(RuntimeError, match="another thread is stepping this run"):
        run.step()
    go.set()
    first.join()
    assert run.server.round == 1
    run.step()
    assert run.server.round == 2


def test_after_an_error_a_run_can_be_stepped_again():
    calls = []

    @dataclass(frozen=True)
    class FailsOnce(FedAvg):
        def aggregate(self, server, messages):
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return super().aggregate(server, messages)

    run = run_of(FailsOnce())
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.step()
    assert run.server.round == 1
    other = run_of(FedAvg()).step()
    names = run.server.weights
    assert all(torch.equal(names[n], other.server.weights[n]) for n in names)
