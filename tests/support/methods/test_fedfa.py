"""FedFA: its limits, what stays at home, what travels, the server's variances."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedlab_support import FedAvg, Federation, LocalTraining, Run, small_cnn
from fedlab_support.core.messages import Message, Server, nbytes
from fedlab_support.federation.partition import by_owner
from fedlab_support.methods import FedFA
from fedlab_support.models import alexnet, unet
from fedlab_support.models.layers.augmentation import FeatureAugmentation, modulation
from tests.runs import expect_left_out, garbled, unequal
from tests.support.methods.test_fedsr import Flat

TRAINING = LocalTraining(lr=0.05, epochs=2, batch_size=8)
ALEXNET, UNET = (64, 192, 384, 256, 256), (32, 64, 128, 256, 512)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation():
    return unequal(val=0.2)


class Stages(nn.Module):
    """1x1 convolutions with BatchNorm, of any widths; the first stage halves sides."""

    def __init__(self, image_shape, num_classes, widths=(3, 5, 4)):
        super().__init__()
        self.widths, before = widths, image_shape[0]
        self.stages = nn.Sequential()
        for width in widths:
            layers = [nn.Conv2d(before, width, 1), nn.BatchNorm2d(width), nn.ReLU()]
            self.stages.append(nn.Sequential(*layers))
            before = width
        self.stages[0].append(nn.MaxPool2d(2))
        self.neck = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(4 * before, num_classes)

    def encode(self, x):
        return self.neck(self.stages(x))

    def forward(self, x):
        return self.head(self.encode(x))


def a_run(federation, method=None, model=Stages, training=TRAINING, **settings) -> Run:
    settings = {"workers": 1, **settings}
    return Run(method or FedFA(), federation, model, training, **settings)


def fitted(federation, method=None, rounds=2, **settings) -> Run:
    run = a_run(federation, method, **settings)
    run.fit(rounds, progress=False)
    return run


def same_weights(a: Run, b: Run) -> bool:
    assert a.server.weights.keys() == b.server.weights.keys()
    return all(torch.equal(v, b.server.weights[n]) for n, v in a.server.weights.items())


def extra_bytes(run: Run, round: int, client: int) -> dict[str, int]:
    """Bytes beside weights and the number of examples, by direction."""
    wire = run.wire.query("round == @round and client == @client")
    wire = wire[~wire.part.isin(["weights", "num_examples"])]
    return wire.groupby("direction").bytes.sum().to_dict()


# ---- limits -------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("model", [Stages, partial(small_cnn, norm="group")])
def test_at_p_0_it_is_fedavg_bit_for_bit(federation, model):
    training = LocalTraining(lr=0.05, epochs=2, batch_size=7, momentum=0.9)
    settings = {"model": model, "training": training, "rounds": 3}
    plain = fitted(federation, FedAvg("equal"), **settings)
    assert same_weights(fitted(federation, FedFA(p=0.0), **settings), plain)
    assert same_weights(fitted(federation, FedFA(stages=()), **settings), plain)
    assert not same_weights(fitted(federation, FedFA(p=0.1), **settings), plain)
    by_size = replace(FedFA(p=0.0), weighting="examples")
    assert same_weights(
        fitted(federation, by_size, **settings),
        fitted(federation, FedAvg(), **settings),
    )


def test_alone_a_client_differs_from_nobody(federation):
    one = Federation.build(federation.data, by_owner(federation.data)[-1:])
    run = fitted(one, rounds=2)
    assert all((v == 0).all() for v in run.server.shared.values())
    assert all(torch.equal(modulation(v), torch.ones_like(v)) for v in shared(run))
    assert all(v.isfinite().all() for v in run.server.weights.values())


def shared(run: Run) -> list[torch.Tensor]:
    return list(run.server.shared.values())


# ---- layers -------------------------------------------------------------------------
def layers(run: Run) -> dict[str, FeatureAugmentation]:
    found = run.model.named_modules()
    return {n: m for n, m in found if isinstance(m, FeatureAugmentation)}


@pytest.mark.slow
@pytest.mark.parametrize("stages", [None, (1,), (3, 1), (2,), ()])
def test_layers_stand_where_they_are_asked_for(federation, stages):
    method = FedFA(p=0.25, alpha=0.5, stages=stages, fusion="direct")
    found = layers(a_run(federation, method))
    numbers = sorted((1, 2, 3) if stages is None else stages)
    assert list(found) == [f"stages.{n - 1}.added.ffa" for n in numbers]
    for n, layer in zip(numbers, found.values(), strict=True):
        assert layer.moments.shape == (2, (3, 5, 4)[n - 1])
        assert (layer.p, layer.alpha, layer.fusion) == (0.25, 0.5, "direct")
    run = fitted(federation, method, rounds=1)
    assert set(run.server.shared) == {f"{name}.variances" for name in found}


def test_evaluation_sees_no_noise(federation):
    run = fitted(federation, FedFA(p=1.0))
    plain = Stages((2, 8, 8), 4).eval()
    plain.load_state_dict(run.server.weights)
    x = torch.randn(5, 2, 8, 8)
    assert torch.allclose(run.model(x), plain(x), atol=1e-6)


@pytest.mark.slow
def test_every_fusion_trains_and_they_differ(federation):
    kinds = ("adaptive", "direct", "client", "random")
    runs = [fitted(federation, FedFA(fusion=kind, p=1.0)) for kind in kinds]
    for i, run in enumerate(runs):
        assert not any(same_weights(run, other) for other in runs[:i])
    for run in runs[2:]:
        assert run.server.shared == {} and run.messages[0].upload == {}


# ---- moments and variances ----------------------------------------------------------
def test_the_server_says_how_much_the_clients_differ(federation):
    run = fitted(federation, rounds=1)
    for name, layer in layers(run).items():
        said = torch.stack([m.upload[f"{name}.moments"] for m in run.messages])
        slow = torch.zeros_like(said[0])
        for row in said:
            slow += (row - said.mean(0)) ** 2 / len(said)
        v = run.server.shared[f"{name}.variances"]
        torch.testing.assert_close(v, slow)
        assert (v > 0).all() and v.shape == layer.moments.shape
    assert len(run.server.shared) == 3


def test_what_the_server_said_enters_the_next_visit(federation, monkeypatch):
    seen, usual = [], FeatureAugmentation.perturb

    def watched(self, x, noise):
        seen.append(self.variances.clone())
        return usual(self, x, noise)

    run = a_run(federation, FedFA(p=1.0, stages=(2,)))
    monkeypatch.setattr(FeatureAugmentation, "perturb", watched)
    run.step(evaluate=False)
    assert all((v == 1).all() for v in seen), "gamma is 1 in round 1"
    (told,) = shared(run)
    seen.clear()
    run.step(evaluate=False)
    assert len(seen) >= 10 and all(torch.equal(v, told) for v in seen)


def test_the_spread_of_gamma_is_logged_where_it_acts(federation):
    run = fitted(federation, FedFA(), 1)
    assert "gamma_spread" not in run.messages[0].metrics, "the server has said nothing"
    told = {n: v for n, v in run.server.shared.items() if n.endswith(".variances")}
    run.step(evaluate=False)
    spreads = [float(modulation(v).std(-1).mean()) for v in told.values()]
    found = run.messages[0].metrics["gamma_spread"]
    assert found == pytest.approx(np.mean(spreads), rel=1e-5) and found > 0
    released = fitted(federation, FedFA(server_variance="scalar"), 2)
    assert released.messages[0].metrics["gamma_spread"] == pytest.approx(0, abs=1e-6)
    for method in (FedFA(fusion="client"), FedFA(p=0.0)):
        run = fitted(federation, method, 2)
        assert "gamma_spread" not in run.messages[0].metrics


def messages(*moments) -> list[Message]:
    weights = {"w": torch.zeros(1)}
    return [Message(k, 5, weights, {"a.moments": m}) for k, m in enumerate(moments)]


def pair(mean, deviation) -> torch.Tensor:
    return torch.tensor([mean, deviation], dtype=torch.float32)


def test_variances_are_per_channel_or_one_for_all():
    server = Server(0, {"w": torch.zeros(1)}, parameters=("w",))
    said = messages(pair([0, 0, 5], [1, 1, 1]), pair([2, 0, 5], [1, 3, 1]))
    v = FedFA().aggregate(server, said).shared
    assert v["a.variances"].tolist() == [[1, 0, 0], [0, 1, 0]]
    (both,) = FedFA(server_variance="scalar").aggregate(server, said).shared.values()
    expected = torch.tensor([[0.0, 0, 5, 2, 0, 5], [1, 1, 1, 1, 3, 1]])
    expected = expected.var(1, correction=1, keepdim=True).expand(2, 3)
    torch.testing.assert_close(both, expected)
    torch.testing.assert_close(modulation(both), torch.ones(2, 3))
    one = messages(pair([2], [1]))
    (alone,) = FedFA(server_variance="scalar").aggregate(server, one).shared.values()
    assert alone.tolist() == [[0], [0]]
    averaged = FedFA(stats_carry="average").aggregate(server, said).shared
    assert averaged["a.moments"].tolist() == [[1, 0, 5], [1, 2, 1]]
    assert averaged["a.variances"].tolist() == v["a.variances"].tolist()


def moments_at_the_start(federation, method, monkeypatch) -> list[torch.Tensor]:
    """Moments of the one layer as each client's second visit begins."""
    run, seen = a_run(federation, method), []
    run.step(evaluate=False)
    usual = type(method).before_training

    def watched(self, model, context):
        said = usual(self, model, context)
        seen.append(model.get_buffer("stages.1.added.ffa.moments").clone())
        return said

    monkeypatch.setattr(FedFA, "before_training", watched)
    said = {m.client: m.upload["stages.1.added.ffa.moments"] for m in run.messages}
    order = sorted(said, key=lambda i: (-federation.sizes[i], i))
    run.step(evaluate=False)
    return [said[i] for i in order], seen


