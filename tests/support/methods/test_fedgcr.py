"""FedGCR: prompts that depend on the image, and two contrastive losses."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlab_support import VPT, Federation, FedGCR, FedGR
from fedlab_support.core.messages import Broadcast
from fedlab_support.methods.shared.grouping import centres, contrast
from fedlab_support.training.context import ClientContext
from fedlab_support.training.settings import Augmentation
from tests.runs import (
    Turns,
    a_run,
    bytes_by_part,
    distance,
    fitted,
    unequal,
)
from tests.tiny import a_stream, tiny_data
from tests.vit import ADAMW, D, narrow_vit

pytestmark = pytest.mark.usefixtures("one_thread")
run_of = partial(fitted, model=narrow_vit, training=ADAMW)
new_run = partial(a_run, model=narrow_vit, training=ADAMW)
M, TWO = 4, FedGCR(num_groups=2)
P = 4 * D + (2 * D * 4 * D + 4 * D + D) + (D * M + M)


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


@pytest.fixture(scope="module")
def started(federation):
    """After two rounds."""
    return run_of(TWO, federation, 2)


# ---- the losses ---------------------------------------------------------------------
def visit_in(run, client: int, training=ADAMW, **told) -> ClientContext:
    """A visit of round 3, as the run would make it."""
    server, method = run.server, run.method
    client_broadcast = method.client_broadcast(server, client) | told
    return ClientContext(
        run.federation.client(client),
        Broadcast(server.round + 1, server.weights, client_broadcast),
        training,
        run.job.context(Broadcast(0, {}), client, {}, {}).task,
        a_stream(),
        memory=dict(run.private[client].memory),
    )


def cosine(a, b) -> float:
    return float(F.cosine_similarity(a, b, dim=0))


@pytest.mark.slow
def test_the_loss_is_that_of_the_equations(started):
    """With z under three sets of weights, image by image."""
    run, client, tau = started, 3, 0.3
    method = replace(TWO, gc_weight=0.7, ra_weight=0.4, temperature=tau)
    context, model = visit_in(run, client), run.model.eval()
    state = {n: v.clone() for n, v in run.server.weights.items()}
    moving = {n: v + 0.05 for n, v in state.items()}
    previous = dict(run.private[client].memory)
    h_prev = previous.pop("representation")
    batch = run.federation.client(client).train.batch(np.array([5, 0, 7]))

    def features(weights):
        model.load_state_dict(weights, strict=False)
        e = model.look(batch.x)
        return model.encode(batch.x).detach(), model.prompts.customise(e).detach()

    (z_0, _), (z_prev, _) = features(state), features(previous)
    z, h = features(moving)
    expected = F.cross_entropy(model.head(z), batch.y)
    group = int(context.received.shared["group"])
    h_all = context.received.shared["centres"]
    assert h_all.shape == (2, D) and group in (0, 1)
    gc = ra = 0.0
    for b in range(3):
        right = math.exp(cosine(h[b], h_all[group]) / tau)
        every = sum(math.exp(cosine(h[b], row) / tau) for row in h_all)
        every += math.exp(cosine(h[b], h_prev) / tau)
        gc -= math.log(right / every) / 3
        near = math.exp(cosine(z[b], z_0[b]) / tau)
        far = math.exp(cosine(z[b], z_prev[b]) / tau)
        ra -= math.log(near / (near + far)) / 3
    found = method.loss(model, batch, context)
    assert found.item() == pytest.approx(
        expected.item() + 0.7 * gc + 0.4 * ra, rel=1e-5
    )
    assert context.logged["gc"][0].item() == pytest.approx(0.7 * gc, rel=1e-4)
    assert context.logged["ra"][0].item() == pytest.approx(0.4 * ra, rel=1e-4)
    assert gc > 0 and ra > 0
    run.model.load_state_dict(state, strict=False)


def test_what_is_compared_with_is_constant(started):
    context, model = visit_in(started, 4), started.model
    batch = started.federation.client(4).train.batch(np.arange(6))
    parameters = [p for p in model.parameters() if p.requires_grad]
    loss = TWO.loss(model, batch, context)
    gradients = torch.autograd.grad(loss, parameters)
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
    for rows in (context.cache["received"], context.cache["previous"]):
        assert not rows.requires_grad and len(rows) == len(context.client.train)


def test_norms_of_prompts_and_of_their_shift_are_logged(started):
    context, model = visit_in(started, 4), started.model
    batch = started.federation.client(4).train.batch(np.arange(6))
    TWO.loss(model, batch, context)
    with torch.no_grad():
        h = model.prompts.customise(model.look(batch.x))
        shift = np.mean([float(row.norm()) for row in h])
        prompts = np.mean([float(token.norm()) for token in model.prompts.tokens[0]])
    found = context.logged_means()
    assert found["shift_norm"] == pytest.approx(shift, rel=1e-4)
    assert found["prompt_norm"] == pytest.approx(prompts, rel=1e-5)


@pytest.mark.slow
def test_in_round_1_there_is_cross_entropy_only(federation):
    with_losses = run_of(replace(TWO, reweight=False), federation, 1)
    off = replace(TWO, reweight=False, gc_weight=0.0, ra_weight=0.0)
    without = run_of(off, federation, 1)
    assert distance(with_losses, without) == 0
    names = set(with_losses.messages[0].metrics)
    assert names == {"loss", "task_loss", "prompt_norm", "shift_norm"}
    with_losses.step(evaluate=False), without.step(evaluate=False)
    assert distance(with_losses, without) > 1e-5
    assert set(with_losses.messages[0].metrics) == names | {"gc", "ra"}


@pytest.mark.slow
def test_each_loss_matters_on_its_own_and_little_if_it_weighs_little(federation):
    off = replace(TWO, gc_weight=0.0, ra_weight=0.0)
    plain = run_of(off, federation, 3)
    for name in ("gc_weight", "ra_weight"):
        much, little = (
            distance(plain, run_of(replace(off, **{name: w}), federation, 3))
            for w in (2.0, 1e-6)
        )
        assert much > 1e-3
        assert little < 0.1 * much


def test_the_first_step_is_as_far_from_both_pasts_as_the_received_model(started):
    """z = z_0 there, so RA is -log(e^(1/tau) / (e^(1/tau) + e^(s/tau)))."""
    context, model = visit_in(started, 4), started.model
    batch = started.federation.client(4).train.batch(np.arange(6))
    TWO.loss(model, batch, context)
    z_0, z_prev = (context.cache[n][batch.index] for n in ("received", "previous"))
    s = F.cosine_similarity(z_0, z_prev)
    expected = torch.log1p(((s - 1) / 0.5).exp()).mean()
    found = context.logged["ra"][0] / 0.1
    assert found.item() == pytest.approx(expected.item(), rel=1e-3)
    context.memory |= {
        n: v for n, v in started.server.weights.items() if "prompts" in n
    }
    context.cache.clear()
    TWO.loss(model, batch, context)
    assert context.logged["ra"][1].item() == pytest.approx(0.1 * math.log(2), rel=1e-4)


class Dead(FedGCR):
    """GC-Net is zero everywhere, and stays so."""

    def adapt(self, model):
        model = super().adapt(model)
        for parameter in model.prompts.customise.parameters():
            parameter.data.zero_()
            parameter.requires_grad_(False)
        return model


@pytest.mark.slow
def test_representations_of_zero_give_no_nan(federation):
    run = run_of(Dead(num_groups=2), federation, 3)
    assert len(run.messages) == 5 and run.history.events().empty
    assert all(v.isfinite().all() for v in run.server.weights.values())
    assert run.messages[0].upload["representation"].abs().sum() == 0
    assert run.messages[0].metrics["gc"] == pytest.approx(0.5 * math.log(2))


# ---- what a client says and keeps ---------------------------------------------------
def test_a_client_says_its_mean_type_prompt_of_the_trained_model(started):
    run = started
    for message in run.messages:
        model = run.model.eval()
        model.load_state_dict(message.weights, strict=False)
        whole = run.federation.client(message.client).train.whole()
        with torch.no_grad():
            h = model.prompts.customise(model.look(whole.x))
        classes = sorted(set(whole.y.tolist()))
        rows = [h[whole.y == c].mean(0) for c in classes]
        expected = torch.stack(rows).mean(0)
        torch.testing.assert_close(message.upload["representation"], expected)
        memory = run.private[message.client].memory
        assert torch.equal(memory["representation"], message.upload["representation"])
        for name, value in message.weights.items():
            if name.startswith("prompts."):
                assert torch.equal(memory[name], value)
        assert len(memory) == 6, "no head"
    run.show_weights()


@pytest.mark.slow
def test_the_codes_representation_is_that_of_the_received_model(federation):
    run = run_of(replace(TWO, group_early=True), federation, 1)
    before = {n: v.clone() for n, v in run.server.weights.items()}
    run.step(evaluate=False)
    model = run.model.eval()
    model.load_state_dict(before, strict=False)
    for message in run.messages:
        whole = run.federation.client(message.client).train.whole()
        with torch.no_grad():
            h = model.prompts.customise(model.look(whole.x))
        rows = [h[whole.y == c].mean(0) for c in whole.y.unique()]
        found = message.upload["representation"]
        torch.testing.assert_close(found, torch.stack(rows).mean(0))
        kept = run.private[message.client].memory["representation"]
        assert torch.equal(kept, found)


def test_the_centres_and_the_own_group_come_down(started):
    memory = started.server.memory
    for g in range(2):
        mean = memory["representations"][memory["groups"] == g].mean(0)
        torch.testing.assert_close(centres(memory)[g], mean)
    for client in range(5):
        told = TWO.client_broadcast(started.server, client)
        assert set(told) == {"centres", "group"}
        assert torch.equal(told["centres"], centres(memory))
        assert told["group"].tolist() == [memory["groups"][client].item()]
    assert set(TWO.client_broadcast(started.server, 99)) == {"centres"}, (
        "nobody knows it yet"
    )


@pytest.mark.slow
def test_the_bytes_are_those_of_the_specification(federation):
    run = run_of(TWO, federation, 2)
    groups = int(run.server.memory["groups"].max()) + 1
    wire = run.wire.set_index(["round", "direction", "part", "client"]).bytes
    for k in range(5):
        for round in (1, 2):
            assert wire[round, "up", "weights", k] == 4 * P
            assert wire[round, "up", "upload", k] == 4 * D + 8
        assert wire[2, "down", "shared", k] == 4 * D * groups + 8
    assert run.wire.query("round == 1 and part == 'shared'").empty
    assert groups == 2
    # the paper's network: P = 4,733,194
    wide, many = 768, 3072
    paper = 4 * wide + 2 * wide * many + many + wide + 10 * wide + 10
    assert paper == 4_733_194


# ---- the first pass is kept ---------------------------------------------------------
def test_the_first_pass_is_made_once(federation, monkeypatch):
    seen = []
    run = new_run(TWO, federation)
    kind = type(run.model)
    look = kind.look

    def watched(self, x):
        seen.append(len(x))
        return look(self, x)

    monkeypatch.setattr(kind, "look", watched)
    for _ in range(3):
        run.must_measure = False
        run.step(evaluate=False)
    assert sum(seen) == federation.sizes.sum()


class Anew(FedGCR):
    """Every pass is made for the batch at hand."""

    def loss(self, model, batch, context):
        own = replace(context.training, augment=Augmentation())
        return super().loss(model, batch, replace(context, training=own, cache={}))


@pytest.mark.slow
def test_with_and_without_what_is_kept_training_is_the_same(federation):
    """To the bit where an image's features do not depend on its batch."""
    kept, anew = (run_of(m, federation, 3) for m in (TWO, Anew(num_groups=2)))
    assert distance(kept, anew) < 1e-6


