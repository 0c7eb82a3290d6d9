"""The stacked engine: the local engine's results, to rounding, or a clear refusal."""

import copy
import shutil
import threading
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import (
    FedAvg,
    FedAvgM,
    FedDG,
    Federation,
    FedProx,
    FedSR,
    LocalTraining,
    Run,
    dirichlet,
    engines,
    small_cnn,
    uniform,
)
from fedlab_support.core.cancellation import Stopped, stopping_on
from fedlab_support.engines import Faults, LocalEngine, StackedEngine
from fedlab_support.engines.process import tf32
from fedlab_support.methods import FPL, FedMix
from fedlab_support.training.privacy import Privacy
from tests.probe import AwkwardNet, Probe
from tests.support.methods.test_methods import linear
from tests.tiny import tiny_data

PLAIN = LocalTraining(lr=0.05, epochs=2, batch_size=7)
HEAVY = replace(PLAIN, momentum=0.9, weight_decay=0.01, linear_weight_decay=0.1)
ADAM = replace(PLAIN, optimiser="adam", lr=1e-3, weight_decay=0.01)


@pytest.fixture(scope="module")
def federation():
    """Five clients of 14 to 26 samples: steps and last batches differ."""
    data = tiny_data(num=150, owners=5)
    federation = Federation.build(data, dirichlet(data, 5, alpha=0.8, rng=3), val=0.2)
    assert len({-(-size // 7) for size in federation.sizes}) > 1
    assert len({size % 7 for size in federation.sizes}) > 2
    return federation


def fitted(federation, engine, method=None, training=PLAIN, model=small_cnn, **kw):
    kw = {"workers": 1, "seed": 3} | kw
    run = Run(method or FedAvg(), federation, model, training, engine=engine, **kw)
    run.fit(3, progress=False)
    return run


def assert_same(a: Run, b: Run, tolerance: float = 1e-5) -> None:
    close = partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    close(b.server.weights, a.server.weights)
    close(b.server.memory, a.server.memory)
    assert a.private.keys() == b.private.keys()
    for i in a.private:
        close(b.private[i].weights, a.private[i].weights)
        close(b.private[i].memory, a.private[i].memory)
    left, right = (
        run.history.table().query("split != 'cost'").reset_index(drop=True)
        for run in (a, b)
    )
    assert left.drop(columns="value").equals(right.drop(columns="value"))
    np.testing.assert_allclose(right["value"], left["value"], atol=tolerance)
    assert a.wire.equals(b.wire)
    assert a.history.events().empty and b.history.events().empty


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "training"),
    [
        *((FedAvg(), training) for training in (PLAIN, HEAVY, ADAM)),
        (FedAvgM(), HEAVY),
        (FedProx(mu=0.5), PLAIN),
        (FedProx(mu=0.5, penalty="norm"), ADAM),
    ],
)
def test_weights_metrics_and_wire_are_those_of_the_local_engine(
    federation, method, training
):
    runs = [fitted(federation, e, method, training) for e in ("local", "stacked")]
    assert_same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["none", "group"])
def test_every_layer_of_a_stack_moves(federation, norm):
    model = partial(small_cnn, norm=norm)
    runs = [fitted(federation, e, model=model) for e in ("local", "stacked")]
    fresh = Run(FedAvg(), federation, model, PLAIN, seed=3).server.weights
    for name, value in runs[0].server.weights.items():
        assert (value - fresh[name]).abs().max() > 1e-4, f"{name} did not move"
    assert_same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_a_stack_that_does_not_fit_is_trained_in_parts(federation, at_once):
    whole = fitted(federation, "stacked")
    run = Run(FedAvg(), federation, small_cnn, PLAIN, engine="stacked", seed=3)
    run.engine.stack_size = at_once
    run.fit(3, progress=False)
    assert_same(whole, run)


@pytest.mark.slow
def test_the_number_of_threads_does_not_matter(federation):
    one, two = (fitted(federation, "stacked", workers=n) for n in (1, 2))
    for name, value in one.server.weights.items():
        assert torch.equal(value, two.server.weights[name])


