"""FISC: the contrast against loops and the authors' numbers, styles once, ablations."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlab_support import FISC, FedAvg, Federation, augment, small_cnn, styles
from fedlab_support.core.metrics import of_another_class
from fedlab_support.federation.partition import by_owner, iid
from fedlab_support.models import small_unet
from tests import runs
from tests.probe import AwkwardNet
from tests.runs import (
    TRAINING,
    Steady,
    a_visit,
    bytes_by_part,
    distance,
    fitted,
    garbled,
    plain,
    same_to_the_bit,
    unequal,
)
from tests.styler import CHANNELS, TinyStyles
from tests.support.methods.test_reference import case, vectors
from tests.tiny import tiny_masks

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")

STYLE_BYTES = 8 * CHANNELS
ABLATIONS = ("nothing", "client clusters", "server clusters", "contrast", "transfer")


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


# ---- the contrast -------------------------------------------------------------------
CASES = ("b12d16", "b32d64", "single_class", "b5d3")


@pytest.mark.parametrize("name", CASES)
def test_the_terms_are_those_of_the_official_code(name):
    v = case("fisc_triplet", name)
    weight = FISC().contrast_weight
    found = FISC().contrast(v["emb"], v["emb_styled"], v["neg_index"])
    assert found.item() == pytest.approx(weight * v["triplet"].item(), abs=1e-6)
    size = (v["emb"].square() + v["emb_styled"].square()).mean()
    assert size.item() == pytest.approx(v["reg_code_mean"].item(), rel=1e-5)
    rest = F.cross_entropy(v["logits"], v["labels"]) + found
    for data in ("pacs", "officehome"):
        total = rest + float(vectors("fisc_triplet")[f"gamma2_{data}"]) * size
        assert total.item() == pytest.approx(v[f"total_{data}"].item(), rel=1e-5)
    assert vectors("fisc_triplet")["gamma2_pacs"] == FISC().size_weight


def slow_distances(z, copies, negative) -> list[tuple[float, float]]:
    """Near and far, image after image, in double precision."""
    found = []
    for i, j in enumerate(negative.tolist()):
        if j >= 0:
            a, p, n = (r / r.norm() for r in (z[i], copies[i], copies[j]))
            found.append((float((a - p).norm()), float((a - n).norm())))
    return found


def slow_contrast(z, copies, negative, margin: float) -> float:
    pairs = slow_distances(z, copies, negative)
    found = [max(0.0, near - far + margin) for near, far in pairs]
    return float(sum(found) / len(found)) if found else 0.0


def embeddings(num: int = 9, seed: int = 0):
    """Pictures, copies (B, 5) and classes; one class is that of most."""
    stream = torch.Generator().manual_seed(seed)
    z = 1 + torch.randn(num, 5, generator=stream, dtype=torch.float64)
    copies = z + 0.7 * torch.randn(num, 5, generator=stream, dtype=torch.float64)
    return z, copies, torch.tensor([2, 0, 0, 0, 1, 0, 2, 0, 0] * num)[:num]


@pytest.mark.parametrize("margin", [0.0, 0.3, 2.0])
def test_the_contrast_is_that_of_the_loop(margin):
    for seed in range(10):
        z, copies, y = embeddings(seed=seed)
        rng = torch.Generator().manual_seed(seed)
        negative = of_another_class(y, rng)
        negative[0] = -1
        method = FISC(margin=margin, contrast_weight=2.0)
        pairs = torch.stack(method.distances(z, copies, negative), 1)
        assert pairs.numpy() == pytest.approx(
            np.array(slow_distances(z, copies, negative)), abs=1e-5
        )
        found = method.contrast(z, copies, negative).item() / 2
        expected = slow_contrast(z, copies, negative, margin)
        assert found == pytest.approx(expected, abs=1e-5)
        assert 0 <= found <= margin + 2


def test_triplets_measure_distances_and_the_share_that_has_a_gradient():
    z, copies, y = embeddings()
    negative = of_another_class(y, torch.Generator().manual_seed(0))
    negative[2] = -1
    pairs = np.array(slow_distances(z, copies, negative))
    shares = []
    for margin in (0.3, 0.6, 2.0):
        found = FISC(margin=margin).triplets(z, copies, negative)
        assert found["near"].item() == pytest.approx(pairs[:, 0].mean(), abs=1e-5)
        assert found["far"].item() == pytest.approx(pairs[:, 1].mean(), abs=1e-5)
        shares.append((pairs[:, 0] - pairs[:, 1] + margin > 0).mean())
        assert found["active"].item() == pytest.approx(shares[-1])
    assert 0 < shares[0] < shares[1] < shares[2] == 1
    assert FISC().triplets(z, copies, torch.full((9,), -1)) == {}


def test_far_negatives_cost_nothing_and_scale_does_not_matter():
    z = torch.eye(4)
    negative = torch.tensor([1, 2, 3, 0])
    method = FISC(margin=math.sqrt(2) - 1e-3)
    assert method.contrast(z, z, negative) == 0
    assert FISC(margin=math.sqrt(2) + 0.1).contrast(z, z, negative) > 0
    z, copies, _ = embeddings(4)
    found = FISC().contrast(z, copies, negative)
    torch.testing.assert_close(FISC().contrast(3 * z, 0.1 * copies, negative), found)


def test_gradients_are_finite_where_pictures_and_copies_are_equal_or_0():
    for z in (torch.ones(4, 3), torch.zeros(4, 3)):
        z = z.clone().requires_grad_()
        FISC().contrast(z, z.detach().clone(), torch.tensor([1, 0, 3, -1])).backward()
        assert z.grad.isfinite().all()
    z = torch.ones(2, 3, requires_grad=True)
    alone = FISC().contrast(z, z.detach() + 1, torch.tensor([-1, -1]))
    alone.backward()
    assert alone == 0 and (z.grad == 0).all(), "nobody counts: 0, and not NaN"


def test_negatives_are_of_any_other_class_equally_often():
    y, rng = torch.tensor([0, 0, 1, 2, 0, 2]), torch.Generator().manual_seed(0)
    drawn = torch.stack([of_another_class(y, rng) for _ in range(600)])
    for i, own in enumerate(y):
        possible = [j for j in range(6) if y[j] != own]
        share = drawn[:, i].bincount(minlength=6) / 600
        assert share[possible].tolist() == pytest.approx(
            [1 / len(possible)] * len(possible), abs=0.08
        )
        assert share.sum() == pytest.approx(share[possible].sum())
    before = rng.get_state()
    assert of_another_class(torch.tensor([1, 1, 1]), rng).tolist() == [-1, -1, -1]
    assert torch.equal(before, rng.get_state()), "nothing was drawn"


# ---- the loss on a client -----------------------------------------------------------
def welcomed(federation, method, client: int = 2, model=Steady):
    """The run's model, a batch, and a visit of a client that has been welcomed."""
    run = runs.a_run(method, federation, model)
    run._start()
    context = a_visit(federation, client, dict(run.private[client].memory))
    return run.model, context.client.train.batch(np.arange(8)), context


