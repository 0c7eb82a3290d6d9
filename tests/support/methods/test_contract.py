"""The contract of a method, driven by a probe that uses every hook."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg, Federation, LocalTraining, Run, dirichlet, uniform
from fedlab_support.engines.local import LocalEngine
from fedlab_support.methods import AFL, FedDG, FedMix
from tests.probe import AwkwardNet, Probe
from tests.runs import garbled
from tests.runs import same_to_the_bit as same
from tests.tiny import tiny_data

TRAINING = LocalTraining(lr=0.05, epochs=2, batch_size=7)


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=150, owners=5)
    return Federation.build(data, dirichlet(data, 5, alpha=0.8, rng=3), val=0.2)


class Fitted(Run):
    def fit_run(self, rounds):
        self.fit(rounds, progress=False)
        return self


def started(federation, method=None, workers=1, select=None, model=AwkwardNet, **kw):
    method = method or Probe()
    return Fitted(method, federation, model, TRAINING, select, workers=workers, **kw)


@pytest.mark.slow
def test_every_hook_is_called_and_its_result_arrives(federation):
    run = started(federation).step().step()
    assert run.server.memory["total"] == federation.sizes.sum()
    # Five clients reported 1 visit each in round 1 and 2 each in round 2.
    assert run.server.memory["spoken"] == 5 + 10
    assert run.server.shared == {"spoken": run.server.memory["spoken"]}
    report = run.messages[3].upload
    assert report.keys() == {"loss_received", "visits", "me"}
    assert report["me"] == 3 and report["visits"] == 2
    assert set(run.private[3].weights) == {"head.bias"}
    assert run.private[3].memory["total"] == federation.sizes.sum()
    assert not torch.equal(
        run.private[3].weights["head.bias"], run.private[2].weights["head.bias"]
    )
    metrics = run.history.table()["metric"].unique()
    assert {"loss", "task_loss", "accuracy", "personal_accuracy", "seconds"} == set(
        metrics
    )


def test_the_test_is_not_vacuous_weights_buffers_and_scale_move(federation):
    run = started(federation)
    before = {name: value.clone() for name, value in run.server.weights.items()}
    run.step()
    moved = {n for n, v in run.server.weights.items() if not torch.equal(v, before[n])}
    assert {"scale", "head.weight", "stages.1.weight", "stages.1.running_mean"} <= moved


def test_private_and_frozen_state_never_travels(federation):
    run = started(federation).step()
    for message in run.messages:
        assert message.weights.keys() == run.server.weights.keys()
        assert "head.bias" not in message.weights
        assert not [name for name in message.weights if name.startswith("frozen")]
    assert run.model.frozen[1].running_mean.abs().sum() == 0


def test_every_part_of_the_wire_has_its_own_name_and_exact_bytes(federation):
    run = started(federation, select=uniform(2)).step()
    wire = run.wire
    weights = sum(v.numel() * v.element_size() for v in run.server.weights.values())
    first = wire[wire["round"] == 0]
    assert first.groupby(["direction", "part"]).bytes.sum().to_dict() == {
        ("down", "setup_reply"): 5 * 8,
        ("up", "setup_upload"): 5 * 4,
    }
    one = wire[(wire["round"] == 1) & (wire.client == run.messages[0].client)]
    assert one.set_index(["direction", "part"]).bytes.to_dict() == {
        ("down", "weights"): weights,
        ("down", "shared"): 4,
        ("up", "num_examples"): 8,
        ("up", "weights"): weights,
        ("up", "upload"): 12,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "hook", "done"),
    [(Probe, "aggregate", 1), (LocalEngine, "evaluate", 2)],
    ids=["a round", "an evaluation"],
)
def test_what_is_interrupted_leaves_no_trace_and_is_made_up_for(
    federation, monkeypatch, kind, hook, done
):
    usual, stopped = started(federation).fit_run(3), started(federation).fit_run(1)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            stopped.step()
    assert stopped.server.round == done
    assert same(usual, stopped.fit_run(3 - done))


@pytest.mark.slow
def test_an_optimiser_that_looks_twice_but_goes_nowhere_equals_gradient_descent(
    federation,
):
    """Dropout, the method's own noise and BatchNorm are replayed, not drawn again."""

    @dataclass(frozen=True)
    class Once(Probe):
        def optimiser(self, named_params, training):
            return torch.optim.SGD([p for _, p in named_params], lr=training.lr)

    twice = started(federation, Probe(radius=0.0)).fit_run(2)
    once = started(federation, Once()).fit_run(2)
    near = started(federation, Probe(radius=1e-7)).fit_run(2)
    far = started(federation, Probe(radius=0.05)).fit_run(2)
    logged = [run.history.table().query("split == 'train'") for run in (once, twice)]
    assert logged[0].value.equals(logged[1].value), "only first looks are logged"
    for name, value in once.server.weights.items():
        assert torch.equal(value, twice.server.weights[name]), name
        assert torch.allclose(value, near.server.weights[name], atol=1e-4), name
    assert not torch.allclose(
        once.server.weights["scale"], far.server.weights["scale"], atol=1e-5
    )


