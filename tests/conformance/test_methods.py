"""What every method must satisfy; a method of your own, too:

    python -m pytest tests/conformance --method my_module:MyMethod

``my_module`` must be importable (from the working directory, say). The class is tested
with its default settings on images with classes, with ``small_cnn``.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch

from fedlab_support import Faults, FedAvg, Federation, Run
from fedlab_support.core.checks import ranges
from fedlab_support.engines.contract import Job
from fedlab_support.methods import catalogue
from tests.conformance.cases import CASES, Case, brief
from tests.paths import ROOT
from tests.poison import Poisoner
from tests.probe import LookTwice
from tests.runs import bytes_by_part, distance, resumes, same_to_the_bit, unequal
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")

CANDIDATES = (math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.5, 1.5, 2, 1e9, 10**9)
CANDIDATES += (True, None, "no", "0.1", (), [1], {})
"""Values of which every declared range refuses some."""


@pytest.fixture(scope="module")
def federation():
    """Five clients of 5 to 30 training images; the first has none of class 0."""
    return unequal(num=110, channels=3, val=0.25)


def fitted(case: Case, federation, rounds: int = 2, **settings) -> Run:
    settings = {"workers": 1, **settings}
    method = settings.pop("method", case.method)
    run = Run(method, federation, case.model, case.training, **settings)
    run.fit(rounds, progress=False)
    return run


@pytest.fixture(scope="module")
def usual(case, federation):
    """The run of a case that tests only read; the first that asks trains it."""
    return cache(partial(fitted, brief(case), federation))


@pytest.fixture(scope="module")
def average(federation):
    """FedAvg by weighting, model, training and rounds, for tests that only read it."""

    @cache
    def trained(weighting, model, training, rounds) -> Run:
        case = Case(FedAvg(weighting), model=model, training=training)
        return fitted(case, federation, rounds)

    return trained


def test_every_method_is_tested():
    assert CASES.keys() == catalogue().keys()


def test_impossible_settings_are_refused_by_name(case):
    for name, (kind, limits) in ranges(type(case.method)).items():
        impossible = [v for v in CANDIDATES if not limits.contains(v, kind)]
        assert len(impossible) >= 5, f"{name} may be nearly anything"
        for value in impossible:
            with pytest.raises(ValueError, match=f"^{name} must be .*found"):
                replace(case.method, **{name: value})


def test_every_number_flag_and_text_has_a_declared_range(case, pytestconfig):
    if pytestconfig.getoption("--method"):
        pytest.skip("a rule of this house")
    declared = ranges(type(case.method))
    for name, value in vars(case.method).items():
        assert name in declared or not isinstance(value, bool | int | float), name
    texts = {name for name, (kind, _) in declared.items() if "str" in kind.split(" | ")}
    for name in texts - {"network"}:  # which may be a file
        assert declared[name][1].one_of, name


@pytest.mark.slow
def test_neither_workers_nor_the_order_of_visits_matter(form, federation, monkeypatch):
    form = brief(form)
    alone = fitted(form, federation)
    monkeypatch.setattr(Job, "large_first", lambda job, ids: sorted(ids))
    assert same_to_the_bit(alone, fitted(form, federation, workers=3))


@pytest.mark.slow
def test_a_cache_that_vanishes_changes_nothing(case, federation):
    """What stays in it from round to round does not depend on the received weights."""
    usual, forgetful = (fitted(brief(case), federation, rounds=1) for _ in range(2))
    forgetful.engine.caches.limit = -1
    for run in (usual, forgetful):
        run.fit(2, progress=False)
    assert same_to_the_bit(usual, forgetful)


@pytest.mark.slow
def test_a_seed_decides_everything(case, federation, usual):
    again, other = (fitted(brief(case), federation, seed=seed) for seed in (0, 1))
    assert same_to_the_bit(usual(), again)
    assert distance(usual(), other) > 0


@pytest.mark.slow
def test_the_neutral_setting_is_fedavg(case, federation, average):
    if case.neutral is None:
        pytest.skip("has no setting at which it is FedAvg")
    how = case.neutral.weighting, case.model, case.training
    first, plain = (average(*how, rounds) for rounds in (1, 2))
    neutral = fitted(case, federation, method=case.neutral)
    assert distance(plain, first) > 1e-3, "no move"
    assert distance(plain, neutral) <= case.near


@pytest.mark.slow
def test_the_loss_falls(case, federation):
    """Of the task, where a method logs it: other terms may join in later rounds."""
    table = fitted(case, federation, rounds=8, evaluate_every=8).history.table()
    train = table.query("split == 'train'").groupby(["metric", "round"])["value"].mean()
    mean = train["task_loss" if "task_loss" in train else "loss"]
    assert mean.iloc[-1] < 0.8 * mean.iloc[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round . client 3 is left out")
def test_a_poisoner_changes_nothing(case, federation):
    """It is left out in every round, as if it had failed."""
    ways = ["upload", "1e10", "1e38", "nan", "negative"]  # some upload once only
    case, rarely = brief(case), {"evaluate_every": len(ways)}
    run = fitted(case, federation, rounds=1, **rarely)
    if not any(name.endswith("running_var") for name in run.server.weights):
        ways.remove("negative")
    sent = [value for message in run.messages for value in message.upload.values()]
    if not any(value.is_floating_point() for value in sent):
        ways.remove("upload")
    poison, absent = (
        fitted(case, federation, len(ways), engine=Poisoner(3, *each), **rarely)
        for each in (ways, ["absent"])
    )
    assert distance(poison, absent) == 0
    assert len(poison.history.events()) == len(ways)


@pytest.mark.slow
def test_only_what_is_declared_is_sent(case, usual):
    run, method = usual(), case.method
    private = set(method.private_names(run.model))
    received = run.server.weights.keys()
    assert not private & received
    spec = method.upload_spec(run.job.model)
    for message in run.messages:
        assert message.weights.keys() == received
        if spec is not None:
            assert message.upload.keys() == spec.keys()
    sent = {part for part, size in bytes_by_part(run).items() if size}
    expected = {("down", "weights"), ("up", "weights"), ("up", "num_examples")}
    for part, hooks in (
        (("up", "setup_upload"), ("client_setup",)),
        (("down", "setup_reply"), ("setup_reply",)),
        (("down", "shared"), ("client_broadcast", "aggregate")),
        (("up", "upload"), ("before_training", "after_training")),
    ):
        if any(map(method.overrides, hooks)):
            expected.add(part)
    assert sent <= expected


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_bits(form, federation, tmp_path):
    training = brief(form).training
    settings = {"model": form.model, "training": training, "workers": 1}
    assert resumes(tmp_path, form.method, federation, **settings)


@pytest.mark.slow
def test_a_second_look_at_a_batch_changes_nothing(form, federation):
    """Draws, memory, statistics and what is logged are replayed."""

    def once(self, named, training):
        return torch.optim.SGD([p for _, p in named], lr=training.lr)

    def twice(self, named, training):
        return LookTwice(named, training.lr, radius=0.0)

    def looking(optimiser):
        kind = type("Looks", (type(form.method),), {"optimiser": optimiser})
        method = kind(**vars(form.method))
        return fitted(brief(form), federation, method=method, evaluate_every=2)

    assert same_to_the_bit(looking(once), looking(twice))


@pytest.mark.slow
def test_a_client_of_one_picture_takes_part(case):
    if case.method.val_share:
        pytest.skip("needs validation images of every client")
    data, rows = tiny_data(num=20, channels=3, test_share=0), np.arange(20)
    few = Federation.build(data, [rows[:1], rows[1:9], rows[9:]])
    run = fitted(case, few)
    assert [m.client for m in run.messages] == [0, 1, 2]
    assert all(v.isfinite().all() for v in run.server.weights.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:round .*client")
def test_clients_that_fail_leave_it_running(form, federation):
    faults = Faults(drop=0.2, nan=0.2, malformed=0.2)
    run = fitted(brief(form), federation, 3, faults=faults, evaluate_every=3)
    assert len(run.history.events()) > 3
    state = {**run.server.weights, **run.server.memory}
    assert all(v.isfinite().all() for v in state.values())


STACKED = {"AFL", "FedAdam", "FedAvg", "FedAvgM", "FedDG-GA", "FedGMA", "FedMedian"}
STACKED |= {"FedProx", "TERM", "TrimmedMean", "q-FFL"}
"""Labels of the methods whose clients the stacked engine trains as one."""


@pytest.mark.slow
def test_the_stacked_engine_takes_it_or_says_why(case, federation, pytestconfig):
    stacked, words = None, ""
    try:
        stacked = fitted(case, federation, 1, engine="stacked")
    except ValueError as error:
        words = str(error)
    if not pytestconfig.getoption("--method"):
        assert bool(stacked) == (case.method.label in STACKED)
    if stacked:
        local = fitted(case, federation, 1)
        assert distance(local, stacked) < 1e-3
        for one, other in zip(local.messages, stacked.messages, strict=True):
            torch.testing.assert_close(other.upload, one.upload, rtol=1e-3, atol=1e-4)
    else:
        assert "stackable" in words or "stacked engine" in words


OWN = '''
from dataclasses import dataclass, replace
import torch
from fedlab_support import FedAvg
from fedlab_support.core.checks import setting


@dataclass(frozen=True)
class Halfway(FedAvg):
    """Go half of the way to the mean."""

    share: float = setting(0.5, at_least=0, at_most=1)

    def aggregate(self, server, messages):
        after = super().aggregate(server, messages)
        mixed = {n: torch.lerp(w, after.weights[n], self.share) if w.is_floating_point()
                 else w for n, w in server.weights.items()}
        return replace(after, weights=mixed)


@dataclass(frozen=True)
class Careless(Halfway):
    """Draws from PyTorch's global generator: no seed decides it."""

    def loss(self, model, batch, context):
        return super().loss(model, batch, context) * (0.5 + torch.rand(()))
'''


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes"), [("Halfway", True), ("Careless", False)])
def test_a_method_of_ones_own_is_put_in(tmp_path, name, passes, pytestconfig):
    if pytestconfig.getoption("--method"):
        pytest.skip("tests this suite, not the method")
    (tmp_path / "mine.py").write_text(OWN, encoding="utf-8")
    program = (
        "import sys, pytest; sys.path[:0] = sys.argv[1:3]; "
        "sys.exit(pytest.main(['tests/conformance', '-q', '-p', 'no:cacheprovider', "
        "*sys.argv[3:]]))"
    )
    chosen = ["--method", f"mine:{name}"] + ([] if passes else ["-k", "seed_decides"])
    command = [sys.executable, "-c", program, str(ROOT), str(tmp_path), *chosen]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode == 0) == passes, done.stdout[-3000:]
    if not passes:
        assert "test_a_seed_decides_everything" in done.stdout
