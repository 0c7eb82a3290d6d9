"""Augmentations: the five papers' invariants, and any method with any of them."""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from torch.nn import functional as F

from fedlab_support import (
    FedAvg,
    FedAvgM,
    FedDG,
    Federation,
    FedProx,
    FedSAM,
    FedSR,
    LocalTraining,
    Run,
    small_cnn,
)
from fedlab_support.core.rng import current_layer_noise, numpy_stream
from fedlab_support.engines.flower.records import identity
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FISC, FPL, FedBN, FedGCR, FedGR
from fedlab_support.methods.augment import DACSC, ManifoldMixup, MixStyle, Mixup, MoEx
from fedlab_support.methods.augment.common import mixed_labels
from fedlab_support.models.layers.frequency import CCNorm
from fedlab_support.models.layers.mixing import FeatureMixing, MomentExchange, Pairs
from fedlab_support.models.stages import insert
from fedlab_support.models.unet import small_unet
from fedlab_support.training.settings import Augmentation
from tests import runs
from tests.support.methods.test_contract import same
from tests.support.methods.test_methods import linear
from tests.support.methods.test_reference import FLOAT32, case, vectors
from tests.support.models.test_mixing import (
    GRADIENT,
    ORDER,
    features,
    paired,
    the_pairs,
)
from tests.tiny import a_stream, tiny_data

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = LocalTraining(lr=0.05, epochs=2, batch_size=7)
normed_cnn = partial(small_cnn, norm="batch")
a_visit = partial(runs.a_visit, client=3)

ALL = (
    Mixup(),
    ManifoldMixup(),
    MixStyle(p=1.0, alpha=1.0),
    MoEx(p=1.0),
    DACSC(),
    DACSC(adjust_content=True),
)
LABEL_MIXERS = (Mixup(), ManifoldMixup(), MoEx())
NEUTRAL = (
    Mixup(alpha=0),
    Mixup(p=0),
    ManifoldMixup(alpha=0),
    MixStyle(p=0),
    MixStyle(alpha=0),
    MoEx(p=0),
)
with_each = pytest.mark.parametrize("augment", ALL, ids=repr)
when_neutral = pytest.mark.parametrize("augment", NEUTRAL, ids=repr)


def a_run(federation, augment, method=None, model=normed_cnn, **settings) -> Run:
    settings = {"workers": 1, "training": TRAINING, **settings}
    training = replace(settings.pop("training"), augment=augment)
    return Run(method or FedAvg(), federation, model, training, **settings)


def fitted(federation, augment, method=None, rounds=2, **settings) -> Run:
    run = a_run(federation, augment, method, **settings)
    run.fit(rounds, progress=False)
    assert run.history.events().empty
    return run


def distance(a: Run, b: Run) -> float:
    """Largest difference of weights that both have."""
    common = a.server.weights.keys() & b.server.weights.keys()
    pairs = [(a.server.weights[n], b.server.weights[n]) for n in common]
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def a_batch(federation, num: int = 6, client: int = 3) -> Batch:
    return federation.client(client).train.batch(np.arange(num))


# ---- mixup --------------------------------------------------------------------------
def drawn(monkeypatch, share: float, order) -> None:
    """From now on every draw of pairs gives these."""
    pairs = the_pairs(share, torch.as_tensor(order))
    monkeypatch.setattr(Pairs, "draw", classmethod(lambda *_: pairs))


