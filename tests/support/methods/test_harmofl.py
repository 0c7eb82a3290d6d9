"""HarmoFL: one amplitude for all images, said once, and sharpness-aware steps."""

import copy
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.fft import fft2

from fedlab_support import small_cnn
from fedlab_support.methods import FedSAM, FedSR, HarmoFL
from fedlab_support.models import CNN, small_unet
from fedlab_support.models.layers.amplitude import AmplitudeNorm
from fedlab_support.models.stages import insert_entry
from tests.probe import AwkwardNet
from tests.runs import (
    Turns,
    a_run,
    bytes_by_part,
    distance,
    expect_left_out,
    fitted,
    garbled,
    plain,
    unequal,
)

pytestmark = pytest.mark.usefixtures("one_thread")
AMPLITUDE = "entry.harmony.amplitude"
WINDOWS = ["dc", "full"]
SHAPES = [(1, 8, 8), (3, 7, 9), (2, 9, 6), (3, 5, 12)]
on_all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


def pictures(shape, num: int = 4, seed: int = 0) -> torch.Tensor:
    """Double precision, with means that are not 0: negative, small, and large."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(num, *shape, generator=stream, dtype=torch.float64)
    offset = torch.arange(num, dtype=torch.float64) - 0.5
    return (x + offset.view(-1, 1, 1, 1)).to(memory_format=torch.channels_last)


def seen(shape, whole: bool, seed: int = 1) -> AmplitudeNorm:
    """A layer that knows the amplitude of other images."""
    layer = AmplitudeNorm(shape, whole).double()
    layer.observe(pictures(shape, 5, seed), decay=0.1)
    return layer


# ---- the layer ----------------------------------------------------------------------
@on_all_shapes
def test_at_frequency_0_each_channel_moves_to_the_common_brightness(shape):
    layer, x = seen(shape, whole=False), pictures(shape)
    change = layer(x) - x
    assert change.flatten(2).std(2).max() < 1e-12, "constant per image and channel"
    assert change.abs().max() > 0.01
    mean, num = layer(x).mean((2, 3)), shape[1] * shape[2]
    common = (layer.amplitude.flatten() / num).expand_as(mean)
    torch.testing.assert_close(mean.abs(), common)
    assert torch.equal(mean.sign(), x.mean((2, 3)).sign()), "the phase of the mean"
    assert (mean < 0).any() and (mean > 0).any()


@on_all_shapes
def test_the_whole_amplitude_is_replaced_and_the_phase_is_kept(shape):
    layer, x = seen(shape, whole=True), pictures(shape)
    before, after = fft2(x), fft2(layer(x))
    common = layer.amplitude.expand_as(after.abs())
    torch.testing.assert_close(after.abs(), common, rtol=1e-8, atol=1e-8)
    turned = after / after.abs() - before / before.abs()
    assert turned.abs().max() < 1e-8
    assert not torch.allclose(before.abs(), after.abs(), rtol=0.1)


@pytest.mark.parametrize("whole", [False, True])
@on_all_shapes
def test_done_twice_is_done_once(shape, whole):
    layer, x = seen(shape, whole), pictures(shape)
    torch.testing.assert_close(layer(layer(x)), layer(x), rtol=0, atol=1e-10)
    single, x = copy.deepcopy(layer).float(), x.float()
    torch.testing.assert_close(single(single(x)), single(x), rtol=0, atol=1e-5)
    assert not torch.allclose(layer(x.double()), x.double(), atol=0.01)


def slowly(x: np.ndarray, common: np.ndarray, whole: bool) -> np.ndarray:
    """The same image by image and channel by channel, in NumPy."""
    result = np.empty_like(x)
    for i, picture in enumerate(x):
        for c, channel in enumerate(picture):
            spectrum = np.fft.fft2(channel)
            amplitude, phase = np.abs(spectrum), np.angle(spectrum)
            if whole:
                amplitude = common[c]
            else:
                amplitude[0, 0] = common[c].item()
            result[i, c] = np.fft.ifft2(amplitude * np.exp(1j * phase)).real
    return result


@pytest.mark.parametrize("whole", [False, True])
@on_all_shapes
def test_it_is_the_slow_form(shape, whole):
    layer, x = seen(shape, whole), pictures(shape)
    expected = slowly(x.numpy(), layer.amplitude.numpy(), whole)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-9, atol=1e-9)
    assert layer(x).shape == x.shape and layer(x).stride() == x.stride()


@pytest.mark.parametrize("decay", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("whole", [False, True])
def test_the_amplitude_follows_the_batches(decay, whole):
    shape, batches = (3, 6, 5), [pictures((3, 6, 5), n, n) for n in (4, 1, 3)]
    layer = AmplitudeNorm(shape, whole).double()
    running = None
    for x in batches:
        layer.observe(x, decay)
        mean = np.abs(np.fft.fft2(x.numpy())).mean(0)
        running = mean if running is None else (1 - decay) * running + decay * mean
    expected = running if whole else running[:, :1, :1]
    np.testing.assert_allclose(layer.amplitude, expected, rtol=1e-12)
    first = np.abs(np.fft.fft2(batches[0].numpy())).mean(0)[:, :1, :1]
    stays = np.allclose(layer.amplitude[:, :1, :1], first)
    assert stays == (decay == 0), "the authors' rounded decay: the first batch's"


def test_before_it_knows_an_amplitude_pictures_stay_as_they_are():
    x = pictures((2, 8, 8)).float()
    for whole in (False, True):
        layer = AmplitudeNorm((2, 8, 8), whole)
        assert torch.equal(layer(x), x)
        layer.fix(torch.zeros_like(layer.amplitude))  # known, though it sums to 0
        assert not torch.equal(layer(x), x)


def test_blank_pictures_give_finite_numbers():
    blank = torch.zeros(2, 1, 8, 8)
    for whole in (False, True):
        layer = AmplitudeNorm((1, 8, 8), whole)
        layer.observe(blank, 0.1)
        assert torch.equal(layer(blank), blank)
        layer.observe(blank + 1, 0.1)
        assert layer(blank).isfinite().all()


def test_a_bright_large_picture_is_averaged_in_double_precision():
    x = torch.full((1, 1, 300, 300), 1000.0)
    layer = AmplitudeNorm((1, 300, 300), whole=False)
    for _ in range(200):
        layer.observe(x, 0.1)
    assert layer.amplitude.item() == 1000.0 * 300 * 300


# ---- the entry of a network ---------------------------------------------------------
class Half(nn.Module):
    def forward(self, x):
        return x / 2


@pytest.mark.parametrize("make", [small_cnn, AwkwardNet, small_unet])
def test_a_layer_at_the_entry_sees_the_pictures_first(make):
    model = make((2, 32, 32), 4).eval()
    untouched, names = copy.deepcopy(model), list(model.state_dict())
    insert_entry(model, "halved", Half())
    x = pictures((2, 32, 32)).float()
    for changed in (model, copy.deepcopy(model), copy.deepcopy(model).train().eval()):
        assert torch.equal(changed.encode(x), untouched.encode(x / 2))
        assert torch.equal(changed(x), untouched(x / 2)), "once, not twice"
    assert list(model.state_dict()) == names
    assert isinstance(model, type(untouched))
    assert type(model).__name__ == type(untouched).__name__


def test_layers_at_the_entry_act_in_the_order_they_were_added():
    model = small_cnn((1, 8, 8), 4).eval()
    untouched, x = copy.deepcopy(model), pictures((1, 8, 8)).float()
    insert_entry(model, "halved", Half())
    insert_entry(model, "positive", nn.ReLU())
    insert_entry(model, "shifted", nn.Softplus())
    expected = untouched(nn.functional.softplus((x / 2).relu()))
    assert torch.equal(model(x), expected)
    assert type(untouched) is CNN, "other networks stay as they are"
    copied = copy.deepcopy(model)
    copied.entry.halved = nn.Identity()
    assert torch.equal(model(x), expected) and not torch.equal(copied(x), expected)


def test_a_name_is_given_once_and_a_network_needs_encode():
    model = small_cnn((1, 8, 8), 4)
    insert_entry(model, "halved", Half())
    with pytest.raises(ValueError, match="already has a layer 'halved'"):
        insert_entry(model, "halved", Half())
    with pytest.raises(ValueError, match=r"encode\(x\) and head.*found Sequential"):
        insert_entry(nn.Sequential(nn.Flatten()), "halved", Half())


def test_a_method_with_a_head_of_its_own_goes_through_the_entry():
    model = small_cnn((1, 8, 8), 4).eval()
    insert_entry(model, "halved", Half())
    x = pictures((1, 8, 8)).float()
    plain_model = FedSR().adapt(model)
    features = plain_model.encode(x)
    assert torch.equal(plain_model(x), plain_model.head(features))
    assert not torch.equal(features, plain_model.neck(plain_model.stages(x)))


# ---- the limit: FedAvg --------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["examples", "equal"])
def test_without_layer_and_radius_it_is_fedavg_bit_for_bit(federation, weighting):
    fedavg = plain(federation, weighting=weighting, model=AwkwardNet)
    neutral = HarmoFL(weighting=weighting, window="none", alpha=0.0)
    harmofl = fitted(neutral, federation, model=AwkwardNet)
    assert distance(fedavg, harmofl) == 0
    assert bytes_by_part(fedavg) == bytes_by_part(harmofl)
    near = fitted(HarmoFL(weighting=weighting, window="none", alpha=1e-6), federation)
    assert 0 < distance(plain(federation, weighting=weighting), near) < 1e-3


def test_without_the_layer_it_is_fedsam(federation):
    sam = fitted(FedSAM(weighting="equal", rho=0.3), federation)
    assert distance(sam, fitted(HarmoFL(window="none", alpha=0.3), federation)) == 0


def test_a_batch_counts_by_the_decay_in_the_running_amplitude(federation, monkeypatch):
    observe, decays = AmplitudeNorm.observe, []

    def watched(layer, x, decay):
        decays.append(decay)
        return observe(layer, x, decay)

    monkeypatch.setattr(AmplitudeNorm, "observe", watched)
    a_run(HarmoFL(decay=0.3), federation, workers=1).step(evaluate=False)
    assert decays and set(decays) == {0.3}


# ---- what travels, and when ---------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_the_common_amplitude_is_the_mean_of_the_clients_and_then_stays(
    federation, window, weighting
):
    run = a_run(HarmoFL(weighting=weighting, window=window), federation).step()
    said = torch.stack([m.upload["amplitude"].double() for m in run.messages])
    shares = run.method.aggregation_weights(run.server, run.messages).view(-1, 1, 1, 1)
    common = run.server.memory["amplitude"]
    torch.testing.assert_close(
        common.double(), (shares * said).sum(0), rtol=1e-6, atol=0
    )
    assert (said[0] - said[4]).abs().max() > 1e-2, "clients differ"
    for client in range(5):
        own = run.private[client].weights
        assert torch.equal(own[AMPLITUDE], run.messages[client].upload["amplitude"])
    run.step().step()
    assert torch.equal(run.server.memory["amplitude"], common)
    assert all(torch.equal(p.weights[AMPLITUDE], common) for p in run.private.values())


@pytest.mark.slow
@pytest.mark.parametrize(("window", "num"), [("dc", 2), ("full", 2 * 8 * 8)])
def test_the_amplitude_goes_up_in_round_1_and_down_once(federation, window, num):
    run = fitted(HarmoFL(window=window), federation, 4)
    wire, weights = run.wire, plain(federation, 4, "equal").wire
    extra = wire[wire.part.isin(["upload", "shared"])]
    up = extra[extra.direction == "up"]
    down = extra[extra.direction == "down"]
    assert set(up["round"]) == {1} and set(down["round"]) == {2}
    assert sorted(up.client) == sorted(down.client) == list(range(5))
    assert set(extra.bytes) == {4 * num}
    columns = ["round", "client", "direction", "part", "bytes"]
    rest = wire[~wire.part.isin(["upload", "shared"])][columns].values.tolist()
    assert rest == weights[columns].values.tolist(), "else FedAvg's"
    assert not [n for n in run.server.weights if n.startswith("entry")]


@dataclass(frozen=True)
class Watched(HarmoFL):
    """Keeps what the layer knew when the first step began."""

    def loss(self, model, batch, context):
        layer = model.entry.harmony
        known = {"fixed": layer.is_fixed.clone(), "was": layer.amplitude.clone()}
        for name, value in known.items():
            context.memory.setdefault(f"{context.received.round}.{name}", value)
        return super().loss(model, batch, context)


def test_who_comes_later_gets_the_amplitude_and_does_not_change_it(federation):
    run = fitted(Watched(window="full"), federation, 4, select=Turns())
    common = run.server.memory["amplitude"]
    first = {0: 1, 1: 1, 2: 1, 3: 2, 4: 3}
    downs = run.wire.query("part == 'shared'")
    told = dict(zip(downs.client, downs["round"], strict=True))
    assert told == {1: 2, 2: 2, 3: 2, 4: 3, 0: 4}, "each once, when it first can be"
    assert len(downs) == 5
    for client, round in first.items():
        memory = run.private[client].memory
        assert memory[f"{round}.fixed"] == (round > 1)
        if round > 1:
            assert torch.equal(memory[f"{round}.was"], common)
        assert torch.equal(run.private[client].weights[AMPLITUDE], common)
    assert sorted(run.server.memory["recipients"].tolist()) == [0, 1, 2, 3, 4]


def test_a_first_round_that_fails_is_made_up_for(federation):
    @dataclass(frozen=True)
    class Unlucky(HarmoFL):
        def after_training(self, model, context):
            if context.received.round == 1:  # not one mistake of all clients
                raise RuntimeError(f"client {context.client.id} is out of battery")
            return super().after_training(model, context)

    with pytest.warns(UserWarning, match="battery"):
        run = a_run(Unlucky(), federation).step()
    assert run.server.memory == {}
    run.step()
    assert run.server.memory["amplitude"].shape == (2, 1, 1)
    assert len(run.messages) == 5


def test_a_client_that_missed_the_telling_is_told_again(federation):
    @dataclass(frozen=True)
    class Unlucky(HarmoFL):
        def after_training(self, model, context):
            if context.received.round == 2 and context.client.id == 3:
                raise RuntimeError("out of battery")
            return super().after_training(model, context)

    with pytest.warns(UserWarning, match="battery"):
        run = fitted(Unlucky(), federation, 4)
    downs = run.wire.query("part == 'shared' and client == 3")
    assert downs["round"].tolist() == [2, 3]
    common = run.server.memory["amplitude"]
    assert torch.equal(run.private[3].weights[AMPLITUDE], common)


# ---- prediction ---------------------------------------------------------------------
@pytest.mark.parametrize("window", WINDOWS)
def test_everybody_predicts_with_the_common_amplitude(window):
    federation = unequal(val=0.2)
    run = fitted(HarmoFL(window=window), federation, 2)
    x = federation.test.whole()
    model = run.model
    assert torch.equal(model.entry.harmony.amplitude, run.server.memory["amplitude"])
    expected = nn.functional.cross_entropy(model(x.x), x.y, reduction="none")
    for client in (None, 0, 3):
        found = run.scores(federation.test, client).loss
        np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    normal = model.entry.harmony(x.x)
    assert not torch.allclose(normal, x.x, atol=1e-3), "it matters"
    metrics = set(run.history.table().query("split == 'val'").metric)
    assert metrics == {"accuracy", "loss"}, "nobody has a model of its own"


def test_clients_of_unlike_brightness_become_alike():
    federation = unequal()
    run = fitted(HarmoFL(), federation, 1)
    layer = run.model.entry.harmony
    means = [federation.client(k).train.whole().x.mean((0, 2, 3)) for k in range(5)]
    after = [layer(federation.client(k).train.whole().x) for k in range(5)]
    spread = torch.stack([x.mean((2, 3)).abs().mean(0) for x in after]).std(0)
    assert (spread < 0.01 * torch.stack(means).std(0)).all()


# ---- as for every method ------------------------------------------------------------
def test_a_report_that_is_no_amplitude_leaves_that_client_out(federation):
    method = garbled(
        HarmoFL(), 1, lambda said: {"amplitude": said["amplitude"].repeat(2, 1, 1)}
    )
    expect_left_out(a_run(method, federation), 1, "'amplitude'")
