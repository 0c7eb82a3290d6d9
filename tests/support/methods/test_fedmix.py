"""FedMix: the expansion against loops and differences, and what means travel."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import FedAvg, Federation, LocalTraining, Run, small_cnn
from fedlab_support.core.messages import Broadcast
from fedlab_support.core.metrics import task
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedMix
from fedlab_support.models import small_unet
from fedlab_support.training.context import ClientContext
from tests import runs
from tests.probe import AwkwardNet
from tests.runs import TRAINING, distance, garbled
from tests.tiny import a_stream, tiny_data, tiny_masks
from tests.vit import narrow_vit

B, M = 5, 3

pytestmark = pytest.mark.usefixtures("one_thread")


def a_run(federation, method=None, model=small_cnn, **settings) -> Run:
    return runs.a_run(method or FedMix(), federation, model, **settings)


def fitted(federation, method=None, rounds=2, **settings) -> Run:
    run = a_run(federation, method, **settings)
    run.fit(rounds, progress=False)
    return run


def begun(federation, method=None, **settings) -> Run:
    """A run after a short round: all clients have their bank, one has trained."""
    settings = {"training": LocalTraining(), "select": lambda *_: [0], **settings}
    return a_run(federation, method, **settings).step(evaluate=False)


# ---- the loss, in double precision --------------------------------------------------
def a_visit(bank=None, the_task=None) -> ClientContext:
    memory = {} if bank is None else dict(zip(("entries", "labels"), bank, strict=True))
    the_task = the_task or task("classification")
    return ClientContext(None, Broadcast(1, {}), TRAINING, the_task, a_stream(), memory)


def smooth_net(activation=nn.Tanh, pool=nn.AvgPool2d) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(2, 4, 3, padding=1), activation(), pool(2), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(4 * 3 * 3, M)).double()


def a_case(seed: int = 0):
    """A batch with a mean that is not 0, and one averaged pair."""
    stream = torch.Generator().manual_seed(seed)
    draw = partial(torch.randn, generator=stream, dtype=torch.float64)
    x, mean_x = draw(B, 2, 6, 6) + 0.4, 0.5 * draw(1, 2, 6, 6) - 0.3
    mean_y = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    y = torch.tensor([0, 2, 1, 1, 0])
    return Batch(x, y, torch.arange(B), 0), (mean_x, mean_y)


def parts_of(method, model, batch, bank, the_task=None):
    context = a_visit(bank, the_task)
    loss = method.loss(model, batch, context)
    return loss, context.logged_means()


def slow(model, batch, bank, share):
    """The three terms, sample after sample, each with a gradient of its own."""
    (mean_x, mean_y), terms = bank, [0.0, 0.0, 0.0]
    for x, y in zip(batch.x, batch.y, strict=True):
        u = ((1 - share) * x[None]).requires_grad_()
        log_p = model(u).log_softmax(1)[0]
        own = -(1 - share) * log_p[y]
        (slope,) = torch.autograd.grad(own, u, create_graph=True)
        terms[0] = terms[0] + own / B
        terms[1] = terms[1] - share * (mean_y[0] * log_p).sum() / B
        terms[2] = terms[2] + share * (slope[0] * mean_x[0]).sum() / B
    return terms


NETS = {
    "smooth": smooth_net,
    "kinked": partial(smooth_net, nn.ReLU, nn.MaxPool2d),
}


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("share", [0.05, 0.3])
def test_terms_and_gradients_are_those_of_the_loop(net, share):
    model, (batch, bank) = NETS[net](), a_case()
    loss, logged = parts_of(FedMix(share=share), model, batch, bank)
    terms = slow(model, batch, bank, share)
    names = ("own_loss", "foreign_loss", "expansion")
    for name, term in zip(names, terms, strict=True):
        assert logged[name] == pytest.approx(term.item(), rel=1e-9), name
        assert abs(logged[name]) > 1e-4
    found, expected = (
        torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
        for value in (loss, sum(terms))
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    without = torch.autograd.grad(terms[0] + terms[1], list(model.parameters()))
    assert (found[0] - without[0]).abs().max() > 1e-3, "the expansion trains, too"


def test_the_gradient_of_the_expansion_is_that_of_differences():
    """d/dw <d l1/du, x'> without a second derivative: l1 along x', then d/dw."""
    share, h = 0.2, 1e-5
    model, (batch, bank) = smooth_net(), a_case()
    loss, _ = parts_of(FedMix(share=share), model, batch, bank)
    u = (1 - share) * batch.x
    output = model(u)

    def own(at):
        return (1 - share) * F.cross_entropy(model(at), batch.y)

    slope = (own(u + h * bank[0]) - own(u - h * bank[0])) / (2 * h)
    foreign = share * F.cross_entropy(output, bank[1].expand(B, M))
    expected = own(u) + foreign + share * slope
    assert loss.item() == pytest.approx(expected.item(), rel=1e-8)
    for p in model.parameters():
        a, b = (
            torch.autograd.grad(v, p, retain_graph=True)[0] for v in (loss, expected)
        )
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_the_expansion_is_not_divided_by_the_batch_size():
    model, (batch, bank) = smooth_net(), a_case()
    _, logged = parts_of(FedMix(share=0.2), model, batch, bank)
    alone = []
    for i in range(B):
        one = Batch(batch.x[i : i + 1], batch.y[i : i + 1], batch.index[:1], 0)
        alone.append(parts_of(FedMix(share=0.2), model, one, bank)[1]["expansion"])
    assert logged["expansion"] == pytest.approx(np.mean(alone), rel=1e-9)


def test_the_second_term_is_linear_in_the_label_and_the_third_in_the_picture():
    model, (batch, (mean_x, mean_y)) = smooth_net(), a_case()
    other_y = torch.tensor([[0.1, 0.1, 0.8]], dtype=torch.float64)
    other_x = a_case(seed=1)[1][0]

    def logged(x, y):
        return parts_of(FedMix(share=0.3), model, batch, (x, y))[1]

    one, two = logged(mean_x, mean_y), logged(other_x, other_y)
    both = logged(mean_x + 2 * other_x, (mean_y + 2 * other_y) / 3)
    third = (one["foreign_loss"] + 2 * two["foreign_loss"]) / 3
    assert both["foreign_loss"] == pytest.approx(third, rel=1e-9)
    total = one["expansion"] + 2 * two["expansion"]
    assert both["expansion"] == pytest.approx(total, rel=1e-9)
    assert logged(0 * mean_x, mean_y)["expansion"] == 0
    assert one["own_loss"] == two["own_loss"]


def test_the_expansion_leaves_an_error_of_second_order():
    model, (batch, bank) = smooth_net(), a_case()
    errors = []
    for share in (0.08, 0.04, 0.02):
        _, logged = parts_of(FedMix(share=share), model, batch, bank)
        u = (1 - share) * batch.x
        moved = (1 - share) * F.cross_entropy(model(u + share * bank[0]), batch.y)
        errors.append(abs(moved.item() - logged["own_loss"] - logged["expansion"]))
        naive = parts_of(FedMix(share=share, naive=True), model, batch, bank)[1]
        assert naive["own_loss"] == pytest.approx(moved.item(), rel=1e-12)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.2)


def test_for_a_linear_network_and_loss_the_expansion_is_exact():
    class Linear:
        def loss(self, output, y):
            target = F.one_hot(y, M) if y.ndim == 1 else y
            return -(output * target).sum(1).mean()

    model = nn.Sequential(nn.Flatten(), nn.Linear(72, M)).double()
    batch, bank = a_case()
    _, logged = parts_of(FedMix(share=0.4), model, batch, bank, Linear())
    moved = 0.6 * Linear().loss(model(0.6 * batch.x + 0.4 * bank[0]), batch.y)
    found = logged["own_loss"] + logged["expansion"]
    assert found == pytest.approx(moved.item(), rel=1e-12)


def test_naive_mixing_is_mixup_with_the_mean():
    model, (batch, bank) = smooth_net(), a_case()
    loss, logged = parts_of(FedMix(share=0.3, naive=True), model, batch, bank)
    mixed = 0.7 * batch.x + 0.3 * bank[0]
    target = 0.7 * F.one_hot(batch.y, M) + 0.3 * bank[1]
    assert loss.item() == pytest.approx(F.cross_entropy(model(mixed), target).item())
    assert logged.keys() == {"own_loss", "foreign_loss"}


def test_one_pair_serves_a_batch_and_all_pairs_come_equally_often():
    model, (batch, _) = smooth_net(), a_case()
    eye = torch.eye(M, dtype=torch.float64)[[0, 0, 1, 2]]
    bank = (torch.zeros(4, 2, 6, 6, dtype=torch.float64), eye)
    context, seen = a_visit(bank), []

    class Watches:
        def loss(self, output, y):
            if y.ndim == 2:
                assert (y == y[0]).all() and y.shape == output.shape
                seen.append(int(y[0].argmax()))
            return output.mean()

    context.task = Watches()
    for _ in range(800):
        FedMix(naive=True).loss(model, batch, context)
    often = np.bincount(seen) / 800
    assert often == pytest.approx([0.5, 0.25, 0.25], abs=0.06)


def test_the_pictures_of_the_batch_stay_as_they_are():
    model, (batch, bank) = smooth_net(), a_case()
    before = batch.x.clone()
    parts_of(FedMix(), model, batch, bank)
    assert torch.equal(batch.x, before) and not batch.x.requires_grad


@pytest.mark.slow
def test_masks_are_mixed_as_shares_of_the_classes_in_each_pixel():
    data = tiny_masks(num=80, size=16)
    federation = Federation.build(data, by_owner(data))
    for method in (FedMix(share=0.2, group_size=5), FedMix(share=0.2, naive=True)):
        run = fitted(federation, method, model=small_unet)
        assert run.history.events().empty and len(run.messages) == 5
        assert distance(run, a_run(federation, method, model=small_unet)) > 1e-3
    said = run.server.memory["labels"]
    for k in range(5):
        masks = federation.client(k).train.whole().y
        torch.testing.assert_close(said[k, 1], masks.float().mean(0))
    torch.testing.assert_close(said.sum(1), torch.ones(5, 16, 16))

    model, share, dice = run.model.eval(), 0.2, task("segmentation")
    batch = federation.client(1).train.batch(np.arange(3))
    bank = run.server.memory["entries"][:1], said[:1]
    loss, logged = parts_of(FedMix(share=share), model, batch, bank, dice)
    output = model((1 - share) * batch.x)
    foreign = share * dice.loss(output, said[:1].expand_as(output))
    assert logged["foreign_loss"] == pytest.approx(foreign.item(), rel=1e-5)
    assert loss.item() == pytest.approx(sum(logged.values()), rel=1e-5)


# ---- what clients say once ----------------------------------------------------------
def whole(federation, client: int):
    """All pictures and one-hot labels of a client."""
    x, y, *_ = federation.client(client).train.whole()
    return x, F.one_hot(y, 4).float()


def test_by_default_a_client_says_the_mean_of_all_it_has(federation):
    bank = begun(federation).server.memory
    assert bank["owner"].tolist() == [0, 1, 2, 3, 4]
    for k in range(5):
        x, onehot = whole(federation, k)
        torch.testing.assert_close(bank["entries"][k], x.mean(0))
        torch.testing.assert_close(bank["labels"][k], onehot.mean(0))
    sizes = torch.tensor(federation.sizes, dtype=torch.float32)
    everything = torch.cat([whole(federation, k)[0] for k in range(5)])
    mean = (bank["entries"] * (sizes / sizes.sum())[:, None, None, None]).sum(0)
    torch.testing.assert_close(mean, everything.mean(0))
    assert (mean - bank["entries"].mean(0)).abs().max() > 1e-3


@pytest.mark.parametrize("size", [2, 3, 4, 7, 100])
def test_groups_are_even_and_none_is_a_single_image(size):
    for n in (1, 2, 3, 5, 7, 9, 10, 23):
        data = tiny_data(num=n + 9, test_share=0)
        federation = Federation.build(data, [np.arange(n), np.arange(n, n + 9)])
        context = a_visit()
        context.client = federation.client(0)
        said = FedMix(group_size=size).client_setup(None, context)
        num = min(math.ceil(n / size), n // 2)
        assert said["images"].shape == (num, 1, 8, 8) and said["labels"].shape == (
            num,
            4,
        )
        if num == 0:
            continue
        sizes = np.bincount(np.arange(n) * num // n)
        assert sizes.min() >= 2 and sizes.max() - sizes.min() <= 1
        assert sizes.max() <= size or num < math.ceil(n / size)
        total = sum(s * v for s, v in zip(sizes, said["labels"], strict=True))
        x, onehot = whole(federation, 0)
        torch.testing.assert_close(total, onehot.sum(0))
        total = sum(s * v for s, v in zip(sizes, said["images"], strict=True))
        torch.testing.assert_close(total, x.sum(0), rtol=1e-4, atol=1e-4)


def test_groups_are_drawn_and_a_seed_decides_them(federation):
    method = FedMix(group_size=3)
    one, again, other = (
        begun(federation, method, seed=seed).server.memory["entries"]
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, again) and not torch.equal(one, other)


def test_a_client_receives_exactly_the_means_of_all_others(federation):
    run = begun(federation, FedMix(group_size=4))
    pool = run.server.memory
    for client in range(5):
        bank = run.private[client].memory
        assert bank.keys() == {"entries", "labels"}
        theirs = pool["owner"] != client
        assert torch.equal(bank["entries"], pool["entries"][theirs])
        assert torch.equal(bank["labels"], pool["labels"][theirs])
        assert 0 < (~theirs).sum() < theirs.sum()


@pytest.mark.slow
@pytest.mark.parametrize("size", [None, 2, 4])
def test_only_means_travel_and_only_once(federation, size):
    run = fitted(federation, FedMix(group_size=size))
    pair = 4 * (2 * 8 * 8) + 4 * 4  # 4 C H W + 4 N_c
    wire = run.wire
    first = wire[wire["round"] == 0].set_index(["direction", "part", "client"]).bytes
    sizes = federation.sizes
    num = [min(math.ceil(n / (size or n)), n // 2) for n in sizes]
    if size != 2:
        assert num == [math.ceil(n / (size or n)) for n in sizes]
    for k in range(5):
        assert first["up", "setup_upload", k] == num[k] * pair
        assert first["down", "setup_reply", k] == (sum(num) - num[k]) * pair
    assert len(first) == 10
    later = wire[wire["round"] > 0]
    assert set(later.part) == {"weights", "num_examples"}, "rounds are those of FedAvg"
    assert run.server.shared == {} and all(m.upload == {} for m in run.messages)


def test_no_single_picture_travels():
    """Not even from a client with one picture, or with one more than groups hold."""
    data = tiny_data(num=30, test_share=0)
    cuts = [np.arange(1), np.arange(1, 10), np.arange(10, 30)]
    federation = Federation.build(data, cuts)
    run = begun(federation, FedMix(group_size=4))
    assert run.server.memory["owner"].bincount().tolist() == [0, 3, 5]
    x = torch.cat([whole(federation, k)[0] for k in range(3)])
    apart = torch.cdist(run.server.memory["entries"].flatten(1), x.flatten(1))
    assert apart.min() > 0.5
    assert [m.client for m in fitted(federation).messages] == [0, 1, 2]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda said: {**said, "labels": said["labels"] * 2},
        lambda said: {**said, "labels": said["labels"] * torch.tensor([-1, 1, 1, 1])},
        lambda said: {**said, "labels": said["labels"][:0]},
    ],
)
def test_labels_that_are_no_shares_leave_that_client_out_of_the_run(federation, spoil):
    with pytest.warns(UserWarning, match="needs a label of shares"):
        run = begun(federation, garbled(FedMix(), 3, spoil))
    assert run.clients.tolist() == [0, 1, 2, 4]


# ---- limits -------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("naive", [False, True])
def test_without_a_share_it_is_fedavg_bit_for_bit(federation, naive):
    for model in (small_cnn, AwkwardNet):
        plain = fitted(federation, FedAvg(), model=model)
        none, tiny, some = (
            fitted(federation, FedMix(share=share, naive=naive), model=model)
            for share in (0.0, 1e-6, 0.1)
        )
        assert distance(plain, none) == 0
        assert 0 < distance(plain, tiny) < 1e-3 < distance(plain, some)


# ---- what cannot be had -------------------------------------------------------------
def test_compiled_networks_are_refused_with_a_cure(federation):
    training = replace(TRAINING, compile=True)
    with pytest.raises(ValueError, match=r"second derivatives.*naive=True"):
        Run(FedMix(), federation, small_cnn, training)
    FedMix(naive=True).check_training(training)


def test_a_transformer_has_the_second_derivatives_that_it_needs(federation):
    """timm's fused attention has none: every client would be left out."""
    run = fitted(federation, model=partial(narrow_vit, prompts=2), rounds=1)
    assert len(run.messages) == len(federation)
    assert run.history.events().empty