@pytest.mark.parametrize("share", ["0.0", "0.3", "1.0"])
@pytest.mark.parametrize("augment", [Mixup(), ManifoldMixup(stages=(0,))], ids=repr)
def test_mixup_has_the_official_batch_loss_and_gradient(monkeypatch, share, augment):
    given = {n: torch.from_numpy(np.array(a)) for n, a in vectors("mixup").items()}
    expected = case("mixup", f"lam{share}")
    drawn(monkeypatch, float(share), given["perm"])
    data = tiny_data(classes=5)
    context = a_visit(Federation.build(data, by_owner(data)))
    model = nn.Linear(12, 5)
    model.load_state_dict({n: given[n] for n in ("weight", "bias")})
    batch = Batch(given["x"], given["y"], torch.arange(8), 0)

    mixed = augment.apply(model, batch, context, rng())
    np.testing.assert_allclose(mixed.x, expected["x_mixed"], **FLOAT32)
    np.testing.assert_allclose(mixed.y, expected["soft_target"], **FLOAT32)
    output = model(mixed.x)
    loss = context.task.loss(output, mixed.y)
    loss.backward()
    np.testing.assert_allclose(loss.item(), expected["loss"], **FLOAT32)
    np.testing.assert_allclose(model.weight.grad, expected["grad_weight"], **GRADIENT)
    official = F.binary_cross_entropy(output.detach().softmax(1), mixed.y)
    bce = expected["manifold_bce_on_softmax"]
    np.testing.assert_allclose(official, bce, **FLOAT32)
    assert abs(loss.item() - official) > 0.1, "another objective"


@pytest.mark.slow
def test_lambda_follows_beta_and_is_one_per_batch(federation):
    batch, context, stream = a_batch(federation, 2), a_visit(federation), rng()
    largest = []
    for _ in range(2_000):
        y = Mixup(alpha=0.2).apply(None, batch, context, stream).y
        own = y[torch.arange(2), batch.y]
        assert batch.y[0] != batch.y[1] and own[0] == own[1]
        largest.append(own[0].item())
    share = np.array(largest)[np.array(largest) < 1]  # the others met themselves
    assert len(share) == pytest.approx(1_000, abs=150)
    assert share.var() == pytest.approx(0.25 / 1.4, rel=0.1)  # 1 / (4 (2 alpha + 1))


def test_only_the_asked_share_of_batches_is_mixed(federation):
    batch, context, stream = a_batch(federation), a_visit(federation), rng()
    outcomes = [Mixup(p=0.25).apply(None, batch, context, stream) for _ in range(800)]
    plain = sum(mixed is batch for mixed in outcomes)
    assert plain == pytest.approx(600, abs=50)


def test_masks_are_mixed_as_one_hot(federation):
    class Masks:
        def soft(self, y, num_classes):
            return F.one_hot(y, num_classes).movedim(-1, 1).float()

    context = a_visit(federation)
    context.task = Masks()
    y = torch.randint(context.num_classes, (6, 3, 2), generator=a_stream().generator)
    batch = a_batch(federation)._replace(y=y)
    soft = mixed_labels(batch, the_pairs(0.3), context)
    assert soft.shape == (6, context.num_classes, 3, 2)
    torch.testing.assert_close(soft.sum(1), torch.ones(6, 3, 2))
    i, j = 1, ORDER[1]
    own = soft[i].gather(0, y[i][None])[0]
    expected = torch.where(y[i] == y[j], 1.0, 0.3)
    torch.testing.assert_close(own, expected)