def test_the_loss_is_the_sum_of_its_parts(federation):
    method = FISC(size_weight=0.4)
    model, batch, context = welcomed(federation, method)
    model.eval()
    loss = method.loss(model, batch, context)
    style = context.memory["styles"][0]
    with torch.no_grad():
        colours = federation.store.images[
            torch.from_numpy(context.client.train.rows[:8])
        ]
        made = model.styler.transfer(colours / 255, style, 0.5)
        store = context.client.train.store
        copies = store.normalised((255 * made).round() / 255)
        z, z_copies = model.encode(batch.x), model.encode(copies)
    rng = a_visit(federation).rng
    drawn = z.double(), z_copies.double(), of_another_class(batch.y, rng)
    contrast, pairs = slow_contrast(*drawn, 0.3), np.array(slow_distances(*drawn))
    expected = {
        "near": pairs[:, 0].mean(),
        "far": pairs[:, 1].mean(),
        "active": (pairs[:, 0] - pairs[:, 1] + 0.3 > 0).mean(),
        "task_loss": F.cross_entropy(model.head(z), batch.y).item(),
        "contrast": 0.75 * contrast,
        "size": 0.4 * (z.square() + z_copies.square()).mean().item(),
    }
    assert context.logged_means() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    parts = sum(expected[name] for name in ("task_loss", "contrast", "size"))
    assert loss.item() == pytest.approx(parts, rel=1e-5)


def test_a_batch_of_one_class_has_no_contrast(federation):
    method = FISC()
    model, _, context = welcomed(federation, method)
    mine = context.client.train
    rows = np.flatnonzero(mine.labels == mine.labels[0])
    for index in (rows, rows[:1]):
        method.loss(model.eval(), mine.batch(index), context).backward()
        assert context.logged["contrast"][-1] == 0 and context.logged["size"][-1] > 0
        gradients = [p.grad for p in model.parameters() if p.requires_grad]
        assert all(g.isfinite().all() for g in gradients)


