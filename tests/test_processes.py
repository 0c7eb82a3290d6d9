"""Visits in worker processes: the same bits, whatever happens to the processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlab_course.leaderboard import AUGMENTATIONS, entries, gap, run_of
from fedlab_support import FedAvg, Federation, LocalTraining, Run, dirichlet, uniform
from fedlab_support.core.cancellation import Stopped, stopping_on
from fedlab_support.core.messages import Message
from fedlab_support.engines import (
    Failure,
    Faults,
    ProcessEngine,
    open_engine,
    processes,
)
from fedlab_support.engines.local import intra_op_threads
from fedlab_support.engines.processes import deal, lightened, restored
from fedlab_support.training.local import PrivateState
from tests import crash
from tests.benchmarks.jobs import MLP, resnet18
from tests.tiny import tiny_data

PROTOCOLS = ("digit_domains", "digit_types")
"""What every method has a place in: networks with convolutions, and transformers."""

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.usefixtures("one_thread")
leaves_out = pytest.mark.filterwarnings("ignore:.*is left out of the r")


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=120, owners=5)
    return Federation.build(data, dirichlet(data, 5, alpha=0.8, rng=3), val=0.2)


def a_run(federation, method=None, engine="processes", **settings) -> Run:
    training = LocalTraining(lr=0.05, batch_size=7)
    settings = {"workers": 2, "engine": engine, **settings}
    return Run(method or FedAvg(), federation, MLP, training, **settings)


def fitted(run: Run, rounds: int = 3) -> Run:
    run.fit(rounds, progress=False)
    return run


def assert_same(run: Run, usual: Run) -> None:
    assert crash.trace(run) == crash.trace(usual)


# ---- the same results ---------------------------------------------------------------
@leaves_out
@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"faults": Faults(0.2, 0.1, 0.1, 0.1)}])
def test_every_hook_memory_and_failures_are_as_in_threads(changes):
    """Moved weights, BatchNorm, dropout, private state, refused introductions."""
    usual = fitted(crash.build(**changes), 5)
    run = fitted(crash.build(engine="processes", workers=2, **changes), 5)
    assert isinstance(getattr(run.engine, "engine", run.engine), ProcessEngine)
    assert_same(run, usual)
    assert usual.history.events()["reason"].nunique() > 1


@pytest.mark.slow
@pytest.mark.parametrize("entry", entries(augmentations=list(AUGMENTATIONS)))
def test_every_method_is_as_in_threads(entry):
    name = next(name for name in PROTOCOLS if not gap(entry, name))
    usual, run = run_of(entry, name), run_of(entry, name)
    run.engine = open_engine("processes", run.job, workers=2, faults=None)
    start = run.server.weights
    assert_same(run.step().step(), usual.step().step())
    assert any(not v.equal(start[n]) for n, v in run.server.weights.items())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_processes_does_not_matter(federation, workers):
    run = a_run(federation, select=uniform(3), workers=workers)
    usual = a_run(federation, select=uniform(3), engine="local")
    assert_same(fitted(run), fitted(usual))
    start = a_run(federation, engine="local").server.weights
    assert not any(v.equal(start[n]) for n, v in run.server.weights.items())


@pytest.mark.slow
def test_methods_that_only_this_process_knows_can_be_sent(federation):
    @dataclass(frozen=True)
    class Shy(FedAvg):
        """Half the loss, as a notebook might define it."""

        def loss(self, model, batch, context):
            context.log("process", torch.tensor(float(os.getpid())))
            return super().loss(model, batch, context) / 2

    run, usual = (a_run(federation, Shy(), e).step() for e in ("processes", "local"))
    for name, value in usual.server.weights.items():
        assert value.equal(run.server.weights[name])
    table = run.history.table().query("metric == 'process'")
    # float32 holds process numbers: they are below 2^24
    assert len(table) == 5 and os.getpid() not in set(table["value"])


@pytest.mark.slow
def test_runs_take_turns_in_the_same_processes(federation):
    """More of them than a process remembers."""
    seeds = range(processes.MOST_JOBS + 2)
    runs = [a_run(federation, seed=seed) for seed in seeds]
    for _ in range(3):
        for run in runs:
            run.step()
    for seed in (0, 1, processes.MOST_JOBS + 1):
        usual = a_run(federation, engine="local", seed=seed)
        assert_same(runs[seed], usual.step().step().step())
    assert len({id(run.engine._pool) for run in runs}) == 1


def wait_until(is_so, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


# ---- processes that die -------------------------------------------------------------
@dataclass(frozen=True)
class Deadly(FedAvg):
    """Client 2 ends its process in round 2, as often as ``folder`` lacks files."""

    folder: str = ""
    times: int = 1

    def loss(self, model, batch, context):
        died = len(os.listdir(self.folder))
        if (context.client.id, context.received.round) == (2, 2) and died < self.times:
            Path(self.folder, str(died)).touch()
            os._exit(1)
        return super().loss(model, batch, context)


@pytest.mark.slow
def test_a_process_that_dies_once_costs_nothing_but_time(federation, tmp_path):
    usual = fitted(a_run(federation, engine="local"))
    run = fitted(a_run(federation, Deadly(folder=str(tmp_path))))
    assert len(list(tmp_path.iterdir())) == 1
    assert crash.bits(run.server.weights) == crash.bits(usual.server.weights)
    assert run.history.events().empty


@leaves_out
@pytest.mark.slow
def test_visits_whose_process_dies_every_time_are_left_out(federation, tmp_path):
    run = fitted(a_run(federation, Deadly(folder=str(tmp_path), times=processes.ASKED)))
    assert len(list(tmp_path.iterdir())) == processes.ASKED
    told = run.history.events()
    assert [*zip(told["round"], told["client"], strict=True)] == [(2, 2)]
    assert told["reason"].str.contains("TerminatedWorkerError").all()
    assert run.server.round == 3 and len(run.messages) == 5


# ---- the end of a round -------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_stopped_run_goes_on_as_if_nothing_had_been(federation, is_busy):
    usual = fitted(a_run(federation, engine="local"))
    run, event = a_run(federation), threading.Event()
    if is_busy:
        run.engine._submit(_sleep, 1.0)
        run.engine._submit(_sleep, 1.0)
        threading.Timer(0.3, event.set).start()
    else:
        event.set()
    with stopping_on(event), pytest.raises(Stopped):
        run.step()
    assert run.server.round == 0 and run.times_chosen.sum() == 0
    assert_same(fitted(run), usual)


def _sleep(name: str, seconds: float) -> None:
    time.sleep(seconds)


@pytest.fixture
def interrupts():
    """They reach this process, which a shell may have started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interrupts")
