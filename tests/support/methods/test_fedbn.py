"""FedBN: what stays at home, by type; and how a client never seen is predicted."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import FedAvg, Federation, LocalTraining, small_cnn
from fedlab_support.core.messages import Message, Server
from fedlab_support.federation.partition import by_domain
from fedlab_support.federation.samples import Samples
from fedlab_support.methods import FedBN
from tests.probe import AwkwardNet
from tests.runs import (
    Turns,
    a_run,
    bytes_by_part,
    distance,
    fitted,
    plain,
    unequal,
    with_a_single_picture,
)
from tests.support.methods.test_reference import FLOAT32, SIZES, case
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")
WAYS = ["batch", "average", "adapt"]
ALL = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
Batchy = partial(small_cnn, norm="batch")
OWN = {f"stages.{stage}.1.{key}" for stage in (0, 1) for key in ALL}


@pytest.fixture(scope="module")
def federation():
    return unequal(val=0.2)


# ---- what is private ----------------------------------------------------------------
class Named(nn.Module):
    """BatchNorm under unlike names, and something else under its usual one."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.downsample = nn.Sequential(nn.Conv2d(3, 3, 1), nn.SyncBatchNorm(3))
        self.bn_like = nn.GroupNorm(1, 3)
        self.bn1 = nn.LayerNorm(3)
        self.head = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False))
        self.unscaled = nn.BatchNorm2d(3, track_running_stats=False)


def test_batchnorm_is_found_by_its_type_and_nothing_else_is():
    expected = {f"norm.{key}" for key in ALL} | {f"downsample.1.{key}" for key in ALL}
    expected |= {f"head.1.{key}" for key in ALL - {"weight", "bias"}}
    expected |= {f"unscaled.{key}" for key in ("weight", "bias")}
    assert FedBN().private_names(Named()) == expected


def test_a_frozen_batchnorm_is_nobodys_and_keeps_its_statistics(federation):
    frozen = {f"frozen.{n}" for n, _ in AwkwardNet((2, 8, 8), 4).frozen.named_buffers()}
    run = fitted(FedBN(), federation, model=AwkwardNet)
    assert run.private[0].weights.keys() == {f"stages.1.{key}" for key in ALL}
    assert not frozen & run.server.weights.keys()
    x = federation.test.whole().x
    run.method.predict(run.model, x)
    assert not run.model.frozen[1].running_mean.any()
    model = run.model.eval()
    hidden = F.relu(one_batch(model.stages[1], model.stages[0](model.frozen(x))))
    expected = model.head(hidden.flatten(1))
    torch.testing.assert_close(run.method.predict(model, x), expected)


def test_a_batchnorm_in_two_places_is_private_in_both():
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(norm, nn.Linear(3, 3), norm)
    expected = {f"{place}.{key}" for place in (0, 2) for key in ALL}
    assert FedBN().private_names(model) == expected


def test_a_network_that_is_a_batchnorm_itself():
    model = nn.BatchNorm1d(3)
    assert FedBN().private_names(model) == set(model.state_dict()) == ALL