@pytest.mark.slow
def test_noise_is_active_and_a_seed_decides_it(federation):
    noisy = started(federation).fit_run(1)
    for other in (
        started(federation, Probe(noise=0.0)),
        started(federation, model=lambda s, m: AwkwardNet(s, m, rate=0.0)),
        started(federation, seed=1),
    ):
        other.fit_run(1)
        assert not torch.equal(
            noisy.server.weights["head.weight"], other.server.weights["head.weight"]
        )
    assert same(noisy, started(federation).fit_run(1))


@pytest.mark.slow
def test_nothing_draws_from_or_changes_global_state(federation):
    torch.manual_seed(5)
    np.random.seed(5)
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    first = started(federation, workers=2).fit_run(2)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    torch.manual_seed(6)
    assert same(first, started(federation, workers=2).fit_run(2))


@dataclass(frozen=True)
class Unlucky(Probe):
    """Fails on purpose on some clients, each with a reason of its own."""

    fails_at: str = "loss"
    clients: tuple = (1,)

    def client_setup(self, model, context):
        said, number = super().client_setup(model, context), context.client.id
        if self.fails_at == "client_setup" and number in self.clients:
            raise OSError(f"client {number}: the camera is off")
        return said

    def loss(self, model, batch, context):
        context.memory["touched"] = torch.ones(1)
        if context.client.id in self.clients:
            if self.fails_at == "loss":
                raise RuntimeError(f"client {context.client.id} is out of battery")
            if self.fails_at == "nan":
                return super().loss(model, batch, context) * float("nan")
        return super().loss(model, batch, context)

    def after_training(self, model, context):
        said = super().after_training(model, context)
        if context.client.id in self.clients:
            if self.fails_at == "check":
                said["me"] = torch.tensor([-1.0])
            if self.fails_at == "upload":
                said["me"] = torch.tensor([float("inf")])
        return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails_at", "reason"),
    [
        ("loss", "out of battery"),
        ("nan", "loss became nan"),
        ("check", "negative client number"),
        ("upload", "NaN or infinite"),
    ],
)
def test_a_faulty_client_is_left_out_of_the_round_with_the_reason(
    federation, fails_at, reason
):
    with pytest.warns(UserWarning, match=reason):
        run = started(federation, Unlucky(fails_at=fails_at)).step()
    assert [m.client for m in run.messages] == [0, 2, 3, 4]
    events = run.history.events()
    assert events.client.tolist() == [1] and reason in events.reason[0]
    assert all(v.isfinite().all() for v in run.server.weights.values())
    if fails_at in ("loss", "nan"):
        assert "touched" not in run.private[1].memory, "a failed visit leaves no trace"
    assert "touched" in run.private[2].memory


def test_with_no_client_left_the_weights_stay_as_they_were(federation):
    run = started(federation, Unlucky(clients=(0, 1, 2, 3, 4)))
    before = {name: value.clone() for name, value in run.server.weights.items()}
    with pytest.warns(UserWarning, match="out of battery"):
        run.step()
    assert run.server.round == 1 and run.messages == []
    assert all(torch.equal(v, before[n]) for n, v in run.server.weights.items())


def test_a_refused_introduction_leaves_a_client_out_of_the_whole_run(federation):
    unlucky = Unlucky(fails_at="client_setup", clients=(4,))
    with pytest.warns(UserWarning, match="left out of the run"):
        run = started(federation, unlucky).fit_run(2)
    assert [m.client for m in run.messages] == [0, 1, 2, 3]
    assert run.server.memory["total"] == federation.sizes[:4].sum()
    assert "the camera is off" in run.history.events().reason[0]


def repeated(value, times=1000):
    return value.repeat(times, *[1] * (value.ndim - 1)) if value.ndim != 1 else value