# ---- the ablation -------------------------------------------------------------------
@pytest.mark.slow
def test_its_four_rows(federation):
    off = {"customise": False, "reweight": False}
    vpt = run_of(VPT(init="normal"), federation, 3)
    none = run_of(FedGCR(**off), federation, 3)
    assert distance(vpt, none) == 0 and bytes_by_part(vpt) == bytes_by_part(none)
    assert none.private == {} and none.server.memory == {}
    gr = run_of(FedGCR(customise=False), federation, 3)
    assert distance(gr, run_of(FedGR(init="normal"), federation, 3)) == 0
    gc = run_of(FedGCR(reweight=False), federation, 3)
    both = run_of(FedGCR(), federation, 3)
    assert distance(gr, none) > 1e-5 and distance(gc, both) > 1e-5
    assert set(gc.messages[0].upload) == {"representation"}
    assert set(both.messages[0].upload) == {"representation", "loss"}


def test_without_reweighting_the_mean_is_that_of_fedavg(federation):
    run = new_run(replace(TWO, reweight=False), federation)
    run.step(evaluate=False)
    sizes = federation.sizes / federation.sizes.sum()
    for name, value in run.server.weights.items():
        mean = sum(
            size * m.weights[name].double()
            for size, m in zip(sizes, run.messages, strict=True)
        )
        torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-7)


