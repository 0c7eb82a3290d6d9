"""FedFA+: alignment of histograms, what travels for it, and where it is FedFA."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fedlab_support import FedAvg, Federation, LocalTraining
from fedlab_support.core.messages import Broadcast
from fedlab_support.core.rng import layer_noise
from fedlab_support.federation.partition import by_owner
from fedlab_support.methods import FedFA, FedFAPlus
from fedlab_support.models import small_alexnet
from fedlab_support.models.layers.histogram import (
    FeatureHistogram,
    extent,
    soft_histogram,
    symmetric_kl,
)
from tests.runs import expect_left_out, garbled, unequal
from tests.support.methods.test_fedfa import (
    ALEXNET,
    UNET,
    Stages,
    a_run,
    extra_bytes,
    fitted,
    same_weights,
)
from tests.tiny import tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation():
    return unequal(val=0.2)


def a_visit(run, client=4, memory=None, **told):
    broadcast = Broadcast(run.server.round + 1, run.server.weights, told)
    return run.job.context(broadcast, client, memory or {}, {})


def features_of(model, x, number=3) -> torch.Tensor:
    """What stage ``number`` hands on in evaluation, (C, n), found another way."""
    model = model.eval()
    with torch.no_grad():
        for stage in model.stages[:number]:
            x = stage(x)
    return x.permute(1, 0, 2, 3).reshape(x.shape[1], -1)


# ---- limits -------------------------------------------------------------------------
@pytest.mark.slow
def test_without_alignment_it_is_fedfa_bit_for_bit(federation):
    runs = [fitted(federation, m, 3) for m in (FedFAPlus(alignment=0), FedFA())]
    assert same_weights(*runs)
    wires = [run.wire.drop(columns="run") for run in runs]
    assert wires[0].equals(wires[1])
    assert not same_weights(fitted(federation, FedFAPlus(), 3), runs[1])


@pytest.mark.slow
def test_little_alignment_is_nearly_fedfa(federation):
    plain, little, much = (
        fitted(federation, FedFAPlus(alignment=a), 3).server.weights
        for a in (0.0, 1e-6, 1.0)
    )
    gap = [max((w[n] - plain[n]).abs().max() for n in plain) for w in (little, much)]
    assert 0 < gap[0] < 1e-4 < 1e-3 < gap[1]


def test_round_1_has_no_alignment(federation):
    assert same_weights(*(fitted(federation, m, 1) for m in (FedFAPlus(), FedFA())))


# ---- histograms ---------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("number", [None, 1])
def test_clients_say_the_histogram_of_their_own_features(federation, number, pool):
    method = FedFAPlus(aligned_stage=number, pool_features=pool, bins=6, p=1.0)
    run = a_run(federation, method)
    run.step(evaluate=False)
    run.step(evaluate=False)  # with the range of this visit, not of the first
    message = run.messages[4]
    model = Stages((2, 8, 8), 4).eval()
    model.load_state_dict(message.weights)
    x = run.federation.client(4).train.whole().x
    with torch.no_grad():
        for stage in model.stages[: number or 3]:
            x = stage(x)
    if pool:
        x = x.mean((2, 3), keepdim=True)
    z = x.permute(1, 0, 2, 3).reshape(x.shape[1], -1)
    between = run.private[4].memory["extent"]
    torch.testing.assert_close(between, extent(z))
    expected = soft_histogram(z, between, 6)
    said = message.upload["histogram"]
    torch.testing.assert_close(said, expected, rtol=1e-3, atol=1e-4)
    means = torch.stack([m.upload["histogram"] for m in run.messages]).mean(0)
    torch.testing.assert_close(run.server.shared["histogram"], means)
    torch.testing.assert_close(means.sum(1), torch.ones(len(means)))


def test_the_loss_is_the_task_loss_and_lambda_times_the_divergence(federation):
    method = FedFAPlus(alignment=0.7, stages=(), temperature=0.05)
    run = a_run(federation, method)
    batch = run.federation.client(4).train.batch(np.arange(9))
    model, goal = run.model.eval(), torch.full((4, 8), 1 / 8)
    memory = {"extent": torch.tensor([[-0.1] * 4, [1.3, 0.9, 2.0, 1.7]])}
    z = features_of(model, batch.x)
    task_loss = FedAvg().loss(model, batch, a_visit(run))
    for known, between in ((memory, memory["extent"]), ({}, extent(z))):
        context = a_visit(run, memory=known, histogram=goal)
        pi = soft_histogram(z, between, 8, 0.05)
        expected = task_loss + 0.7 * symmetric_kl(pi, goal).mean()
        torch.testing.assert_close(method.loss(model, batch, context), expected)
        assert context.logged.keys() == {"task_loss", "divergence"}
    context = a_visit(run)
    assert torch.equal(method.loss(model, batch, context), task_loss)
    assert context.logged == {}, "nothing was told"


def test_features_are_aligned_behind_the_layer_and_with_a_gradient(federation):
    method = FedFAPlus(p=1.0)
    run = a_run(federation, method)
    model = run.model.train()
    batch = run.federation.client(4).train.batch(np.arange(9))
    layer, ffa = model.stages[2].added.histogram, model.stages[2].added.ffa
    behind = []
    ffa.register_forward_hook(lambda _, given, y: behind.extend([given[0], y]))
    with layer.listening() as heard, layer_noise(torch.Generator().manual_seed(0)):
        model(batch.x)
    assert heard[0] is behind[1] and heard[0] is not behind[0]

    goal = torch.zeros(4, 8)
    goal[:, 5] = 1
    with layer_noise(torch.Generator().manual_seed(0)):
        loss = replace(method, temperature=0.1).loss(
            model, batch, a_visit(run, histogram=goal)
        )
    (gradient,) = torch.autograd.grad(loss, model.stages[0][0].weight)
    assert gradient.isfinite().all() and gradient.abs().max() > 0


@pytest.mark.slow
def test_alignment_brings_histograms_together(federation):
    apart = []
    for strength in (1e-9, 0.3):
        method = FedFAPlus(alignment=strength, stages=(), temperature=0.05)
        training = LocalTraining(lr=0.02, epochs=3, batch_size=8)
        run = fitted(federation, method, 5, training=training)
        divergence = run.history.table().query("metric == 'divergence'")
        assert divergence["round"].min() == 2
        apart.append(divergence.query("round > 2")["value"].mean())
    assert apart[1] < 0.6 * apart[0]


@pytest.mark.slow
@pytest.mark.parametrize("bins", [2, 3, 40])
def test_any_number_of_bins_trains(federation, bins):
    run = fitted(federation, FedFAPlus(bins=bins))
    assert run.server.shared["histogram"].shape == (4, bins)
    assert len(run.messages) == 5


def test_a_new_client_aligns_with_the_range_of_its_batches(federation):
    chosen = iter([[0, 1], [1, 2]])
    run = a_run(federation, FedFAPlus(), select=lambda *_: next(chosen))
    run.step(evaluate=False).step(evaluate=False)
    assert [m.client for m in run.messages] == [1, 2]
    assert all("divergence" in m.metrics for m in run.messages)
    assert set(run.private) == {0, 1, 2}


def test_a_dead_network_says_a_histogram_all_the_same(federation):
    class Dead(Stages):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.stages[2][1].bias.data.fill_(-100)

    run = fitted(federation, FedFAPlus(), model=Dead)
    assert len(run.messages) == 5
    rows = run.server.shared["histogram"]
    torch.testing.assert_close(rows[:, :2], torch.full((4, 2), 0.5))


# ---- the wire -----------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("widths", "noise", "histograms"),
    [(ALEXNET, 18_432, 16_384), (UNET, 15_872, 32_768)],
)
def test_the_papers_bytes_travel_and_no_more(federation, widths, noise, histograms):
    settings = {
        "model": partial(Stages, widths=widths),
        "select": lambda *_: [2],
        "training": LocalTraining(batch_size=64),
    }
    run = fitted(federation, FedFAPlus(), **settings)
    half = (noise + histograms) // 2
    assert extra_bytes(run, 1, 2) == {"up": half}
    assert extra_bytes(run, 2, 2) == {"up": half, "down": half}
    alone = fitted(federation, FedFAPlus(stages=()), **settings)
    assert extra_bytes(alone, 2, 2) == {"up": histograms // 2, "down": histograms // 2}


@pytest.mark.slow
def test_histograms_are_noisy_with_the_moments_and_stay_histograms(federation):
    plain, noisy = (fitted(federation, FedFAPlus(noise=s), rounds=1) for s in (0, 0.02))
    assert same_weights(plain, noisy), "what stays at home has no noise"
    pairs = [
        (a.upload["histogram"], b.upload["histogram"])
        for a, b in zip(plain.messages, noisy.messages, strict=True)
    ]
    change = torch.cat([(b - a)[a > 0.1].flatten() for a, b in pairs])
    assert change.std().item() == pytest.approx(0.02, rel=0.35)
    loud = fitted(federation, FedFAPlus(noise=0.4), rounds=3)
    assert loud.history.events().empty, "nobody is left out"
    assert len(loud.messages) == 5
    for message in loud.messages:
        rows = message.upload["histogram"]
        assert (rows >= 0).all() and torch.allclose(rows.sum(1), torch.ones(len(rows)))


def test_rows_become_shares_again():
    rows = torch.tensor([[0.5, -0.2, 0.5], [-1.0, -2.0, -3.0]])
    expected = torch.tensor([[0.5, 0.0, 0.5], [1 / 3, 1 / 3, 1 / 3]])
    torch.testing.assert_close(FeatureHistogram.as_shares(rows), expected)


def test_the_range_stays_at_home(federation):
    run = fitted(federation, FedFAPlus())
    assert set(run.private[3].memory) == {"extent"}
    said = set(run.messages[3].upload) | set(run.server.shared)
    assert {name.split(".")[-1] for name in said} == {
        *("moments", "variances", "histogram")
    }


# ---- as for every method ------------------------------------------------------------
def test_the_papers_kind_of_network_is_trained():
    data = tiny_data(num=30, size=64, channels=3, owners=2)
    federation = Federation.build(data, by_owner(data))
    training = LocalTraining(lr=0.01, batch_size=8)
    run = fitted(federation, FedFAPlus(), model=small_alexnet, training=training)
    assert run.server.shared["histogram"].shape == (64, 8)
    assert len(run.server.shared) == 6 and len(run.messages) == 2
    assert (run.server.shared["stages.0.added.ffa.variances"] > 0).all()


def test_tables_call_it_by_the_papers_name(federation):
    run = fitted(federation, FedFAPlus(), 1)
    assert set(run.history.table()["method"]) == {"FedFA+"}
    assert run.history.run == "FedFA+, seed 0"
    assert "FedFAPlus(" in repr(run) and "alignment=0.1" in repr(run)


# ---- what cannot be had -------------------------------------------------------------
@pytest.mark.parametrize("number", [0, 4, -1])
def test_a_stage_that_the_network_lacks_is_refused(federation, number):
    with pytest.raises(ValueError, match=r"numbered 1…3, each at most once; found"):
        a_run(federation, FedFAPlus(aligned_stage=number))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda pi: pi * 2, "sum to 1"),
        (lambda pi: torch.cat([pi[:, :1] - 1, pi[:, 1:] + 1 / 7], 1), "≥ 0"),
        (lambda pi: pi[:2], "of shape"),
    ],
)
def test_a_wrong_histogram_leaves_its_client_out(federation, wrong, reason):
    method = garbled(
        FedFAPlus(), 2, lambda said: {**said, "histogram": wrong(said["histogram"])}
    )
    expect_left_out(a_run(federation, method), 2, reason)