def test_no_gradient_reaches_the_style_network(federation):
    model, batch, context = welcomed(federation, FISC())
    FISC().loss(model, batch, context).backward()
    assert all(p.grad is None for p in model.styler.parameters())
    assert model.stages[0].weight.grad.abs().max() > 0
    fresh = TinyStyles().state_dict()
    run = fitted(FISC(), federation)
    for name, value in fresh.items():
        assert torch.equal(run.model.styler.state_dict()[name], value)


# ---- ablations ----------------------------------------------------------------------
@pytest.mark.slow
def test_ablations_differ_in_the_named_component_only(federation):
    usual = runs.a_run(FISC(), federation)
    usual._start()
    said = usual.server.memory["uploaded"]
    for without in ABLATIONS:
        run = runs.a_run(FISC(without=without), federation)
        run._start()
        memory = run.server.memory
        changes_said = without == "client clusters"
        assert torch.equal(memory["uploaded"], said) != changes_said
        style = memory["styles"][0]
        changes_style = without in ("client clusters", "server clusters")
        assert torch.equal(style, usual.server.memory["styles"][0]) != changes_style
        if without == "server clusters":
            torch.testing.assert_close(style, said.mean(0))
        names = set(fitted(FISC(without=without), federation, 1).messages[2].metrics)
        acts = {"contrast", "near", "far", "active"}
        other = {"copies"} if without == "contrast" else acts
        assert names == {"loss", "task_loss", "size", *other}


def test_without_clusters_a_client_says_its_pooled_style(federation):
    run = runs.a_run(FISC(without="client clusters"), federation)
    run._start()
    for k in range(5):
        maps = styles.FeatureMaps(run.model.eval(), federation.client(k).train, 100)
        torch.testing.assert_close(
            run.server.memory["uploaded"][k], styles.pooled(maps), rtol=1e-4, atol=1e-5
        )


def test_without_contrast_copies_are_further_data(federation):
    method = FISC(without="contrast", size_weight=0.0)
    model, batch, context = welcomed(federation, method)
    loss = method.loss(model.eval(), batch, context)
    copies = styles.restyled(model, batch, context, 0.5)[0]
    both = F.cross_entropy(model(batch.x), batch.y) + F.cross_entropy(
        model(copies), batch.y
    )
    assert loss.item() == pytest.approx(both.item(), rel=1e-6)


def test_without_transfer_copies_are_mirrored_and_shifted(federation):
    method = FISC(without="transfer")
    model, batch, context = welcomed(federation, method)
    copies = method._copies(model, batch, context)
    mirrored, shifts = batch.x.flip(-1), list(itertools.product(range(-2, 3), repeat=2))
    assert any(torch.equal(mirrored.roll(s, (2, 3)), copies) for s in shifts)
    assert not context.cache


def test_options_of_the_styles_reach_them(federation):
    def begun(**settings):
        run = runs.a_run(FISC(**settings), federation)
        run._start()
        return run.server.memory

    usual, spread = begun(), begun(with_spread=True)
    assert torch.equal(usual["uploaded"][:, 0], spread["uploaded"][:, 0])
    larger = spread["uploaded"][:, 1] - usual["uploaded"][:, 1]
    assert larger.min() > -1e-6 and larger.max() > 1e-3
    noisy = begun(noise=0.05, fading=0.1)["uploaded"]
    apart = noisy - 0.9 * usual["uploaded"]
    assert apart.std().item() == pytest.approx(0.05, rel=0.4)
    assert torch.equal(noisy, begun(noise=0.05, fading=0.1)["uploaded"])
    own = {k: {"styles": said[None]} for k, said in enumerate(usual["uploaded"])}
    found = FISC(coarsest=True).server_setup(own)
    expected = styles.interpolation_style(usual["uploaded"], coarsest=True)
    assert torch.equal(found["styles"][0], expected)