def test_an_interrupt_ends_what_hangs_and_the_run_goes_on(federation):
    usual = fitted(a_run(federation, engine="local"))
    run = a_run(federation)
    began = time.monotonic()
    for _ in range(2):
        run.engine._submit(_sleep, 60.0)
    hanging = list(run.engine._pool._processes)
    assert hanging
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.step()
    wait_until(lambda: not any(map(psutil.pid_exists, hanging)), seconds=5)
    assert_same(fitted(run), usual)
    assert time.monotonic() - began < 50


SCRIPT = """
import signal, sys, time, torch
from tests import crash
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    run = crash.build(engine="processes", workers=2).step()
    print(*run.engine._pool._processes, flush=True)
    if sys.argv[1:] == ["wait"]:
        time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["end", "interrupt", "kill"])
def test_nothing_is_left_of_a_process_that_ends_or_dies(how, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "" if how == "end" else "wait"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, text=True)
    with done:
        workers = done.stdout.readline().split()
        assert len(workers) == 2
        if how != "end":
            done.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
        done.wait(30)
    wait_until(lambda: not any(psutil.pid_exists(int(w)) for w in workers))


# ---- what cannot be sent ------------------------------------------------------------
@dataclass(frozen=True)
class Locked(FedAvg):
    """A lock is of one process."""

    lock: object = field(default_factory=threading.Lock)


def test_what_cannot_be_pickled_is_refused_before_training(federation):
    expected = "can be sent to other processes.*lock.*use engine='local'"
    with pytest.raises(ValueError, match=expected):
        a_run(federation, Locked())


@pytest.mark.slow
def test_what_processes_cannot_import_ends_the_round_at_once(federation, monkeypatch):
    ghost = ModuleType("ghost")
    ghost.Haunted = type("Haunted", (FedAvg,), {"__module__": "ghost"})
    monkeypatch.setitem(sys.modules, "ghost", ghost)
    run = a_run(federation, ghost.Haunted())
    with pytest.raises(RuntimeError, match="use engine='local'") as told:
        run.step()
    assert "No module named 'ghost'" in str(told.value.__cause__.__cause__)
    assert run.server.round == 0


@pytest.mark.slow
def test_networks_of_timm_can_be_sent():
    """Beside a CPU build of torch, processes must prepare torchvision first."""
    data = tiny_data(num=16, owners=2, channels=3, size=32, test_share=0)
    federation = Federation.build(data, [np.arange(10), np.arange(10, 16)])
    training, runs = LocalTraining(lr=0.05), {}
    for engine in ("local", "processes"):
        settings = {"engine": engine, "workers": 2, "select": uniform(1)}
        run = Run(FedAvg(), federation, resnet18, training, **settings)
        runs[engine] = run.step()
    assert crash.bits(runs["processes"].server.weights) == crash.bits(
        runs["local"].server.weights
    )


def test_a_gpu_is_for_the_other_engines(federation):
    job = a_run(federation, engine="local").job
    elsewhere = SimpleNamespace(store=SimpleNamespace(device=torch.device("cuda")))
    with pytest.raises(ValueError, match="train on the cpu, found a run on cuda"):
        ProcessEngine(2).open(replace(job, federation=elsewhere))


# ---- dealing and packing ------------------------------------------------------------
@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 8))
def test_shares_are_all_clients_once_and_about_as_large(sizes, num):
    large_first = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    shares = deal(large_first, np.array(sizes), num)
    assert sorted(chain(*shares)) == list(range(len(sizes)))
    assert len(shares) == min(num, len(sizes)) and all(shares)
    loads = [sum(sizes[i] for i in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6.0).view(2, 3).T,
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)[:, :, 1:],
        torch.rand(1, 3, 1, 5).to(memory_format=torch.channels_last),
        torch.tensor(3),
        torch.zeros(0, 4),
        torch.rand(1, 4).expand(3, 4),
        torch.rand(4).bfloat16(),
        torch.tensor([True, False]),
        torch.rand(5).requires_grad_(),
    ],
    ids=lambda value: f"{tuple(value.shape)} {value.dtype}",
)
def test_tensors_arrive_as_they_were(value):
    make, given, *state = processes.reduced(value)
    found = make(*given)
    for each in state:
        found.__setstate__(each)
    assert type(found) is torch.Tensor and found.dtype == value.dtype
    assert found.equal(value) and found.requires_grad == value.requires_grad
    is_dense = value.numel() * value.element_size() == value.untyped_storage().nbytes()
    assert found.stride() == value.stride() or not is_dense
    found.detach().zero_()  # may be written to


def test_a_thread_that_receives_tensors_gets_no_team_of_its_own():
    """As the manager of the processes is; two teams would share the cores."""
    make, given = processes.reduced(torch.rand(1000, 1000))
    teams = []

    def receive():
        for work in (lambda: make(*given), lambda: make(*given).exp()):
            before = psutil.Process().num_threads()
            work()
            teams.append(psutil.Process().num_threads() - before)

    with intra_op_threads(2):
        thread = threading.Thread(target=receive)
        thread.start()
        thread.join()
    assert teams[0] == 0
    assert teams[1] == 1  # what an operation of PyTorch would have done


def test_weights_side_by_side_are_the_same_tensors_again():
    kept = PrivateState()
    answers = {3: Failure("flat battery")}
    for i, scale in ((5, 1.0), (4, 2.0)):
        weights = {"w": scale * torch.rand(3, 2), "n": torch.tensor(i)}
        report = {"r": torch.rand(i)}
        answers[i] = Message(i, 7, weights, report, {"loss": scale}), kept
    light, rows = lightened(dict(answers))
    assert {name: len(values) for name, values in rows.items()} == {"w": 2, "n": 2}
    assert not any(light[i][0].weights for i in (4, 5))
    found = restored(light, rows)
    assert list(found) == [3, 5, 4] and found[3] == answers[3]
    for i in (4, 5):
        assert found[i][1] is kept
        for part in ("weights", "upload"):
            own, said = getattr(found[i][0], part), getattr(answers[i][0], part)
            assert crash.bits(own) == crash.bits(said)
        assert found[i][0].metrics == answers[i][0].metrics


@pytest.mark.parametrize(
    "odd",
    [
        {"w": torch.rand(2, 3)},
        {"w": torch.rand(3, 2).double()},
        {"w": torch.rand(2, 3).T},
        {"v": torch.rand(3, 2)},
        {},
    ],
)
def test_weights_that_are_unlike_others_travel_as_they_are(odd):
    trees = {"w": torch.rand(3, 2)}, odd
    answers = {i: (Message(i, 1, t), PrivateState()) for i, t in enumerate(trees)}
    light, rows = lightened(dict(answers))
    assert light == answers and rows is None and restored(light, rows) is light
    nobody = {0: Failure("asleep")}
    assert lightened(dict(nobody)) == (nobody, None)