@pytest.mark.slow
def test_a_cohort_of_some_clients_is_theirs(federation):
    runs = [fitted(federation, e, select=uniform(3)) for e in ("local", "stacked")]
    assert_same(*runs)


def test_faults_hit_the_same_clients_and_noise_is_the_same(federation):
    settings = {
        "faults": Faults(drop=0.3, nan=0.2),
        "privacy": Privacy(noise=0.01, seeded=True),
    }
    method = FedAvg(weighting="equal")
    runs = [fitted(federation, e, method, **settings) for e in ("local", "stacked")]
    events = [run.history.events() for run in runs]
    assert len(events[0]) > 2 and events[0].equals(events[1])
    for name, value in runs[0].server.weights.items():
        torch.testing.assert_close(
            runs[1].server.weights[name], value, rtol=1e-5, atol=1e-5
        )


@dataclass(frozen=True)
class Speaker(FedAvg):
    """Measures before and after, remembers, and keeps its head to itself."""

    stackable: ClassVar[bool] = True

    def private_names(self, model):
        return {"head.weight", "head.bias"}

    def before_training(self, model, context):
        assert not model.training
        batch = context.client.train.whole()
        with torch.no_grad():
            return {"before": context.task.loss(model(batch.x), batch.y)[None]}

    def after_training(self, model, context):
        assert not model.training
        context.memory["visits"] = context.memory.get("visits", torch.zeros(1)) + 1
        batch = context.client.train.whole()
        with torch.no_grad():
            after = context.task.loss(model(batch.x), batch.y)
        context.log("after", after)
        return {"after": after[None], "visits": context.memory["visits"]}


@pytest.mark.slow
def test_hooks_around_training_see_each_client_with_its_own_weights(federation):
    runs = [fitted(federation, e, Speaker()) for e in ("local", "stacked")]
    assert_same(*runs)
    for a, b in zip(*(run.messages for run in runs), strict=True):
        torch.testing.assert_close(b.upload, a.upload, rtol=1e-5, atol=1e-5)
        assert a.upload["after"] < a.upload["before"] and a.upload["visits"] == 3
    heads = [private.weights["head.weight"] for private in runs[1].private.values()]
    assert len(heads) == 5 and not torch.equal(heads[0], heads[1])


@dataclass(frozen=True)
class Exploding(FedProx):
    """Its loss is not finite for a client that has much to learn."""

    limit: float = 1.45
    stackable: ClassVar[bool] = True

    def loss(self, model, batch, context):
        loss = super().loss(model, batch, context)
        return loss * torch.where(loss > self.limit, float("nan"), 1.0)


@pytest.mark.slow
def test_a_client_that_diverges_takes_nobody_with_it(federation):
    runs = []
    for engine in ("local", "stacked"):
        run = Run(Exploding(), federation, small_cnn, PLAIN, engine=engine, workers=1)
        with pytest.warns(UserWarning, match="left out"):
            run.fit(4, progress=False)
        runs.append(run)
    a, b = runs
    assert a.history.events().equals(b.history.events())
    absent = len(a.history.events())
    assert 0 < absent < 20
    for name, value in a.server.weights.items():
        torch.testing.assert_close(b.server.weights[name], value, rtol=1e-5, atol=1e-5)
    assert all(value.isfinite().all() for value in b.server.weights.values())


@dataclass(frozen=True)
class Silent(FedAvg):
    def loss(self, model, batch, context):
        return super().loss(model, batch, context) * 2


@dataclass(frozen=True)
class Child(FedProx):
    def loss(self, model, batch, context):
        return super().loss(model, batch, context) * 2


@dataclass(frozen=True)
class OwnWords(FedAvg):
    def client_broadcast(self, server, client_id):
        return {"you": torch.tensor([client_id])}


@dataclass(frozen=True)
class SetsLayers(FedAvg):
    def before_training(self, model, context):
        model.gain.fill_(2)
        return {}


