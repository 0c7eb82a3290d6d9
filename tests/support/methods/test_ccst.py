"""CCST: styles of all for all, who learns what in which style, both forms, limits."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from fedlab_support import CCST, FedAvg, Federation, augment, iid, small_cnn, styles
from fedlab_support.federation.partition import by_owner
from fedlab_support.models import small_unet
from fedlab_support.models.style import adain
from tests import runs
from tests.probe import AwkwardNet
from tests.runs import (
    TRAINING,
    a_visit,
    bytes_by_part,
    distance,
    fitted,
    garbled,
    plain,
    same_to_the_bit,
    unequal,
)
from tests.styler import CHANNELS
from tests.tiny import tiny_masks

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")

STYLE_BYTES = 8 * CHANNELS
OFFICIAL = CCST(form="official")


@pytest.fixture(scope="module")
def federation():
    return unequal(channels=3)


def begun(method, federation):
    """A run in which all clients have the styles and none has trained."""
    run = runs.a_run(method, federation)
    run._start()
    return run


def welcomed(federation, method, client: int = 2):
    """The run's model in evaluation mode, a visit after it has arrived, a batch."""
    run = begun(method, federation)
    context = a_visit(federation, client, dict(run.private[client].memory))
    method.before_training(run.model.eval(), context)
    return run.model, context, context.client.train.batch(np.arange(8))


def alone(federation):
    return Federation.build(federation.data, iid(federation.data, 1, rng=0))


# ---- styles -------------------------------------------------------------------------
def test_a_client_says_the_pooled_style_of_its_pictures(federation):
    run = begun(CCST(), federation)
    assert run.server.memory["styles"].shape == (5, 2, CHANNELS)
    for k in range(5):
        mine = federation.client(k).train
        for size in (3, 100):
            expected = adain.pooled(styles.FeatureMaps(run.model.eval(), mine, size))
            found = run.server.memory["styles"][k]
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_single_pictures_have_styles_of_their_own(federation):
    run = begun(CCST(num_single=7), federation)
    bank, start = run.server.memory["styles"], 0
    for k, size in enumerate(federation.sizes):
        mine, num = federation.client(k).train, min(7, size)
        said, start = bank[start : start + num], start + num
        own = [adain.pooled([m]) for m in styles.FeatureMaps(run.model.eval(), mine, 1)]
        place = [[torch.equal(s, o) for o in own].index(True) for s in said]
        assert place == sorted(set(place)), "different pictures, in sequence"
        assert size <= 7 or place != list(range(7)), "not the first ones"
    assert start == len(bank) and min(federation.sizes) < 7


def test_bytes_are_those_of_the_specification(federation):
    run, average = fitted(CCST(), federation), plain(federation)
    mine, theirs = bytes_by_part(run), bytes_by_part(average)
    assert mine.pop(("up", "setup_upload")) == 5 * STYLE_BYTES
    assert mine.pop(("down", "setup_reply")) == 5 * 5 * STYLE_BYTES
    assert mine == theirs
    assert set(run.wire[run.wire["round"] == 0].part) == {"setup_upload", "setup_reply"}
    assert not [name for name in run.server.weights if "styler" in name]
    assert all(m.upload == {} for m in run.messages) and run.server.shared == {}
    single = bytes_by_part(fitted(CCST(num_single=2), federation, 1))
    assert single["up", "setup_upload"] == 5 * 2 * STYLE_BYTES
    assert single["down", "setup_reply"] == 5 * 10 * STYLE_BYTES


def test_everybody_gets_all_styles_in_the_order_of_clients(federation):
    run = begun(CCST(), federation)
    for k in range(5):
        memory = run.private[k].memory
        assert memory.keys() == {"styles", "own"} and not run.private[k].weights
        assert torch.equal(memory["styles"], run.server.memory["styles"])
        assert torch.equal(memory["own"], memory["styles"][[k]])


# ---- who learns what in which style -------------------------------------------------
def choices(federation, method, client: int = 2) -> torch.Tensor:
    return welcomed(federation, method, client)[1].memory["choice"]


def test_fiscs_form_has_one_other_style_for_the_whole_run(federation):
    run, seen = runs.a_run(CCST(), federation), []
    for _ in range(3):
        run.step(evaluate=False)
        seen.append([run.private[k].memory["choice"] for k in range(5)])
    for first, *later in zip(*seen, strict=True):
        assert all(torch.equal(first, other) for other in later)
    for k, choice in enumerate(seen[0]):
        assert choice.shape == (federation.sizes[k], 1) and len(choice.unique()) == 1
        assert choice[0] not in (-1, k)
    assert len({choice[0].item() for choice in seen[0]}) > 1