@pytest.mark.slow
def test_moments_are_kept_averaged_or_forgotten(federation, monkeypatch):
    method = FedFA(p=1.0, stages=(2,))
    said, seen = moments_at_the_start(federation, method, monkeypatch)
    assert len(seen) == 5 and not torch.equal(said[0], said[1])
    assert all(torch.equal(a, b) for a, b in zip(said, seen, strict=True))

    method = replace(method, stats_carry="average")
    said, seen = moments_at_the_start(federation, method, monkeypatch)
    for start in seen:
        torch.testing.assert_close(start, torch.stack(said).mean(0))

    method = replace(method, stats_carry="reset")
    said, seen = moments_at_the_start(federation, method, monkeypatch)
    assert all(start.tolist() == [[0] * 5, [1] * 5] for start in seen)


def test_moments_stay_with_the_client(federation):
    run = fitted(federation, rounds=1)
    names = {f"{name}.moments" for name in layers(run)}
    assert len(names) == 3
    assert not names & run.server.weights.keys()
    for message in run.messages:
        own = run.private[message.client].weights
        assert own.keys() == names == message.upload.keys()
        assert all(torch.equal(own[n], message.upload[n]) for n in names)
    assert not run.history.table().metric.str.startswith("personal").any()


# ---- the wire -----------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(("widths", "both"), [(ALEXNET, 18_432), (UNET, 15_872)])
def test_the_papers_bytes_travel_and_no_more(federation, widths, both):
    model = partial(Stages, widths=widths)
    select = [1, 3]
    run = fitted(
        federation,
        model=model,
        select=lambda *_: select,
        training=LocalTraining(batch_size=64),
    )
    for client in select:
        assert extra_bytes(run, 1, client) == {"up": both // 2}
        assert extra_bytes(run, 2, client) == {"up": both // 2, "down": both // 2}
    learnt = sum(v.numel() for v in run.server.weights.values())
    plain = Stages((2, 8, 8), 4, widths).state_dict()
    assert learnt == sum(v.numel() for v in plain.values())


@pytest.mark.parametrize(("network", "both"), [(alexnet, 18_432), (unet, 15_872)])
def test_the_papers_networks_say_so_many_bytes(network, both):
    method = FedFA()
    model = method.adapt(network((3, 64, 64), 10))
    assert len(model.widths) == 5
    assert 2 * nbytes(method.upload_spec(model)) == both


def test_averaged_moments_travel_down_too_and_chosen_layers_only(federation):
    run = fitted(federation, FedFA(stats_carry="average", stages=(1, 3)))
    assert extra_bytes(run, 2, 0) == {"up": 8 * 7, "down": 16 * 7}
    assert extra_bytes(fitted(federation, FedFA(stages=())), 2, 0) == {}
    assert extra_bytes(fitted(federation, FedFA(fusion="client")), 2, 0) == {}


def test_moments_can_be_noisy(federation):
    plain, noisy = (fitted(federation, FedFA(noise=s), rounds=1) for s in (0, 0.3))
    assert same_weights(plain, noisy), "what stays at home has no noise"
    pairs = zip(plain.messages, noisy.messages, strict=True)
    names = plain.messages[0].upload
    change = torch.cat(
        [(a.upload[n] - b.upload[n]).flatten() for a, b in pairs for n in names]
    )
    assert change.std().item() == pytest.approx(0.3, rel=0.25)
    loud = fitted(federation, FedFA(noise=5.0), rounds=2)
    assert len(loud.messages) == 5, "deviations stay ≥ 0, so nobody is refused"


# ---- as for every method ------------------------------------------------------------
def test_bf16_steps_keep_statistics_in_full_precision(federation):
    run = fitted(federation, training=replace(TRAINING, precision="bf16"))
    assert all(v.dtype == torch.float32 for v in shared(run))
    assert len(run.messages) == 5


# ---- what cannot be had -------------------------------------------------------------
def test_a_stage_that_the_network_lacks_is_refused(federation):
    with pytest.raises(ValueError, match=r"numbered 1…3, each at most once; found"):
        a_run(federation, FedFA(stages=(4,)))


def test_a_network_without_stages_is_refused(federation):
    with pytest.raises(ValueError, match=r"with stages.*found Flat"):
        a_run(federation, model=Flat)


def test_a_network_without_widths_is_refused(federation):
    class Bare(Flat):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.stages = nn.Sequential(nn.Identity())

    with pytest.raises(ValueError, match=r"with widths.*found Bare"):
        a_run(federation, model=Bare)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda said: {n: v[:, :1] for n, v in said.items()}, "of shape"),
        (lambda said: {n: -v.abs() for n, v in said.items()}, "deviations must be ≥ 0"),
    ],
)
def test_a_wrong_report_leaves_its_client_out(federation, spoil, reason):
    run = a_run(federation, garbled(FedFA(), 2, spoil))
    expect_left_out(run, 2, reason)
    assert all(v.isfinite().all() for v in shared(run)) and len(shared(run)) == 3