# ---- the authors' numbers -----------------------------------------------------------
class Official(nn.Module):
    """The layers of the reference."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        self.fc, self.norm2 = nn.Linear(4, 2), nn.BatchNorm1d(4)


@pytest.mark.parametrize(
    ("weighting", "key"),
    [("examples", "fedbn_weighted"), ("equal", "fedbn_uniform")],
)
def test_a_round_is_that_of_the_official_code_but_for_what_its_names_miss(
    weighting, key
):
    before, expected = (
        case("aggregation_rules", "server_before"),
        case("aggregation_rules", key),
    )
    method = FedBN(weighting)
    own = method.private_names(Official())
    assert own == {n for n in before if n.startswith(("bn1", "norm2"))}
    stacked = case("aggregation_rules", "clients")
    said = [
        Message(k, size, {n: v[k] for n, v in stacked.items() if n not in own})
        for k, size in enumerate(SIZES)
    ]
    shared = {n: v for n, v in before.items() if n not in own}
    after = before | method.aggregate(Server(0, shared), said).weights
    differs = {n for n in before if not np.allclose(after[n], expected[n], **FLOAT32)}
    floats = {n for n in own if before[n].is_floating_point()}
    assert differs - {"norm2.num_batches_tracked"} == {
        n for n in floats if n.startswith("norm2")
    }
    assert not np.allclose(after["conv1.weight"], before["conv1.weight"])


# ---- what stays ---------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("unseen", WAYS)
def test_own_layers_last_from_visit_to_visit_and_never_become_others(
    federation, unseen
):
    run = a_run(FedBN(unseen=unseen), federation, model=Batchy, select=Turns())
    kept: dict[int, dict] = {}
    for _ in range(4):
        run.step()
        for message in run.messages:
            assert not OWN & message.weights.keys()
            kept[message.client] = dict(run.private[message.client].weights)
        for client, own in kept.items():
            assert own.keys() == OWN
            now = run.private[client].weights
            assert all(torch.equal(now[n], own[n]) for n in OWN), "as it was left"
    assert len(kept) == 5 and not OWN & run.server.weights.keys()
    steps = {
        i: int(own["stages.0.1.num_batches_tracked"]) // run.times_chosen[i]
        for i, own in kept.items()
    }
    for i, num in steps.items():
        size = federation.sizes[i]
        assert num == 2 * (size // 8 + (size % 8 > 1)), "it counts on where it was"
    own = [kept[i]["stages.0.1.running_mean"] for i in range(5)]
    assert all(not torch.equal(own[i], own[j]) for i in range(5) for j in range(i))


def test_the_first_round_of_all_else_is_fedavgs(federation):
    """From the same start clients walk alike; shared weights are averaged alike."""
    fedavg = plain(federation, 1, model=Batchy)
    fedbn = fitted(FedBN(), federation, 1, model=Batchy)
    assert distance(fedbn, fedavg) == 0
    assert fedavg.server.weights.keys() - fedbn.server.weights.keys() == OWN
    both = [fitted(m, federation, 2, model=Batchy) for m in (FedBN(), FedAvg())]
    assert distance(*both) > 1e-6, "then they part"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "unseen"),
    [*(("none", way) for way in WAYS), ("group", "adapt"), ("layer", "average")],
)
def test_without_batchnorm_it_is_fedavg_bit_for_bit(federation, norm, unseen):
    model = partial(small_cnn, norm=norm)
    training = LocalTraining(0.1, 2, 8, momentum=0.9)
    settings = {"model": model, "training": training}
    fedavg = plain(federation, **settings)
    fedbn = fitted(FedBN(unseen=unseen), federation, **settings)
    assert distance(fedavg, fedbn) == 0
    assert bytes_by_part(fedavg) == bytes_by_part(fedbn)
    scores = [run.scores(federation.test).loss for run in (fedavg, fedbn)]
    np.testing.assert_array_equal(*scores)
    assert fedbn.private == {}


def test_clients_of_unlike_pictures_end_with_unlike_statistics():
    data = tiny_data(num=60, owners=2)
    bright = data.images.copy()
    bright[data.owner == 1] //= 3
    data = replace(data, images=bright)
    rows = [np.flatnonzero((data.owner == k) & ~data.is_test) for k in range(2)]
    run = fitted(FedBN(), Federation.build(data, rows), 3, model=Batchy)
    means = [run.private[k].weights["stages.0.1.running_mean"] for k in range(2)]
    variances = [run.private[k].weights["stages.0.1.running_var"] for k in range(2)]
    assert (means[0] - means[1]).abs().max() > 0.05
    assert (variances[0] > 1.2 * variances[1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("unseen", WAYS)
def test_the_wire_is_short_of_batchnorm(federation, unseen):
    run = fitted(FedBN(unseen=unseen), federation, 3, model=Batchy)
    parameters = sum(p.numel() for p in Batchy((2, 8, 8), 4).parameters())
    channels = 8 + 16
    visits = 3 * 5
    each = 4 * (parameters - 2 * channels)
    report = {"batch": 0, "average": 16 * channels, "adapt": 8 * channels}[unseen]
    expected = {
        ("down", "weights"): visits * each,
        ("up", "num_examples"): visits * 8,
        ("up", "weights"): visits * each,
    }
    if report:
        expected["up", "upload"] = visits * report
    assert bytes_by_part(run) == expected


# ---- prediction ---------------------------------------------------------------------
def one_batch(norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Normalised with the statistics of x, scaled and shifted by the layer."""
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    shape = (1, -1, 1, 1)
    y = (x - mean.view(shape)) / (var.view(shape) + norm.eps).sqrt()
    return y * norm.weight.view(shape) + norm.bias.view(shape)