# ---- what travels -------------------------------------------------------------------
def test_styles_travel_once_and_nothing_else_is_new(federation):
    run, average = fitted(FISC(), federation), plain(federation)
    mine, theirs = bytes_by_part(run), bytes_by_part(average)
    assert mine.pop(("up", "setup_upload")) == 5 * STYLE_BYTES
    assert mine.pop(("down", "setup_reply")) == 5 * STYLE_BYTES
    assert mine == theirs
    assert set(run.wire[run.wire["round"] == 0].part) == {"setup_upload", "setup_reply"}
    assert not [name for name in run.server.weights if "styler" in name]
    assert run.server.weights.keys() == average.server.weights.keys()
    assert all(m.upload == {} for m in run.messages) and run.server.shared == {}
    for k in range(5):
        assert run.private[k].memory.keys() == {"styles"} and not run.private[k].weights
        told = run.private[k].memory["styles"]
        assert torch.equal(told, run.server.memory["styles"])


def test_of_a_single_client_its_own_style_is_the_interpolation(federation):
    alone = Federation.build(federation.data, iid(federation.data, 1, rng=0))
    run = fitted(FISC(), alone, 1)
    assert torch.equal(run.server.memory["styles"], run.server.memory["uploaded"])


def test_the_name_of_the_network_is_asked_for_and_described(federation, tiny_styles):
    run = runs.a_run(FISC(network="vgg.safetensors"), federation)
    assert tiny_styles == ["vgg.safetensors"]
    assert "vgg.safetensors" in run.describe()["method"]
    usual, average = runs.a_run(FISC(), federation), runs.a_run(FedAvg(), federation)
    assert usual.describe() == runs.a_run(FISC(), federation).describe()
    assert usual.describe()["architecture"] != average.describe()["architecture"]
    parameters = (run.server.parameters, average.server.parameters)
    assert parameters[0] == parameters[1]


# ---- FedAvg -------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("without", ABLATIONS[:3] + ABLATIONS[4:])
def test_with_both_weights_0_it_is_fedavg(federation, without):
    none = {"contrast_weight": 0.0, "size_weight": 0.0, "without": without}
    run = fitted(FISC(**none), federation, model=AwkwardNet)
    assert distance(plain(federation, model=AwkwardNet), run) == 0


@pytest.mark.slow
def test_near_the_limit_it_is_near_and_away_from_it_is_not(federation):
    class NoNorm(Steady.func):
        """Two passes of a batch would move running statistics, whatever the weights."""

        def __init__(self, image_shape, num_classes):
            super().__init__(image_shape, num_classes, rate=0.0)
            self.stages[1] = torch.nn.Identity()

    average = plain(federation, model=NoNorm)
    near = FISC(contrast_weight=1e-6, size_weight=1e-6)
    assert 0 < distance(average, fitted(near, federation, model=NoNorm)) < 1e-4
    for away in (FISC(contrast_weight=0.0), FISC(size_weight=0.0), FISC()):
        assert distance(average, fitted(away, federation, model=NoNorm)) > 1e-4


# ---- as for every method ------------------------------------------------------------
@pytest.mark.slow
def test_with_an_augmentation_copies_follow_the_pictures(federation):
    training = replace(TRAINING, augment=augment.MixStyle())
    one, two = (
        fitted(FISC(), federation, model=small_cnn, training=training, workers=w)
        for w in (1, 2)
    )
    assert same_to_the_bit(one, two)
    assert not one.engine.caches._held


def with_entry(styles, value: float):
    styles = styles.clone()
    styles[0, 1, 2] = value
    return styles


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        lambda styles: with_entry(styles, math.nan),
        lambda styles: with_entry(styles, -0.5),
        lambda styles: styles[..., :-1],  # of another network
        lambda styles: styles.expand(50, -1, -1),  # votes
        lambda styles: styles.expand(0, -1, -1),
    ],
)
def test_a_client_whose_style_is_none_is_out_and_the_others_go_on(federation, wrong):
    method = garbled(FISC(), 1, lambda said: {**said, "styles": wrong(said["styles"])})
    with pytest.warns(UserWarning, match="client 1 is left out of the run"):
        run = fitted(method, federation)
    assert [m.client for m in run.messages] == [0, 2, 3, 4]
    usual = runs.a_run(FISC(), federation)
    usual._start()
    assert torch.equal(
        run.server.memory["uploaded"], usual.server.memory["uploaded"][[0, 2, 3, 4]]
    )


# ---- what cannot be had -------------------------------------------------------------
def test_masks_are_refused_by_name():
    data = tiny_masks()
    federation = Federation.build(data, by_owner(data))
    with pytest.raises(ValueError, match=r"FISC\(.*one class per image.*masks"):
        runs.a_run(FISC(), federation, small_unet)