@pytest.mark.parametrize(
    ("method", "spoil", "words"),
    [
        (FedMix, repeated, "number of mean images must be an integer in 0…1, found"),
        (FedDG, repeated, "number of amplitudes must be an integer in 1….*found"),
        *(
            (AFL, partial(torch.full_like, fill_value=count), "num_examples.* must be")
            for count in (-1, 0, 10**9)
        ),
        (AFL, lambda count: count.double(), "an integer in 1….*found"),
    ],
)
def test_a_client_cannot_upload_more_than_its_data_gives(
    federation, method, spoil, words
):
    exaggerating = garbled(
        method(), 3, lambda said: {name: spoil(value) for name, value in said.items()}
    )
    with pytest.warns(UserWarning, match=words):
        run = started(federation, exaggerating).step()
    assert run.clients.tolist() == [0, 1, 2, 4]


def test_a_run_in_which_every_introduction_fails_says_so(federation):
    method = Unlucky(fails_at="client_setup", clients=(0, 1, 2, 3, 4))
    with (
        pytest.warns(UserWarning, match="camera"),
        pytest.raises(RuntimeError, match=r"at least one client.*camera is off"),
    ):
        started(federation, method).step()


def test_a_check_that_stumbles_leaves_out_that_client_only(federation):
    @dataclass(frozen=True)
    class Stumbles(Probe):
        def check_upload(self, tensors, model):
            if tensors.get("me", torch.zeros(1)) == 2:
                tensors["not there"]

    with pytest.warns(UserWarning, match="KeyError"):
        run = started(federation, Stumbles()).step()
    assert [m.client for m in run.messages] == [0, 1, 3, 4]


@pytest.mark.slow
def test_what_hooks_hand_out_shares_nothing_with_the_workers_model(federation):
    """Views of the model's tensors would change with the next client's visit."""

    @dataclass(frozen=True)
    class HandsOutViews(Probe):
        def client_setup(self, model, context):
            return {**super().client_setup(model, context), "w": model.head.weight}

        def server_setup(self, uploads):
            views = [said["w"] for said in uploads.values()]
            assert not any(view.requires_grad for view in views)
            assert len({view.data_ptr() for view in views}) == len(views)
            return super().server_setup(uploads)

        def after_training(self, model, context):
            context.memory["previous"] = model.head.weight.detach()
            context.log("norm", model.head.weight.norm())
            return super().after_training(model, context)

    runs = [started(federation, HandsOutViews(), workers=w).fit_run(2) for w in (1, 2)]
    for run in runs:
        for message in run.messages:
            kept = run.private[message.client].memory["previous"]
            assert torch.equal(kept, message.weights["head.weight"])
    assert same(*runs)
    assert "norm" in set(runs[0].history.table()["metric"])


@pytest.mark.slow
def test_buffers_outside_the_state_start_anew_at_every_visit(federation):
    class Counts(AwkwardNet):
        def __init__(self, image_shape, num_classes):
            super().__init__(image_shape, num_classes)
            self.register_buffer("calls", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.calls += self.training
            return super().forward(x) * (1 + 0.1 * self.calls)

    runs = [
        started(federation, FedAvg(), workers=w, model=Counts).fit_run(2)
        for w in (1, 2, 5)
    ]
    assert same(runs[0], runs[1]) and same(runs[0], runs[2])


def test_a_message_with_other_names_or_shapes_is_refused(federation, monkeypatch):
    train = LocalEngine.train

    def spoil(self, broadcasts, private):
        answers = train(self, broadcasts, private)
        message, kept = answers[2]
        weights = dict(message.weights, scale=torch.ones(3))
        return {**answers, 2: (replace(message, weights=weights), kept)}

    monkeypatch.setattr(LocalEngine, "train", spoil)
    with pytest.warns(UserWarning, match="'scale' must be"):
        run = started(federation).step()
    assert [m.client for m in run.messages] == [0, 1, 3, 4]


def test_clients_do_not_share_optimisers_and_momentum_does_not_leak(federation):
    """A client's result is the same whether it is visited alone or with others."""
    training = replace(TRAINING, momentum=0.9)
    alone, together = (
        Run(
            FedAvg(), federation, AwkwardNet, training, lambda r, rng, c=c: c, workers=1
        )
        for c in ([3], [0, 1, 2, 3, 4])
    )
    (a,) = alone.step().messages
    b = together.step().messages[3]
    assert all(torch.equal(a.weights[n], b.weights[n]) for n in a.weights)


def test_memory_that_a_visit_changes_in_place_is_a_copy(federation):
    @dataclass(frozen=True)
    class InPlace(Unlucky):
        def loss(self, model, batch, context):
            context.memory["visits"].add_(100)
            return super().loss(model, batch, context)

    with pytest.warns(UserWarning, match="battery"):
        run = started(federation, InPlace()).step()
    assert run.private[1].memory["visits"] == 0
