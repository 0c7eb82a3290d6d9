"""FPL: the terms against loops, prototypes on the wire, clusters, and the limits."""

import copy
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import FedAvg, Federation, LocalTraining, Run, small_cnn
from fedlab_support.core.messages import Broadcast, Message, Server
from fedlab_support.federation.partition import by_owner, iid
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FPL
from fedlab_support.methods.shared.clustering import finch
from fedlab_support.models import small_unet
from tests import runs
from tests.probe import AwkwardNet
from tests.runs import TRAINING, a_visit, distance, garbled
from tests.support.methods.test_contract import same
from tests.tiny import tiny_data, tiny_masks

D = 128  # features of the small network
TEMPERATURES = (0.02, 0.5)

pytestmark = pytest.mark.usefixtures("one_thread")


def a_run(federation, method=None, model=small_cnn, **settings) -> Run:
    return runs.a_run(method or FPL(), federation, model, **settings)


def fitted(federation, method=None, rounds=3, **settings) -> Run:
    run = a_run(federation, method, **settings)
    run.fit(rounds, progress=False)
    return run


# ---- the two terms ------------------------------------------------------------------
CLASSES = torch.tensor([0, 0, 0, 2, 2, 5])


def case(num: int = 7, width: int = 4, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Features (B, D), their classes, prototypes (J, D), their classes; float64.

    Class 1 has no prototype, class 5 a single one.
    """
    stream = torch.Generator().manual_seed(seed)
    z = torch.randn(num, width, generator=stream, dtype=torch.float64) + 0.3
    prototypes = torch.randn(6, width, generator=stream, dtype=torch.float64) + 0.3
    y = torch.tensor([0, 2, 1, 5, 2, 0, 1] * num)[:num]
    return z, y, prototypes, CLASSES


def slow(z, y, prototypes, classes, temperature):
    """Both terms as the equations say them, one sample after the other."""
    contrast = consistency = 0.0
    for i in range(len(y)):
        mine = [j for j in range(len(classes)) if classes[j] == y[i]]
        if not mine:
            continue
        pull = []
        for p in prototypes:
            cosine = (z[i] * p).sum() / (z[i].square().sum().sqrt() * p.norm())
            pull.append(cosine / temperature)
        top = max(value.item() for value in pull)
        exp = [torch.exp(value - top) for value in pull]
        contrast = contrast - torch.log(sum(exp[j] for j in mine) / sum(exp))
        unbiased = sum(prototypes[j] for j in mine) / len(mine)
        consistency = consistency + (z[i] - unbiased).square().mean()
    return contrast / len(y), consistency / len(y)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_terms_and_their_gradients_are_those_of_the_loop(temperature):
    method = FPL(contrast_weight=3.0, consistency_weight=0.5, temperature=temperature)
    z, y, prototypes, classes = case()
    z.requires_grad_()
    found = method.comparison(z, y, prototypes, classes)
    expected = slow(z, y, prototypes, classes, temperature)
    for name, weight, value in zip(found, (3.0, 0.5), expected, strict=True):
        assert found[name].item() == pytest.approx(weight * value.item(), rel=1e-9)
        mine, theirs = (
            torch.autograd.grad(loss, z, retain_graph=True)[0]
            for loss in (found[name], weight * value)
        )
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
        assert mine.abs().max() > 1e-3
        assert (mine[y == 1] == 0).all(), "a class without prototypes adds nothing"
    assert list(found) == ["contrast", "consistency"]


def test_the_contrast_is_not_negative_and_0_without_other_classes():
    for seed in range(20):
        parts = FPL().comparison(*case(seed=seed))
        assert parts["contrast"] >= 0
    z, y, prototypes, classes = case()
    only = classes == 2
    parts = FPL().comparison(z, y, prototypes[only], classes[only])
    assert parts["contrast"] == 0 and parts["consistency"] > 0
    both = only | (classes == 5)
    assert FPL().comparison(z, y, prototypes[both], classes[both])["contrast"] > 1e-3


def test_scale_matters_for_the_distance_only():
    z, y, prototypes, classes = case()
    once, thrice = (FPL().comparison(s * z, y, prototypes, classes) for s in (1, 3))
    torch.testing.assert_close(once["contrast"], thrice["contrast"])
    assert (once["consistency"] - thrice["consistency"]).abs() > 0.1


def test_at_the_mean_of_its_clusters_a_feature_has_no_distance():
    _, _, prototypes, classes = case()
    y = torch.tensor([0, 2, 5, 0])
    centre = {int(c): prototypes[classes == c].mean(0) for c in classes.unique()}
    z = torch.stack([centre[int(c)] for c in y])
    assert FPL().comparison(z, y, prototypes, classes)["consistency"] < 1e-24
    z[1] += 1.0
    moved = FPL().comparison(z, y, prototypes, classes)["consistency"]
    assert moved.item() == pytest.approx(1 / 4), "mean over dimensions and samples"


def test_clusters_count_the_same_whatever_stands_behind_them():
    """U is the mean over clusters: one of nine clients counts as one of one."""
    rows = torch.cat([torch.tensor([[1.0, 0.02 * i]]) for i in range(9)])
    rows = torch.cat([rows, torch.tensor([[0.1, 1.0], [0.0, 1.0]])])
    labels = finch(rows)[-1]
    assert len(set(labels[:9].tolist()) & set(labels[9:].tolist())) == 0
    more = torch.cat([rows, rows[:1]])
    for points in (rows, more):
        method, classes = FPL(), torch.zeros(len(points), dtype=torch.int64)
        after = method.aggregate(Server(0, {}), said((points, classes)))
        told = after.shared
        u = told["prototypes"].mean(0)
        y = torch.zeros(1, dtype=torch.int64)
        assert method.comparison(u[None], y, **told)["consistency"] < 1e-12
        clusters = finch(points)[-1]
        means = [points[clusters == j].mean(0) for j in clusters.unique()]
        torch.testing.assert_close(u, torch.stack(means).mean(0))
        assert (u - points.mean(0)).norm() > 0.1, "not the mean over clients"


def test_without_prototypes_or_with_none_of_its_classes_nothing_is_added():
    z, y, prototypes, classes = case()
    z.requires_grad_()
    empty = prototypes[:0], classes[:0]
    others = prototypes, torch.full_like(classes, 9)
    for told in (empty, others):
        parts = FPL().comparison(z, y, *told)
        (gradient,) = torch.autograd.grad(sum(parts.values()), z)
        assert sum(parts.values()) == 0 and (gradient == 0).all()


def test_features_of_zeros_give_finite_numbers():
    z, y, prototypes, classes = case()
    z[0], prototypes[1] = 0, 0
    z.requires_grad_()
    parts = FPL().comparison(z, y, prototypes, classes)
    (gradient,) = torch.autograd.grad(sum(parts.values()), z)
    assert sum(parts.values()).isfinite() and gradient.isfinite().all()


def test_a_low_temperature_does_not_overflow():
    z, y, prototypes, classes = (
        v.float() if v.is_floating_point() else v for v in case()
    )
    parts = FPL(temperature=1e-4).comparison(z, y, prototypes, classes)
    assert parts["contrast"].isfinite() and parts["contrast"] > 100


# ---- the loss on a client -----------------------------------------------------------
def test_the_loss_is_the_sum_and_prototypes_are_constants(federation):
    model = small_cnn((2, 8, 8), 4)
    stream = torch.Generator().manual_seed(0)
    told = {
        "prototypes": torch.randn(5, D, generator=stream).abs().requires_grad_(),
        "classes": torch.tensor([0, 0, 1, 2, 3]),
    }
    context = a_visit(federation, client=2, **told)
    batch = context.client.train.batch(np.arange(9))
    method = FPL(contrast_weight=0.3, consistency_weight=2.0)
    loss = method.loss(model, batch, context)
    loss.backward()
    z = model.encode(batch.x)
    contrast, consistency = slow(z, batch.y, *told.values(), method.temperature)
    parts = {
        "task_loss": F.cross_entropy(model(batch.x), batch.y).item(),
        "contrast": 0.3 * contrast.item(),
        "consistency": 2.0 * consistency.item(),
    }
    assert context.logged_means() == pytest.approx(parts, rel=1e-4)
    assert loss.item() == pytest.approx(sum(parts.values()), rel=1e-5)
    assert model.stages[0][0].weight.grad.abs().max() > 0


# ---- prototypes: what a client says -------------------------------------------------
def means(federation, model, client: int, least: int = 2):
    """Mean features and classes of a client, in evaluation mode, by a loop."""
    whole = federation.client(client).train.whole()
    with torch.no_grad():
        z = model.eval().encode(whole.x)
    kinds = [c for c in range(4) if (whole.y == c).sum() >= least]
    return {c: z[whole.y == c].mean(0) for c in kinds}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("least", [1, 2, 5])
def test_a_client_says_the_mean_feature_of_classes_with_enough_pictures(
    federation, exact, least
):
    still = replace(TRAINING, lr=0.0)  # then the last epoch is as good as any pass
    method = FPL(min_count=least, exact=exact)
    run = a_run(federation, method, training=still).step(evaluate=False)
    left_out = 0
    for message in run.messages:
        expected = means(federation, run.model, message.client, least)
        report = message.upload
        assert report["classes"].tolist() == list(expected)
        assert report["classes"].dtype == torch.int64
        assert report["prototypes"].shape == (len(expected), D)
        if expected:
            torch.testing.assert_close(
                report["prototypes"], torch.stack(list(expected.values()))
            )
        present = set(federation.client(message.client).train.labels.tolist())
        left_out += len(present) - len(expected)
    assert (left_out > 0) == (least > 1), "the setting matters here"
    assert run.private == {} or not run.private[0].memory, "nothing is kept"


def seen_features(federation, monkeypatch, method, model, **settings):
    """What the encoder of a run gave, in order, and the first message."""
    seen, encode = [], model.encode

    def watched(self, x):
        z = encode(self, x)
        seen.append((z.detach().clone(), self.training))
        return z

    with monkeypatch.context() as patch:
        patch.setattr(model, "encode", watched)
        run = a_run(federation, method, select=lambda *_: [3], model=model, **settings)
        run.must_measure = False
        run.step(evaluate=False)
    return seen, run.messages[0].upload


def test_prototypes_are_those_of_the_last_epoch_while_weights_move(
    federation, monkeypatch
):
    training = replace(TRAINING, epochs=3, lr=0.2, batch_size=5)
    n = federation.sizes[3]
    steps = -(-n // 5)
    ys = []

    @dataclass(frozen=True)
    class Watched(FPL):
        def loss(self, model, batch, context):
            ys.append(batch.y)
            return super().loss(model, batch, context)

    seen, report = seen_features(
        federation, monkeypatch, Watched(), AwkwardNet, training=training
    )
    assert len(ys) == 3 * steps
    in_training = [z for z, training in seen if training][-3 * steps :]
    for part, is_said in ((slice(-steps, None), True), (slice(0, steps), False)):
        z, y = torch.cat(in_training[part]), torch.cat(ys[part])
        for prototype, c in zip(report["prototypes"], report["classes"], strict=True):
            assert torch.allclose(prototype, z[y == c].mean(0), atol=1e-5) == is_said


def test_exact_prototypes_are_those_of_the_trained_model(federation):
    training = replace(TRAINING, lr=0.2)
    for model in (small_cnn, AwkwardNet):
        run = a_run(federation, FPL(exact=True), model, training=training).step(
            evaluate=False
        )
        trained = copy.deepcopy(run.model)
        for message in run.messages:
            trained.load_state_dict(message.weights, strict=False)
            expected = means(federation, trained, message.client)
            torch.testing.assert_close(
                message.upload["prototypes"], torch.stack(list(expected.values()))
            )
        moving = a_run(federation, FPL(), model, training=training).step(evaluate=False)
        one, other = (r.messages[3].upload["prototypes"] for r in (run, moving))
        assert (one - other).abs().max() > 1e-3


def test_a_client_whose_classes_are_all_rare_says_nothing_and_takes_part():
    data = tiny_data(num=24, test_share=0)
    federation = Federation.build(data, [np.arange(1), np.arange(1, 24)])
    run = fitted(federation)
    assert run.messages[0].upload["prototypes"].shape == (0, D)
    assert set(run.server.shared["classes"].tolist()) == {0, 1, 2, 3}
    alone = fitted(federation, select=lambda *_: [0])
    assert alone.server.shared["prototypes"].shape == (0, D)
    assert alone.history.events().empty


# ---- prototypes: what the server makes of them --------------------------------------
def said(*reports) -> list[Message]:
    weights = {"w": torch.ones(1)}
    return [
        Message(k, 1, weights, {"prototypes": p, "classes": c})
        for k, (p, c) in enumerate(reports)
    ]


def test_clusters_are_per_class_and_partition_the_owners(federation):
    stream, reports = torch.Generator().manual_seed(1), []
    for k in range(9):
        classes = torch.tensor([0, 1, 3] if k else [0, 2, 3])
        reports.append((torch.randn(3, 6, generator=stream), classes))
    before = Server(0, {"w": torch.zeros(1)})
    after = FPL().aggregate(before, said(*reports))
    told = after.shared
    assert torch.equal(after.weights["w"], torch.ones(1)) and after.memory == {}
    assert told["classes"].tolist() == sorted(told["classes"].tolist())
    for c, owners in {0: 9, 1: 8, 2: 1, 3: 9}.items():
        rows = torch.stack([p[kinds == c][0] for p, kinds in reports if c in kinds])
        assert len(rows) == owners
        labels = finch(rows)[-1]
        expected = [rows[labels == j].mean(0) for j in range(int(labels.max()) + 1)]
        found = told["prototypes"][told["classes"] == c]
        torch.testing.assert_close(found, torch.stack(expected))
        assert 1 <= len(found) <= max(1, owners // 2)
    assert torch.equal(told["prototypes"][told["classes"] == 2][0], reports[0][0][1])


def test_equal_prototypes_are_one_cluster_and_two_owners_make_one():
    p, c = (
        torch.randn(2, 6, generator=torch.Generator().manual_seed(0)),
        torch.arange(2),
    )
    for others in ([(p, c)] * 6, [(p, c), (p + 1, c)]):
        told = FPL().aggregate(Server(0, {}), said(*others)).shared
        assert told["classes"].tolist() == [0, 1]


def test_old_prototypes_of_absent_clients_are_forgotten(federation):
    picks = iter([[0, 1, 2, 3, 4], [0]])
    run = a_run(federation, FPL(min_count=1), select=lambda *_: next(picks))
    run.step(evaluate=False)
    assert run.server.shared["classes"].unique().tolist() == [0, 1, 2, 3]
    run.step(evaluate=False)
    assert run.server.shared["classes"].tolist() == sorted(
        set(federation.client(0).train.labels.tolist())
    )


def test_only_prototypes_travel_beside_the_weights(federation):
    run = fitted(federation, FPL(min_count=1), rounds=1)
    clusters = len(run.server.shared["classes"])
    run.step(evaluate=False)
    wire = run.wire.set_index(["round", "direction", "part", "client"]).bytes
    classes = [len(set(federation.client(k).train.labels)) for k in range(5)]
    for k in range(5):
        for round in (1, 2):
            assert wire[round, "up", "upload", k] == classes[k] * (4 * D + 8)
        assert wire[2, "down", "shared", k] == clusters * (4 * D + 8)
    assert min(classes) < 4 <= clusters
    parts = run.wire.groupby("round")["part"].unique()
    assert set(parts[2]) == {"weights", "shared", "num_examples", "upload"}
    assert run.wire.query("round == 1 and part == 'shared'").empty
    assert 0 not in parts.index


# ---- limits -------------------------------------------------------------------------
def test_the_first_round_is_that_of_fedavg_bit_for_bit(federation):
    for model in (small_cnn, AwkwardNet):
        plain, ours = (
            a_run(federation, method, model=model).step(evaluate=False)
            for method in (FedAvg(), FPL())
        )
        assert distance(plain, ours) == 0
        assert distance(plain, a_run(federation, model=model)) > 1e-3
        plain.step(evaluate=False), ours.step(evaluate=False)
        assert distance(plain, ours) > 1e-5


@pytest.mark.slow
def test_each_weight_matters_on_its_own(federation):
    plain = fitted(federation, FedAvg())
    for off, on in (
        ({"contrast_weight": 0.0}, {"consistency_weight": 1e-6}),
        ({"consistency_weight": 0.0}, {"contrast_weight": 1e-6}),
    ):
        assert distance(plain, fitted(federation, FPL(**off))) > 1e-4
        assert 0 < distance(plain, fitted(federation, FPL(**off, **on))) < 1e-4


@pytest.mark.slow
def test_features_come_nearer_to_the_prototypes(federation):
    run = fitted(federation, FPL(), 6)
    train = run.history.table().query("split == 'train'")
    mean = train.groupby(["metric", "round"])["value"].mean().unstack()
    assert set(mean.index) == {"loss", "task_loss", "contrast", "consistency"}
    assert mean.loc["contrast"][[1]].isna().all(), "no prototypes yet"
    assert mean.loc["contrast", 6] < 0.8 * mean.loc["contrast", 2]
    assert mean.loc["task_loss", 6] < 0.8 * mean.loc["task_loss", 1]


# ---- as for every method ------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:round 1. client 1")
@pytest.mark.parametrize("wrong", [1000, torch.tensor([1, 0, 0, 0])], ids=["new", "2x"])
def test_a_report_that_is_no_prototypes_leaves_that_client_out(federation, wrong):
    method = FPL()
    for client, spoil in {
        1: lambda said: {"prototypes": said["prototypes"]},
        2: lambda said: {**said, "classes": said["classes"][1:]},
        3: lambda said: {**said, "prototypes": said["prototypes"].flatten()},
        4: lambda said: {**said, "classes": said["classes"] + wrong},
    }.items():
        method = garbled(method, client, spoil)
    with pytest.warns(
        UserWarning, match=r"a class in 0…3 for each of \(4,\) prototypes"
    ):
        run = a_run(federation, method).step(evaluate=False)
    assert [m.client for m in run.messages] == [0]


@pytest.mark.filterwarnings("ignore:round 1. client 2")
def test_prototypes_of_another_width_leave_that_client_out(federation):
    method = garbled(
        FPL(), 2, lambda said: {**said, "prototypes": said["prototypes"][:, :-1]}
    )
    run = a_run(federation, method).step(evaluate=False)
    assert [m.client for m in run.messages] == [0, 1, 3, 4]
    assert "must have 128 columns" in run.history.events().reason[0]
    assert run.server.shared["prototypes"].shape[1] == D
    trained = run.history.table().query("split == 'train'")
    assert set(trained.client) == {0, 1, 3, 4}


def test_one_client_is_enough(federation):
    alone = Federation.build(federation.data, iid(federation.data, 1, rng=0))
    assert len(fitted(alone).server.shared["classes"]) == 4


# ---- maps as features ---------------------------------------------------------------
class Dense(nn.Module):
    """Features (B, 3, h, w), logits (B, 2, h, w)."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 2, 1)

    def encode(self, x):
        return self.body(x)


def test_masks_give_one_feature_per_class_and_picture():
    model, stream = Dense(), torch.Generator().manual_seed(0)
    x = torch.randn(3, 1, 6, 6, generator=stream)
    y = torch.zeros(3, 6, 6, dtype=torch.int64)
    y[0, :2], y[1, 3:, 1:4] = 1, 1  # the third picture is ground only
    context = a_visit(training=LocalTraining(epochs=1, batch_size=3))
    store = SimpleNamespace(data=SimpleNamespace(num_classes=2))
    batch = Batch(x, y, torch.arange(3), 0)
    context.client = SimpleNamespace(
        train=SimpleNamespace(store=store, batches=lambda size: [batch])
    )
    method = FPL()
    loss = method.loss(model, batch, context)
    plain = F.cross_entropy(model.head(model.encode(x)), y)
    assert torch.equal(loss, plain)
    report = method.after_training(model, context)
    z = model.encode(x).detach()
    ground = torch.stack([z[i, :, y[i] == 0].mean(1) for i in range(3)])
    organ = torch.stack([z[i, :, y[i] == 1].mean(1) for i in range(2)])
    expected = torch.stack([ground.mean(0), organ.mean(0)])
    torch.testing.assert_close(report["prototypes"], expected)
    exact = FPL(exact=True).after_training(model, context)
    torch.testing.assert_close(exact["prototypes"], expected)
    assert FPL(min_count=3, exact=True).after_training(model, context)[
        "classes"
    ].tolist() == [0]

    context.received = Broadcast(2, {}, report)
    loss = method.loss(model, batch, context)
    rows = torch.cat([ground, organ])
    kinds = torch.tensor([0, 0, 0, 1, 1])
    terms = slow(rows, kinds, *report.values(), method.temperature)
    assert (loss - plain).item() == pytest.approx(sum(terms).item(), rel=1e-4)


@pytest.mark.slow
def test_masks_give_prototypes_of_ground_and_organ_in_a_run():
    data = tiny_masks(num=80, size=16)
    federation = Federation.build(data, by_owner(data))
    one, two = (
        fitted(federation, FPL(temperature=0.5), 2, model=small_unet, workers=workers)
        for workers in (1, 2)
    )
    assert same(one, two) and one.history.events().empty
    assert one.server.shared["classes"].unique().tolist() == [0, 1]
    width = small_unet(data.image_shape, 2).head.in_channels
    assert one.messages[4].upload["prototypes"].shape == (2, width)
    logged = one.history.table().query("split == 'train' and metric == 'contrast'")
    assert (logged["value"] > 0).all() and len(logged) == 5
    plain = fitted(federation, FedAvg(), rounds=2, model=small_unet)
    assert distance(plain, one) > 1e-4