# ---- as for every method ------------------------------------------------------------
def test_who_comes_late_trains_without_a_past(federation):
    run = new_run(TWO, federation, select=Turns())
    run.step(evaluate=False).step(evaluate=False)
    metrics = {m.client: set(m.metrics) for m in run.messages}
    always = {"loss", "task_loss", "prompt_norm", "shift_norm"}
    assert metrics[1] == metrics[2] == always | {"gc", "ra"}
    assert metrics[3] == always
    assert run.server.memory["clients"].tolist() == [0, 1, 2, 3]


class Darker(Augmentation):
    """Half the brightness."""

    def apply(self, model, batch, context, rng):
        return batch._replace(x=0.5 * batch.x)


@pytest.mark.slow
def test_pictures_that_were_changed_are_seen_as_they_are(federation):
    training = replace(ADAMW, augment=Darker())
    run = run_of(TWO, federation, 2, training=training)
    model, batch = run.model, federation.client(4).train.batch(np.arange(5))
    dark, context = Darker().apply(None, batch, None, None), visit_in(run, 4, training)
    TWO.loss(model, dark, context)
    assert context.cache == {}, "these images do not come again"
    h = model.prompts.customise(model.look(dark.x))
    told, memory = context.received.shared, context.memory
    known = torch.cat([memory["representation"][None], told["centres"]])
    expected = 0.5 * contrast(h, known, 1 + told["group"], 0.5)
    torch.testing.assert_close(context.logged["gc"][0], expected.detach())
    plain = visit_in(run, 4)
    TWO.loss(model, batch, plain)
    assert (plain.logged["ra"][0] - context.logged["ra"][0]).abs() > 1e-6
    assert set(plain.cache) == {"first pass", "received", "previous"}


@pytest.mark.slow
def test_prompts_of_each_layer_are_customised_too(federation):
    run = run_of(replace(TWO, deep=True), federation, 2)
    assert run.server.weights["prompts.tokens"].shape == (2, 4, D)


@pytest.mark.slow
def test_types_that_look_different_are_told_apart():
    data = tiny_data(num=150, channels=3, domains=2, owners=6, test_share=0.0)
    data.images[data.domain == 1] = 255 - data.images[data.domain == 1]
    parts = [np.flatnonzero(data.owner == k) for k in range(6)]
    training = replace(ADAMW, lr=1e-3)
    for method in (TWO, FedGR(num_groups=2)):
        run = run_of(method, Federation.build(data, parts), 2, training=training)
        assert run.server.memory["groups"].tolist() == [0, 1, 0, 1, 0, 1]