@dataclass(frozen=True)
class Remembers(FedAvg):
    stackable = True

    def loss(self, model, batch, context):
        drift = context.memory.get("drift", 0.0)
        return super().loss(model, batch, context) + drift


@dataclass(frozen=True)
class PrivateGain(FedAvg):
    def private_names(self, model):
        return {"gain"}


class Gained(nn.Sequential):
    def __init__(self, image_shape, num_classes):
        width = int(np.prod(image_shape))
        super().__init__(nn.Flatten(), nn.Linear(width, num_classes))
        self.register_buffer("gain", torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.gain


class Noisy(nn.Sequential):
    def __init__(self, image_shape, num_classes):
        self.head = None
        width = int(np.prod(image_shape))
        super().__init__(nn.Flatten(), nn.Dropout(0.5), nn.Linear(width, num_classes))


class Tied(nn.Sequential):
    def __init__(self, image_shape, num_classes):
        width = int(np.prod(image_shape))
        layers = [nn.Linear(width, width) for _ in range(2)]
        super().__init__(nn.Flatten(), *layers, nn.Linear(width, num_classes))
        self[2].weight = self[1].weight


REFUSED = [
    ({"method": FedDG()}, "FedDG declares that its loss is not stackable"),
    ({"method": FedSR()}, "FedSR declares"),
    ({"method": FPL()}, "FPL declares"),
    ({"method": FedMix()}, "FedMix declares"),
    ({"method": Silent()}, "Silent overrides loss without declaring"),
    ({"method": Child()}, "Child overrides loss without declaring"),
    ({"method": SetsLayers()}, "SetsLayers overrides before_training without"),
    ({"method": Remembers()}, "stacked, .*'NoneType' object has no attribute 'get'"),
    ({"method": PrivateGain(), "model": Gained}, "'gain' is a private buffer"),
    ({"method": OwnWords()}, "OwnWords overrides client_broadcast"),
    ({"method": Probe(), "model": AwkwardNet}, "Probe overrides"),
    ({"model": partial(small_cnn, norm="batch")}, "'stages.0.1' is a BatchNorm"),
    ({"model": Noisy}, "'1' draws noise"),
    ({"model": Tied}, "share a parameter"),
    ({"deadline": 60.0}, "deadline"),
    ({"training": replace(PLAIN, compile=True)}, "compile=True compiles the network"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("change", "words"), REFUSED, ids=lambda v: str(v)[:30])
def test_what_cannot_be_stacked_is_refused_with_the_reason(federation, change, words):
    settings = {"method": FedAvg(), "model": small_cnn} | change
    with pytest.raises(ValueError, match=words):
        Run(federation=federation, engine="stacked", **settings)
    run = Run(federation=federation, engine="auto", **settings)
    assert type(run.engine) is LocalEngine


class Pixels(nn.Module):
    """One linear layer, and how its input gets there."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.fc = nn.Linear(int(np.prod(image_shape)), num_classes)
        self.head = None

    def forward(self, x):
        return self.fc(x.flatten(1))


class Counting(Pixels):
    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += x.mean().detach()
        return super().forward(x) + self.seen


class Hooked(Pixels):
    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.fc.register_forward_hook(lambda layer, x, y: 3 * y)


class Centred(Pixels):
    def forward(self, x):
        return super().forward(x - x.mean(0))


class InTurn(Pixels):
    """Its samples stand in the second dimension."""

    def forward(self, x):
        return self.fc(x.flatten(1)[None].expand(2, -1, -1)).sum(0)


class Unit(Pixels):
    def forward(self, x):
        return F.linear(x.flatten(1), F.normalize(self.fc.weight))


class Recurrent(Pixels):
    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.read = nn.LSTM(image_shape[2], image_shape[2], batch_first=True)

    def forward(self, x):
        return super().forward(self.read(x.flatten(1, 2))[0])


class Tracking(Pixels):
    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.norm = nn.InstanceNorm2d(image_shape[0], track_running_stats=True)

    def forward(self, x):
        return super().forward(self.norm(x))


class Scaled(Pixels):
    """A parameter of its own, outside any layer."""

    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.scale


@pytest.mark.slow
@pytest.mark.parametrize("model", [Pixels, Hooked, InTurn, Unit, Scaled])
def test_networks_are_stacked_whatever_their_forward_pass_does(federation, model):
    runs = [fitted(federation, e, model=model) for e in ("local", "stacked", "auto")]
    kinds = [LocalEngine, StackedEngine, StackedEngine]
    assert [type(run.engine) for run in runs] == kinds
    assert_same(*runs[:2])


ODD = [
    (Counting, "training changes the buffer 'seen', which stacked clients share"),
    (Tracking, "training changes the buffer 'norm.running_mean'"),
    (Centred, "has other gradients than when a client trains alone"),
    (Recurrent, "when stacked, it raises RuntimeError: "),
]


@pytest.mark.parametrize(("model", "reason"), ODD)
def test_what_only_a_trial_shows_is_refused_with_the_reason(federation, model, reason):
    with pytest.raises(ValueError, match=reason):
        Run(FedAvg(), federation, model, engine="stacked")
    assert type(Run(FedAvg(), federation, model, engine="auto").engine) is LocalEngine


@pytest.mark.parametrize("engine", ["local", LocalEngine(1)])
def test_only_auto_asks_whether_stacking_pays(federation, engine, monkeypatch):
    asked = []
    for name in ("is_faster", "refusal"):
        monkeypatch.setattr(engines, name, asked.append)
    Run(FedAvg(), federation, linear, engine=engine)
    assert asked == []
    Run(FedAvg(), federation, linear, engine="auto")
    assert len(asked) == 1  # None: it does not pay


def test_a_stack_is_given_up_between_two_steps(federation):
    event, steps = threading.Event(), []

    class Interrupted(FedAvg):
        stackable: ClassVar[bool] = True

        def loss(self, model, batch, context):
            steps.append(batch)
            event.set()
            return super().loss(model, batch, context)

    run = Run(Interrupted(), federation, linear, PLAIN, engine="stacked")
    event.clear()
    steps.clear()
    with stopping_on(event), pytest.raises(Stopped):
        run.step()
    assert len(steps) == 1 and run.server.round == 0 and run.wire.empty
    usual = Run(FedAvg(), federation, linear, PLAIN, engine="stacked").step()
    torch.testing.assert_close(run.step().server.weights, usual.server.weights)


def test_an_engine_that_has_taken_on_another_run_does_not_train_this_one(federation):
    for engine in (LocalEngine(1), StackedEngine(1)):
        runs = [Run(FedAvg(), federation, linear, engine=engine) for _ in range(2)]
        with pytest.raises(RuntimeError, match="the engine has another run's job"):
            runs[0].step()
        with pytest.raises(RuntimeError, match="the engine has another run's job"):
            runs[0].scores(federation.test)
        assert runs[0].server.round == 0 and runs[1].step().server.round == 1


def test_auto_stacks_where_it_can_and_pays(federation):
    for model, kind in ((linear, StackedEngine), (small_cnn, LocalEngine)):
        run = Run(FedAvg(), federation, model, engine="auto")
        assert type(run.engine) is kind
    assert StackedEngine().threads == 1 and StackedEngine(2).threads == 2
    with pytest.raises(ValueError, match="engine must be one of"):
        Run(FedAvg(), federation, small_cnn, engine="warp")


class Between(nn.Module):
    """A layer behind a convolution, and pixels before it."""

    def __init__(self, layer, width):
        super().__init__()
        self.first, self.layer, self.head = nn.Conv2d(1, 4, 3, bias=False), layer, None
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(self.layer(self.first(x)).flatten(1))


LAYERS = [
    (nn.Linear(6, 5, bias=False), 120),
    (nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False), 24),
    (nn.Conv2d(4, 4, 3, dilation=2, groups=4), 16),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), 144),
    (nn.GroupNorm(2, 4), 144),
    (nn.LayerNorm(6), 144),
    (nn.LayerNorm((6, 6), bias=False), 144),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layer", "width"), LAYERS, ids=lambda v: str(v)[:40])
def test_every_client_has_its_own_weights_in_every_layer(federation, layer, width):
    def model(image_shape, num_classes):
        assert (image_shape, num_classes) == ((1, 8, 8), 4)
        return Between(copy.deepcopy(layer), width)

    runs = [fitted(federation, e, model=model) for e in ("local", "stacked")]
    fresh = Run(FedAvg(), federation, model, PLAIN, seed=3).server.weights
    for name, value in runs[1].server.weights.items():
        assert not value.equal(fresh[name])
    assert_same(*runs)


def test_a_frozen_layer_stays_plain_and_still(federation):
    def half_frozen(image_shape, num_classes):
        model = small_cnn(image_shape, num_classes)
        model.stages.requires_grad_(False)
        return model

    runs = [fitted(federation, e, model=half_frozen) for e in ("local", "stacked")]
    assert not any(name.startswith("stages") for name in runs[1].server.weights)
    assert_same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_bf16_is_asked_for_and_comes_close(federation, engine):
    usual = fitted(federation, engine)
    rough = fitted(federation, engine, training=replace(PLAIN, precision="bf16"))
    gaps = [
        (rough.server.weights[n] - v).abs().max()
        for n, v in usual.server.weights.items()
    ]
    assert 1e-6 < max(gaps) < 2e-2
    assert all(v.dtype == torch.float32 for v in rough.server.weights.values())
    assert "bf16" in str(rough.describe()) and "bf16" not in str(usual.describe())


def test_tf32_is_refused_without_a_gpu(federation):
    training = replace(PLAIN, precision="tf32")
    for engine in ("local", "stacked"):
        with pytest.raises(ValueError, match="tf32"):
            Run(FedAvg(), federation, small_cnn, training, engine=engine)
    with pytest.raises(ValueError, match="precision must be"):
        LocalTraining(precision="float8")


@pytest.mark.parametrize("engine", ["local", "stacked"])
def test_what_is_uploaded_before_training_stays_as_it_was(federation, engine):
    @dataclass(frozen=True)
    class SendsReceived(FedAvg):
        stackable: ClassVar[bool] = True

        def before_training(self, model, context):
            return {"received": model.head.bias.detach()}

    run = Run(SendsReceived(), federation, small_cnn, PLAIN, engine=engine)
    received = run.server.weights["head.bias"].clone()
    run.step(evaluate=False)
    for message in run.messages:
        assert message.upload["received"].equal(received)
        assert not message.weights["head.bias"].equal(received)


def test_blocks_of_one_precision_overlap_and_the_last_restores():
    """As in two runs beside each other on a GPU, which need not be there."""
    store = SimpleNamespace(device=torch.device("cuda"))
    job = SimpleNamespace(
        federation=SimpleNamespace(store=store),
        training=SimpleNamespace(precision="float32"),
    )
    conv, before = torch.backends.cudnn.conv, torch.backends.cudnn.conv.fp32_precision
    assert before != "ieee"
    first, second = tf32(job), tf32(job)
    for block in (first, second):
        block.__enter__()
    first.__exit__(None, None, None)
    assert conv.fp32_precision == "ieee", "the second block still runs"
    second.__exit__(None, None, None)
    assert conv.fp32_precision == before


def test_a_run_may_be_built_where_gradients_are_off(federation):
    with torch.no_grad():
        Run(FedAvg(), federation, small_cnn, PLAIN, engine="stacked")


@pytest.mark.slow
def test_compiled_networks_give_the_same_results(federation):
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.skip("torch.compile on a CPU needs a C++ compiler")
    runs = [
        fitted(federation, "local", model=linear, training=training)
        for training in (PLAIN, replace(PLAIN, compile=True))
    ]
    assert_same(*runs)