# ---- manifold mixup -----------------------------------------------------------------
class LinearNet(nn.Module):
    """Nothing but affine maps between the image and the logits."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        c, h, w = image_shape
        self.stages = nn.Sequential(
            nn.Sequential(nn.Conv2d(c, 3, 3)), nn.Sequential(nn.Conv2d(3, 5, 3))
        )
        self.widths = (3, 5)
        self.head = nn.Linear(5 * (h - 4) * (w - 4), num_classes)

    def encode(self, x):
        return self.stages(x).flatten(1)

    def forward(self, x):
        return self.head(self.encode(x))


def mixed_outputs(model, federation, stages, seed: int = 0):
    """Logits and labels of one batch, for each stage of ``stages`` alone."""
    batch, context = a_batch(federation), a_visit(federation)
    for stage in stages:
        augment = ManifoldMixup(stages=(stage,))
        adapted = augment.adapt(model(federation)).train()
        seen = augment.apply(adapted, batch, context, rng(seed))
        yield adapted(seen.x), seen.y


def seeded(model, federation) -> nn.Module:
    return Run(FedAvg(), federation, model, TRAINING).model


def test_in_a_linear_network_all_stages_give_the_same_logits(federation):
    found = list(mixed_outputs(partial(seeded, LinearNet), federation, (0, 1, 2)))
    plain = seeded(LinearNet, federation)(a_batch(federation).x)
    for output, y in found:
        torch.testing.assert_close(output, found[0][0], rtol=1e-5, atol=1e-5)
        assert torch.equal(y, found[0][1])
        assert (output - plain).abs().max() > 1e-2


def test_in_another_network_they_differ_and_gradients_reach_both(federation):
    found = [
        o for o, _ in mixed_outputs(partial(seeded, small_cnn), federation, range(3))
    ]
    assert all((found[0] - other).abs().max() > 1e-5 for other in found[1:])
    h = features()
    y = paired(FeatureMixing(), the_pairs(0.3))(h)
    (gradient,) = torch.autograd.grad(y[0].sum(), h)
    expected = torch.zeros(6)
    expected[0], expected[ORDER[0]] = 0.3, 0.7
    torch.testing.assert_close(gradient[:, 0, 0, 0], expected)


def test_with_pictures_only_it_needs_no_stages(federation):
    a_run(federation, ManifoldMixup(stages=(0,)), model=linear)
    with pytest.raises(ValueError, match="with stages"):
        a_run(federation, ManifoldMixup(stages=(1,)), model=linear)


@pytest.mark.slow
def test_with_pictures_only_it_is_mixup_bit_for_bit(federation):
    runs = [fitted(federation, a) for a in (Mixup(), ManifoldMixup(stages=(0,)))]
    assert distance(*runs) == 0
    assert distance(runs[0], fitted(federation, ManifoldMixup())) > 1e-3


@pytest.mark.parametrize("stages", [(k,) for k in range(6)])
def test_what_goes_past_a_stage_is_mixed_with_it(federation, monkeypatch, stages):
    """At share 0 a U-Net's output is the partner's, its skip connections included."""
    drawn(monkeypatch, 0.0, ORDER)
    augment, context = ManifoldMixup(stages=stages), a_visit(federation)
    model = small_unet((2, 16, 16)).train()
    x = features((6, 2, 16, 16)).detach()
    plain, names = model(x), model.state_dict().keys()
    augment.adapt(model)
    seen = augment.apply(model, a_batch(federation)._replace(x=x), context, rng())
    torch.testing.assert_close(model(seen.x), plain[ORDER], rtol=1e-4, atol=1e-4)
    assert model.state_dict().keys() == names


@pytest.mark.parametrize("pairs", [the_pairs(1.0), the_pairs(0.3, torch.arange(6))])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_nothing_mixed_gives_the_plain_loss(monkeypatch, federation, pairs, stage):
    monkeypatch.setattr(Pairs, "draw", classmethod(lambda *_: pairs))
    model = partial(seeded, small_cnn)
    ((output, y),) = mixed_outputs(model, federation, (stage,))
    batch, loss = a_batch(federation), a_visit(federation).task.loss
    plain = loss(model(federation)(batch.x), batch.y)
    torch.testing.assert_close(loss(output, y), plain, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_stages_are_drawn_alike_and_one_acts_at_a_time(federation):
    augment, context = ManifoldMixup(), a_visit(federation)
    model = augment.adapt(seeded(small_cnn, federation))
    batch, stream, drawn = a_batch(federation, 2), rng(), Counter()
    for _ in range(3_000):
        seen = augment.apply(model, batch, context, stream)
        active = [s for s in (1, 2) if model.stages[s - 1].added.augment.pairs]
        active += [0] if seen.x is not batch.x else []
        drawn.update(active)
        assert len(active) == 1
    assert chisquare([drawn[k] for k in range(3)]).pvalue > 0.01


# ---- MixStyle -----------------------------------------------------------------------
def test_each_stage_draws_for_itself_as_often_as_asked(federation):
    augment, context = MixStyle(p=0.3), a_visit(federation)
    model = augment.adapt(seeded(small_cnn, federation))
    batch, stream, active, shares = a_batch(federation), rng(), [], []
    for _ in range(1_000):
        assert augment.apply(model, batch, context, stream) is batch
        pairs = [stage.added.augment.pairs for stage in model.stages]
        active.append([each is not None for each in pairs])
        if all(active[-1]):
            assert not torch.equal(pairs[0].share, pairs[1].share)
            assert len(set(pairs[0].share.tolist())) > 1, "one for each image"
            shares.append(pairs[0].share)
    np.testing.assert_allclose(np.mean(active, axis=0), 0.3, atol=0.05)
    assert np.mean(np.all(active, axis=1)) == pytest.approx(0.09, abs=0.03)
    # 1 / (4 (2 alpha + 1))
    assert torch.cat(shares).var().item() == pytest.approx(0.25 / 1.2, rel=0.1)


# ---- MoEx ---------------------------------------------------------------------------
def test_labels_are_shared_by_the_same_pairs(federation):
    augment, context = MoEx(p=1.0, label_share=0.9), a_visit(federation)
    model = augment.adapt(seeded(small_cnn, federation))
    batch = a_batch(federation)
    seen = augment.apply(model, batch, context, rng())
    order = model.stages[0].added.augment.pairs.order
    assert seen.x is batch.x
    expected = F.one_hot(batch.y, context.num_classes) * 0.9
    expected = expected + F.one_hot(batch.y[order], context.num_classes) * 0.1
    torch.testing.assert_close(seen.y, expected)


def test_a_label_share_of_1_exchanges_features_and_keeps_labels(federation):
    augment, context = MoEx(p=1.0, label_share=1.0), a_visit(federation)
    model = augment.adapt(seeded(small_cnn, federation))
    batch = a_batch(federation)
    assert augment.apply(model, batch, context, rng()) is batch
    plain = model.eval()(batch.x)
    assert (model.train()(batch.x) - plain).abs().max() > 1e-3


def test_batches_without_exchange_are_plain(federation):
    augment, context = MoEx(p=0.25), a_visit(federation)
    model = augment.adapt(seeded(small_cnn, federation))
    batch, stream, plain = a_batch(federation), rng(), 0
    for _ in range(800):
        seen = augment.apply(model, batch, context, stream)
        idle = model.stages[0].added.augment.pairs is None
        assert idle == (seen is batch)
        plain += idle
    assert plain == pytest.approx(600, abs=50)


# ---- DAC-SC -------------------------------------------------------------------------
def test_its_parameters_travel_and_are_averaged(federation):
    plain, run = fitted(federation, None, rounds=1), fitted(federation, DACSC())
    added = run.server.weights.keys() - plain.server.weights.keys()
    names = ("weight", "bias", "logits")
    assert added == {f"stages.{s}.added.augment.{n}" for s in (0, 1) for n in names}
    sizes = [
        w.query("part == 'weights' and round == 1").bytes.max()
        for w in (run.wire, plain.wire)
    ]
    assert sizes[0] - sizes[1] == 4 * ((2 * 8 + 2) + (2 * 16 + 2))
    for name in added:
        said = torch.stack([m.weights[name] for m in run.messages])
        shares = FedAvg().aggregation_weights(run.server, run.messages).float()
        mean = torch.tensordot(shares, said, 1)
        torch.testing.assert_close(run.server.weights[name], mean)
        assert said.std(0).max() > 0, "clients learned differently"


def test_content_norm_takes_the_place_and_the_names_of_batch_norm(federation):
    run = a_run(federation, DACSC(adjust_content=True))
    kinds = [[type(m).__name__ for m in stage.modules()] for stage in run.model.stages]
    assert "CCNorm" in kinds[1] and "BatchNorm2d" not in kinds[1]
    assert "CCNorm" not in kinds[0], "stages 2 and 3 only"
    plain, found = a_run(federation, DACSC()).server, run.server
    added = {"stages.1.1.logits"}
    assert found.weights.keys() - plain.weights.keys() == added
    assert plain.weights.keys() <= found.weights.keys()
    with pytest.raises(ValueError, match="norm='batch'"):
        a_run(federation, DACSC(adjust_content=True), model=small_cnn)


def test_a_unet_has_both_norms_in_its_encoder():
    model = DACSC(adjust_content=True).adapt(small_unet((2, 16, 16)))
    added = [len(getattr(stage, "added", ())) for stage in model.stages]
    assert added == [1, 1, 1, 0, 0], "behind the first three stages"
    kinds = [[type(m) for m in block.modules()] for block in model.blocks]
    assert [CCNorm in found for found in kinds] == [False, True, True, False]
    assert model(features((3, 2, 16, 16))).isfinite().all()


def test_networks_without_running_statistics_or_widths_are_refused():
    model = LinearNet((2, 8, 8), 4)
    model.stages[1].append(nn.BatchNorm2d(5, track_running_stats=False))
    with pytest.raises(ValueError, match="norm='batch'"):
        DACSC(stages=(1,), adjust_content=True).adapt(model)
    del model.widths
    with pytest.raises(ValueError, match="network with widths"):
        DACSC(stages=(1,)).adapt(model)


# ---- any method ---------------------------------------------------------------------
@pytest.mark.slow
@when_neutral
def test_neutral_settings_are_fedavg_bit_for_bit_and_draw_nothing(federation, augment):
    plain, neutral = fitted(federation, None), fitted(federation, augment)
    assert same(plain, neutral)
    model = augment.adapt(seeded(small_cnn, federation)).train()
    batch, stream = a_batch(federation), rng()
    before = stream.bit_generator.state
    assert augment.apply(model, batch, a_visit(federation), stream) is batch
    assert stream.bit_generator.state == before
    assert not augment.mixes_labels


@pytest.mark.slow
@pytest.mark.parametrize(
    "augment",
    [
        Mixup(alpha=1e-9),  # lambda is 0 or 1: the batch, or the batch in another order
        ManifoldMixup(alpha=1e-9),
        Mixup(p=1e-9),
        MixStyle(p=1e-9),
        MoEx(p=1e-9),
    ],
    ids=repr,
)
def test_close_to_neutral_settings_are_close_to_fedavg(federation, augment):
    assert augment not in NEUTRAL
    near = fitted(federation, augment, model=small_cnn)
    assert distance(fitted(federation, None, model=small_cnn), near) < 1e-5


METHODS = (
    FedAvg(),
    FedAvgM(),
    FedProx(mu=0.1),
    FedSR(cmi_weight=0),
    FedDG(alpha=0.2, beta=0.1),
)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_any_method_trains_with_any_augmentation(federation, method):
    plain = fitted(federation, None, method, rounds=1)
    for augment in ALL:
        run = fitted(federation, augment, method, rounds=1)
        assert distance(run, plain) > 1e-4, augment
        assert np.isfinite(run.history.table()["value"]).all(), augment


def test_both_passes_of_a_step_see_the_same_mixed_images(federation):
    seen = []

    class Watched(FedSAM):
        def loss(self, model, batch, context):
            seen.append((batch.x.clone(), batch.y.clone()))
            return super().loss(model, batch, context)

    fitted(federation, Mixup(), Watched(rho=0.1), rounds=1)
    assert len(seen) > 4
    for (x, y), (x_again, y_again) in zip(seen[::2], seen[1::2], strict=True):
        assert torch.equal(x, x_again) and torch.equal(y, y_again)
    firsts = [x for x, _ in seen[::2]]
    assert not any(torch.equal(firsts[0], x) for x in firsts[1:])


@pytest.mark.parametrize("augment", LABEL_MIXERS, ids=repr)
@pytest.mark.parametrize(
    "method",
    [FedSR(), FedDG(match_label=True), FISC(), FPL(), FedGR(), FedGCR()],
    ids=lambda method: method.label,
)
def test_a_method_that_needs_classes_is_refused_by_name(federation, method, augment):
    found = rf"^{type(method).__name__}\(.*, and {type(augment).__name__}\(.* mixes"
    with pytest.raises(ValueError, match=found):
        a_run(federation, augment, method)


@pytest.mark.parametrize(
    "augment", [MixStyle(), DACSC(), MoEx(label_share=1), Mixup(alpha=0)], ids=repr
)
def test_it_trains_with_one_that_leaves_labels_alone(federation, augment):
    assert fitted(federation, augment, FedSR(), rounds=1).server.round == 1


@pytest.mark.slow
@with_each
def test_the_loss_falls(federation, augment):
    table = fitted(federation, augment, rounds=6).history.table()
    test = table.query("split == 'test' and metric == 'loss' and domain == ''")
    assert test["value"].iloc[-1] < test["value"].iloc[0] - 0.05


@dataclass(frozen=True)
class Shapes(FedAvg):
    """Adds a layer behind stage 1, and looks at what every stream gives."""

    def adapt(self, model):
        insert(model, 1, "late", nn.Tanh())
        return model

    def loss(self, model, batch, context):
        context.log("order", batch.index.float().mean())
        context.log("method", torch.rand(1, generator=context.rng)[0])
        context.log("layers", torch.rand(1, generator=current_layer_noise())[0])
        return super().loss(model, batch, context)


@pytest.mark.slow
@pytest.mark.parametrize("augment", [ManifoldMixup(), MixStyle(), MoEx(), DACSC()])
def test_its_layer_acts_ahead_of_the_methods_and_no_stream_shifts(federation, augment):
    run = fitted(federation, augment, Shapes())
    assert list(run.model.stages[0].added._modules) == ["augment", "late"]
    drawn = [
        r.history.table().query("metric in ('order', 'method', 'layers')")["value"]
        for r in (run, fitted(federation, None, Shapes()))
    ]
    assert len(drawn[0]) == 2 * 5 * 3 and drawn[0].tolist() == drawn[1].tolist()


@dataclass(frozen=True)
class Draws(Augmentation):
    """Notes the first number of its stream."""

    def apply(self, model, batch, context, rng):
        context.log("drawn", torch.tensor(rng.random(), dtype=torch.float64))
        return batch


@pytest.mark.parametrize("seed", [0, 1])
def test_draws_depend_on_seed_round_and_client_only(federation, seed):
    one_step = replace(TRAINING, epochs=1, batch_size=100)
    run = fitted(federation, Draws(), training=one_step, seed=seed)
    table = run.history.table().query("metric == 'drawn'")
    assert len(table) == 2 * 5 and table["value"].nunique() == 10
    for row in table.itertuples():
        stream = numpy_stream(seed, "augment", row.round, row.client)
        assert row.value == stream.random()


@pytest.mark.slow
def test_another_augmentation_is_another_run(federation, tmp_path):
    a_run(federation, Mixup()).fit(1, False, tmp_path)
    for other in (None, Mixup(alpha=0.2)):
        with pytest.raises(
            ValueError, match=r"another run's: augment: .*Mixup\(alpha=1"
        ):
            a_run(federation, other).fit(2, False, tmp_path)
    settings = [repr(identity(a_run(federation, a).job)) for a in (None, *ALL)]
    assert len(set(settings)) == len(settings), "Flower's nodes would notice"


def test_a_run_says_how_it_augments(federation):
    run = a_run(federation, Mixup(alpha=0.2))
    assert "augment Mixup(alpha=0.2, p=1.0)" in repr(run)
    assert run.describe()["augment"] == "Mixup(alpha=0.2, p=1.0)"
    plain = a_run(federation, None)
    assert "augment" not in repr(plain)
    card = plain.describe()
    assert "augment" not in card and "augment" not in card["training"], (
        "folders of older runs are found again"
    )


@pytest.mark.slow
@pytest.mark.parametrize("augment", ALL[:4], ids=repr)
def test_a_batch_of_one_has_no_partner(federation, augment):
    single = replace(TRAINING, batch_size=1, epochs=1)
    plain, mixed = (
        fitted(federation, a, rounds=1, training=single, model=small_cnn)
        for a in (None, augment)
    )
    assert distance(plain, mixed) < 1e-5


@with_each
def test_evaluation_is_clean(federation, augment):
    run = fitted(federation, augment, rounds=1)
    batch = a_batch(federation)
    alone = torch.cat([run.model(x[None]) for x in batch.x])
    torch.testing.assert_close(run.model(batch.x), alone, rtol=1e-4, atol=1e-4)
    assert torch.equal(run.model(batch.x), run.model(batch.x))


@dataclass(frozen=True)
class Keeps(FedAvg):
    """Keeps something in the cache before, in, and after training."""

    def before_training(self, model, context):
        context.cache["received"] = torch.ones(1)
        return {}

    def loss(self, model, batch, context):
        assert not context.cache, "it would be of other images"
        context.cache["x"] = batch.x
        return super().loss(model, batch, context)

    def after_training(self, model, context):
        assert context.cache.keys() == {"received"}
        return {}


def test_what_is_kept_of_a_step_ends_with_it(federation):
    run = fitted(federation, Mixup(), Keeps(), rounds=2)
    assert run.engine.caches.of(0).keys() == {"received"}


# ---- refusals -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "augment",
    [
        ManifoldMixup(stages=(0, 3)),
        MixStyle(stages=(3,)),
        MixStyle(stages=(1, 1)),
        MoEx(stage=3),
        DACSC(stages=(1, 3)),
    ],
    ids=repr,
)
def test_a_stage_that_the_model_lacks_is_refused(federation, augment):
    with pytest.raises(ValueError, match=r"numbered 1…2, each at most once; found"):
        a_run(federation, augment)


def test_a_frozen_stage_is_refused_unless_the_layer_learns(federation):
    def frozen_cnn(image_shape, num_classes):
        model = small_cnn(image_shape, num_classes)
        model.stages[0].requires_grad_(False)
        return model

    for augment in (ManifoldMixup(), MixStyle(), MoEx()):
        with pytest.raises(ValueError, match="stage 1 is frozen"):
            a_run(federation, augment, model=frozen_cnn)
    a_run(federation, MixStyle(stages=(2,)), model=frozen_cnn)
    a_run(federation, DACSC(), model=frozen_cnn)


def test_moments_of_one_value_are_refused_before_training(federation):
    def one_channel(image_shape, num_classes):
        model = LinearNet(image_shape, num_classes)
        model.stages[0] = nn.Sequential(nn.Conv2d(image_shape[0], 1, 3), nn.Tanh())
        model.stages[1] = nn.Sequential(nn.Conv2d(1, 5, 3))
        return model

    with pytest.raises(ValueError, match=r"needs two values, found one.*other moments"):
        a_run(federation, MoEx(), model=one_channel)
    a_run(federation, MoEx(moments="in"), model=one_channel)
    with pytest.raises(ValueError, match="needs two values"):
        MomentExchange("in")(torch.zeros(2, 4, 1, 1))


@pytest.mark.parametrize("augment", ALL[:5], ids=repr)
def test_the_stacked_engine_refuses_with_the_reason(federation, augment):
    with pytest.raises(ValueError, match=r"as one: .* acts on the batch of one client"):
        a_run(federation, augment, model=small_cnn, engine="stacked")
    auto = a_run(federation, augment, model=small_cnn, engine="auto").engine
    assert type(auto).__name__ == "LocalEngine"


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        (Mixup, "alpha", [-0.1]),
        (Mixup, "p", [-0.1, 1.1]),
        (ManifoldMixup, "alpha", [-1]),
        (ManifoldMixup, "stages", [(), (-1,), (0.5,), (True,)]),
        (MixStyle, "p", [-0.1, 2]),
        (MixStyle, "alpha", [-0.1]),
        (MixStyle, "stages", [(), (0, 1)]),
        (MoEx, "p", [1.5]),
        (MoEx, "label_share", [-0.1, 1.5]),
        (MoEx, "stage", [0]),
        (MoEx, "moments", ["bn"]),
        (DACSC, "stages", [(), (0,)]),
        (LocalTraining, "augment", [Mixup, "mixup", 0.2]),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(kind, name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name} must be .*, found"):
            kind(**{name: value})


@pytest.mark.parametrize("unseen", ["batch", "adapt"])
def test_a_content_norm_that_only_predicts_learns_nothing(federation, unseen):
    """FedBN's clients never seen look at each batch, one like the other."""
    settings = {"augment": DACSC(stages=(1,), adjust_content=True)}
    model, training = partial(small_cnn, norm="batch"), LocalTraining(**settings)
    run = Run(FedBN(unseen=unseen), federation, model, training)
    run.step()
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    x = features((6, *run.model.image_shape))
    first, second = (run.method.predict(run.model, x) for _ in range(2))
    assert first.equal(second)
    for name, value in run.model.state_dict().items():
        assert value.equal(before[name]), name


def test_no_stage_is_mixed_more_often_than_others():
    with pytest.raises(ValueError, match=r"drawn equally often, found \(0, 0, 1\)"):
        ManifoldMixup(stages=(0, 0, 1))