def test_fiscs_form_never_draws_the_own_style_and_all_others(federation):
    _, context, _ = welcomed(federation, CCST())
    drawn = [CCST().choose(context)[0].item() for _ in range(200)]
    assert set(drawn) == {0, 1, 3, 4}
    often = [drawn.count(k) / 200 for k in (0, 1, 3, 4)]
    assert often == pytest.approx([0.25] * 4, abs=0.1)


def test_officially_each_picture_has_different_styles_and_its_own_is_itself(federation):
    choice = choices(federation, OFFICIAL)
    assert choice.shape == (federation.sizes[2], 3)
    assert all(len(row.unique()) == 3 for row in choice)
    assert set(choice.unique().tolist()) == {-1, 0, 1, 3, 4}
    assert len(choice.unique(dim=0)) > 5
    _, context, _ = welcomed(federation, OFFICIAL)
    drawn = torch.cat([OFFICIAL.choose(context) for _ in range(40)]).flatten()
    often = [(drawn == k).double().mean().item() for k in (-1, 0, 1, 3, 4)]
    assert often == pytest.approx([0.2] * 5, abs=0.03)


@pytest.mark.parametrize("wanted", [5, 9])
def test_as_many_styles_as_clients_give_each_picture_once_per_style(federation, wanted):
    choice = choices(federation, CCST(form="official", num_styles=wanted))
    assert choice.shape[1] == 5
    assert (choice.sort(1).values == torch.tensor([-1, 0, 1, 3, 4])).all()
    other = choices(federation, CCST(num_styles=wanted))
    assert sorted(other[0].tolist()) == [0, 1, 3, 4]


def test_own_single_styles_stand_for_the_picture_too(federation):
    choice = choices(federation, CCST(form="official", num_single=3))
    assert set(choice.unique().tolist()) <= {-1, *range(6), *range(9, 15)}
    assert (choice == -1).any()


@pytest.mark.parametrize("k", [1, 3])
def test_the_augmented_data_have_the_labels_of_the_data(federation, k, monkeypatch):
    """K_s times each label officially, 1 + K_s times in FISC's form."""
    for form, times in (("official", k), ("fisc", 1 + k)):
        seen = []

        def watched(self, output, y, seen=seen):
            seen.append(y)
            return F.cross_entropy(output, y)

        method = CCST(form=form, num_styles=k)
        model, context, _ = welcomed(federation, method)
        with monkeypatch.context() as patch:
            patch.setattr(type(context.task), "loss", watched)
            for batch in context.client.train.batches(8):
                method.loss(model, batch, context)
        labels = torch.from_numpy(context.client.train.labels)
        counts = torch.cat(seen).bincount(minlength=4)
        assert torch.equal(counts, times * labels.bincount(minlength=4))


# ---- the loss -----------------------------------------------------------------------
@pytest.mark.parametrize(("strength", "used"), [(0.3, 0.3), (None, 0.5)])
@pytest.mark.parametrize("is_single", [False, True])
def test_fiscs_form_sums_both_losses(federation, is_single, strength, used):
    method = CCST(num_styles=2, num_single=2 * is_single, strength=strength)
    model, context, batch = welcomed(federation, method)
    loss = method.loss(model, batch, context)
    own = F.cross_entropy(model(batch.x), batch.y).item()
    assert context.logged_means() == pytest.approx({"task_loss": own})
    expected = F.cross_entropy(model(batch.x), batch.y).item()
    for number in context.memory["choice"][0]:
        copies = by_hand(model, context, batch, context.memory["styles"][number], used)
        expected += F.cross_entropy(model(copies), batch.y).item()
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def by_hand(model, context, batch, style, strength: float) -> torch.Tensor:
    store = context.client.train.store
    with torch.no_grad():
        made = model.styler.transfer(store.shown(batch.x), style, strength)
    return store.normalised((255 * made).round() / 255)