def by_hand(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    for convolution, norm, *rest in model.stages:
        x = nn.Sequential(*rest)(one_batch(norm, convolution(x)))
    return model.head(model.neck(x))


@torch.no_grad()
def of_strangers(model: nn.Module, samples: Samples) -> np.ndarray:
    """Losses by the statistics of each domain's pictures, which are few."""
    losses = np.empty(len(samples), np.float32)
    for domain in np.unique(samples.domain):
        here = np.flatnonzero(samples.domain == domain)
        assert 2 <= len(here) < 64
        x, y, *_ = samples.batch(here)
        losses[here] = F.cross_entropy(by_hand(model, x), y, reduction="none")
    return losses


def test_a_stranger_is_predicted_with_the_statistics_of_the_batch(federation):
    run = fitted(FedBN(), federation, 2, model=Batchy)
    x, y, *_ = federation.test.whole()
    expected = of_strangers(run.model, federation.test)
    for norm in (run.model.stages[0][1], run.model.stages[1][1]):
        assert (norm.weight == 1).all() and (norm.bias == 0).all(), "the initial ones"
    found = run.scores(federation.test).loss
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    still = F.cross_entropy(run.model(x), y, reduction="none").detach()
    assert np.abs(found - still.numpy()).max() > 0.01, "it matters"
    backwards = Samples(federation.store, federation.test.rows[::-1].copy())
    again = run.scores(backwards).loss[::-1]
    np.testing.assert_allclose(again, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("unseen", ["batch", "adapt"])
def test_a_stranger_is_predicted_alike_however_files_lie(unseen):
    data = tiny_data(1000)
    rows = np.flatnonzero(data.is_test)
    federation = Federation.build(data, by_domain(data, 1, rng=0))
    run = fitted(FedBN(unseen=unseen), federation, 2, model=Batchy)
    by_class = Samples(federation.store, rows[data.labels[rows].argsort(kind="stable")])
    at_random = np.random.default_rng(0).permutation(len(rows))
    mixed = Samples(federation.store, by_class.rows[at_random])
    scores = run.scores(by_class), run.scores(mixed)
    near = np.abs(scores[0].loss[at_random] - scores[1].loss).mean()
    x, y, *_ = by_class.whole()
    with torch.no_grad():
        apart = [run.method.predict(run.model, x[y == label]) for label in range(4)]
        apart = F.cross_entropy(torch.cat(apart), y, reduction="none").numpy()
    far = np.abs(scores[0].loss - apart).mean()
    assert near < far / 3


def test_adapt_has_mean_scale_and_shift_with_the_statistics_of_the_batch(federation):
    run = fitted(FedBN("equal", "adapt"), federation, 2, model=Batchy)
    kept = [run.private[i].weights["stages.1.1.weight"].double() for i in range(5)]
    norm, mean = run.model.stages[1][1], torch.stack(kept).mean(0)
    torch.testing.assert_close(norm.weight.double(), mean)
    assert (norm.weight - 1).abs().max() > 1e-4
    expected = of_strangers(run.model, federation.test)
    found = run.scores(federation.test).loss
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_adapt_knows_a_layer_by_all_its_names(federation):
    class Twice(nn.Module):
        def __init__(self, image_shape, num_classes):
            super().__init__()
            self.norm = nn.BatchNorm2d(image_shape[0])
            self.body = nn.Sequential(self.norm, nn.Flatten())
            self.head = nn.Linear(np.prod(image_shape), num_classes)

        def forward(self, x):
            return self.head(self.body(x))

    run = fitted(FedBN(unseen="adapt"), federation, 2, model=Twice)
    state, mean = run.state_of(None), run.server.memory["norm.weight"]
    assert torch.equal(state["norm.weight"], mean) and (mean != 1).any()
    assert torch.equal(state["body.0.weight"], mean)


def test_average_has_the_mean_of_everything(federation):
    run = fitted(FedBN(unseen="average"), federation, 2, model=Batchy)
    shares = torch.tensor(federation.sizes / federation.sizes.sum())
    for name in OWN:
        if name.endswith("tracked"):
            continue
        kept = [run.private[i].weights[name].double() for i in range(5)]
        mean = sum(a * v for a, v in zip(shares, kept, strict=True))
        torch.testing.assert_close(run.model.state_dict()[name].double(), mean)
        assert (kept[0] - kept[4]).abs().max() > 0
    x, y, *_ = federation.test.whole()
    expected = F.cross_entropy(run.model(x), y, reduction="none").detach()
    found = run.scores(federation.test).loss
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert not OWN & run.server.weights.keys(), "for evaluation only"


@pytest.mark.slow
def test_the_three_ways_train_the_same_weights(federation):
    runs = [fitted(FedBN(unseen=way), federation, model=Batchy) for way in WAYS]
    losses = [run.scores(federation.test).loss for run in runs]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert distance(runs[a], runs[b]) == 0
        assert np.abs(losses[a] - losses[b]).max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("unseen", WAYS)
def test_a_client_predicts_with_its_own_layers(federation, unseen):
    run = fitted(FedBN(unseen=unseen), federation, model=Batchy)
    table = run.history.table().query("split == 'val' and round == 2")
    assert set(table.metric) == {"personal_accuracy", "loss"}
    found = table[table.metric == "loss"].set_index("client").value
    assert len(found) > 2
    for i in found.index:
        model = Batchy((2, 8, 8), 4).eval()
        model.load_state_dict(run.server.weights | run.private[i].weights)
        x, y, *_ = federation.client(i).val.whole()
        assert found[i] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-4)


def test_who_alone_has_a_domain_is_tested_there_with_its_own_layers():
    data = tiny_data(num=120, domains=3, owners=3, test_share=0.4)
    federation = Federation.build(data, by_domain(data, clients_per_domain=1, rng=0))
    run = fitted(FedBN(), federation, model=Batchy)
    tests = run.history.table().query("split == 'test' and round == 2")
    found = tests[tests.metric == "personal_accuracy"].set_index("domain").value
    assert set(found.index) == {"", *data.domain_names}
    hits = 0
    for i, name in enumerate(data.domain_names):
        model = Batchy((1, 8, 8), 4).eval()
        model.load_state_dict(run.server.weights | run.private[i].weights)
        x, y, *_ = federation.test.whole()
        mine = torch.from_numpy(federation.test.domain == i)
        right = model(x[mine]).argmax(1) == y[mine]
        assert found[name] == pytest.approx(right.double().mean().item())
        hits += right.sum().item()
    assert found[""] == pytest.approx(hits / len(federation.test))


def test_nobody_is_at_home_where_two_share_a_domain(federation):
    assert federation.homes == {}
    run = fitted(FedBN(), federation, model=Batchy)
    tests = run.history.table().query("split == 'test'")
    assert set(tests.metric) == {"accuracy", "loss"}


@pytest.mark.slow
@pytest.mark.parametrize("unseen", WAYS)
def test_prediction_leaves_the_layers_as_they_are(federation, unseen):
    run = fitted(FedBN(unseen=unseen), federation, model=Batchy)
    before = {n: v.clone() for n, v in run.model.state_dict().items()}
    first = run.scores(federation.test).loss
    run.method.predict(run.model, federation.test.whole().x)
    assert all(torch.equal(v, before[n]) for n, v in run.model.state_dict().items())
    norms = [m for m in run.model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(m.training for m in norms)
    assert all(m.track_running_stats for m in norms)
    np.testing.assert_array_equal(first, run.scores(federation.test).loss)
    with pytest.raises(RuntimeError):
        run.method.predict(run.model, torch.zeros(2, 5, 8, 8))
    assert not any(m.training or not m.track_running_stats for m in norms)


def test_one_picture_alone_is_predicted_with_the_initial_statistics():
    federation = with_a_single_picture()
    with pytest.warns(UserWarning, match="batches of at least two"):
        run = fitted(FedBN(), federation, model=partial(Flat, hidden=3))
    one = federation.client(0).train
    with torch.no_grad():
        expected = F.cross_entropy(run.model(one.whole().x), one.whole().y).item()
    assert run.scores(one).loss.tolist() == pytest.approx([expected])


class Flat(nn.Module):
    """BatchNorm over features, whose statistics need two samples."""

    def __init__(self, image_shape, num_classes, hidden):
        super().__init__()
        size = image_shape[0] * image_shape[1] * image_shape[2]
        self.stages = nn.Sequential(nn.Flatten(), nn.Linear(size, hidden))
        self.norm, self.head = nn.BatchNorm1d(hidden), nn.Linear(hidden, num_classes)

    def encode(self, x):
        return self.norm(self.stages(x))

    def forward(self, x):
        return self.head(self.encode(x))


@pytest.mark.slow
@pytest.mark.parametrize("unseen", ["batch", "adapt"])
def test_pretrained_statistics_do_not_count_for_strangers(federation, unseen):
    def pretrained(image_shape, num_classes):
        model = Batchy(image_shape, num_classes)
        for norm in (model.stages[0][1], model.stages[1][1]):
            norm.num_batches_tracked += 1000
            norm.running_mean += 5
        return model

    run = fitted(FedBN(unseen=unseen), federation, model=pretrained)
    expected = of_strangers(run.model, federation.test)
    found = run.scores(federation.test).loss
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