def test_officially_the_loss_is_the_mean_over_all_copies(federation):
    model, context, batch = welcomed(federation, OFFICIAL)
    loss, total = OFFICIAL.loss(model, batch, context), 0.0
    for row, label in enumerate(batch.y):
        for number in context.memory["choice"][row]:
            x = batch.x[row : row + 1]
            if number >= 0:
                style = context.memory["styles"][number]
                x = by_hand(model, context, batch, style, 1.0)[row : row + 1]
            total += F.cross_entropy(model(x), label[None]).item()
    assert (context.memory["choice"][:8] == -1).any()
    assert loss.item() == pytest.approx(total / 24, rel=1e-4)


# ---- FedAvg -------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "channels"),
    [
        *((CCST(), 1), (CCST(), 3), (OFFICIAL, 3)),
        *((CCST(num_single=2), 3), (replace(OFFICIAL, num_styles=1, num_single=1), 3)),
    ],
)
def test_a_single_client_is_fedavg(method, channels):
    one = alone(unequal(channels=channels))
    run = fitted(method, one, model=AwkwardNet)
    assert distance(plain(one, model=AwkwardNet), run) == 0


@pytest.mark.slow
def test_a_client_whose_own_style_is_drawn_for_all_is_fedavg(federation):
    @dataclass(frozen=True)
    class Own(CCST):
        def choose(self, context):
            return torch.full_like(super().choose(context), -1)

    own = Own(form="official", num_styles=1)
    assert distance(plain(federation), fitted(own, federation)) == 0
    assert distance(plain(federation), fitted(CCST(), federation)) > 1e-3
    assert distance(plain(federation), fitted(OFFICIAL, federation)) > 1e-3


# ---- as for every method ------------------------------------------------------------
@pytest.mark.slow
def test_with_an_augmentation_copies_follow_the_pictures(federation):
    training = replace(TRAINING, augment=augment.Mixup())
    for method in (CCST(), OFFICIAL):
        one, two = (
            fitted(method, federation, model=small_cnn, training=training, workers=w)
            for w in (1, 2)
        )
        assert same_to_the_bit(one, two) and not one.engine.caches._held


@pytest.mark.slow
def test_who_failed_and_chooses_again_gets_what_it_chose(federation):
    """The first visits fail after copies were kept: these stay, the choice does not."""

    @dataclass(frozen=True)
    class Fails(CCST):
        def after_training(self, model, context):
            if context.received.round == 1:  # not one mistake of all clients
                raise RuntimeError(f"client {context.client.id} is out of battery")
            return {}

    kept, lost = (runs.a_run(Fails(form="official"), federation) for _ in range(2))
    lost.engine.caches.limit = 0
    for run in (kept, lost):
        with pytest.warns(UserWarning, match="battery"):
            run.fit(2, progress=False)
    assert same_to_the_bit(kept, lost)
    assert kept.engine.caches._held, "something was kept"


def test_an_engine_that_is_used_again_has_forgotten_the_pictures(federation):
    first = fitted(CCST(), federation)
    assert first.engine.caches._held
    second = runs.a_run(CCST(strength=1.0), federation, engine=first.engine)
    assert not second.engine.caches._held


@pytest.mark.parametrize("value", [math.nan, -0.5])
def test_a_client_whose_style_is_none_is_out_and_the_others_go_on(federation, value):
    method = garbled(OFFICIAL, 1, lambda said: {"styles": said["styles"] * 0 + value})
    with pytest.warns(UserWarning, match="client 1 is left out of the run"):
        run = fitted(method, federation)
    assert [m.client for m in run.messages] == [0, 2, 3, 4]
    usual = begun(CCST(), federation).server.memory["styles"]
    assert torch.equal(run.server.memory["styles"], usual[[0, 2, 3, 4]])
    assert run.private[4].memory["choice"].max() < 3, "the fourth style is its own"


def test_a_client_says_as_many_styles_as_it_was_asked_for():
    many = {"styles": torch.ones(4, 2, 3)}
    CCST(num_single=4).check_upload(many, None)
    for method in (CCST(), CCST(num_single=3)):
        with pytest.raises(ValueError, match=r"J in 1….*\(4, 2, 3\)"):
            method.check_upload(many, None)


@pytest.mark.slow
def test_masks_stay_with_their_styled_pictures():
    data = tiny_masks(channels=3, size=16)
    federation = Federation.build(data, by_owner(data))
    run = fitted(CCST(), federation, 1, model=small_unet)
    assert len(run.messages) == 5
    average = fitted(FedAvg(), federation, 1, model=small_unet)
    assert distance(average, run) > 1e-3
