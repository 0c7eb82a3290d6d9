"""FedRobust: the climb of the distortion, what stays at home, and FedAvg at rate 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support import (
    Federation,
    LocalTraining,
    from_arrays,
    iid,
    report_cnn,
    small_cnn,
)
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedMix, FedRobust
from fedlab_support.training.loop import take_step
from tests.probe import AwkwardNet, LookTwice
from tests.runs import (
    Turns,
    a_run,
    a_visit,
    bytes_by_part,
    distance,
    fitted,
    plain,
    unequal,
)
from tests.tiny import a_stream

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ["per_channel", "full"]
STILL = {"matrix_rate": 0.0, "shift_rate": 0.0}
FAST = {"matrix_rate": 0.004, "shift_rate": 0.1}
both = pytest.mark.parametrize("family", FAMILIES)


def network(shape, dtype=torch.float64, num_classes: int = 3) -> nn.Module:
    torch.manual_seed(1)
    size = shape[0] * shape[1] * shape[2]
    layers = nn.Flatten(), nn.Linear(size, 6), nn.Tanh(), nn.Linear(6, num_classes)
    return nn.Sequential(*layers).to(dtype)


def a_batch(shape, num: int = 5, seed: int = 0) -> Batch:
    """Double precision, with a mean that is not 0."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(num, *shape, generator=stream, dtype=torch.float64) + 0.3
    y = torch.arange(num) % 3
    return Batch(x.to(memory_format=torch.channels_last), y, torch.arange(num), 0)


def step(method, model, batch, context, lr: float = 0.0) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr)
    take_step(method, model, optimiser, batch, context, a_stream())


def climbed(method, shape, steps: int, **settings):
    """Λ and δ after some steps on one batch with fixed weights, and what made them."""
    model, batch, context = network(shape), a_batch(shape), a_visit()
    for _ in range(steps):
        step(method, model, batch, context, **settings)
    return context.memory, model, batch


# ---- the climb, against a slow form -------------------------------------------------
def slowly(model, batch, method, steps: int):
    """Λ and δ as the induced map of all d values of a picture, entry by entry.

    Gradients in the matrix come from those of the distorted pictures, row by row.
    """
    x, y = batch.x, batch.y
    num, channels, *size = x.shape
    pixels = size[0] * size[1]
    is_full = method.family == "full"
    d = channels * pixels if is_full else channels
    area = 1 if is_full else pixels
    matrix, shift = np.eye(d), np.zeros(d)
    flat = x.permute(0, 2, 3, 1).reshape(-1, channels) if not is_full else x.flatten(1)
    flat = flat.numpy()
    for _ in range(steps):
        moved = torch.from_numpy(flat @ matrix + shift)
        if is_full:
            pictures = moved.view(x.shape)
        else:
            pictures = moved.view(num, *size, channels).permute(0, 3, 1, 2)
        pictures = pictures.clone().requires_grad_()
        # the sum over the batch, not its mean
        total = F.cross_entropy(model(pictures), y, reduction="sum")
        (slope,) = torch.autograd.grad(total, pictures)
        slope = slope.flatten(1) if is_full else slope.permute(0, 2, 3, 1)
        slope = slope.reshape(-1, d).numpy()
        up, right = np.zeros((d, d)), np.zeros(d)
        for row, toward in zip(flat, slope, strict=True):
            up += np.outer(row, toward)
            right += toward
        up -= 2 * method.matrix_penalty * area * (matrix - np.eye(d))
        right -= 2 * method.shift_penalty * area * shift
        matrix = matrix + method.matrix_rate / area * up
        shift = shift + method.shift_rate / area * right
    return matrix, shift


@both
@pytest.mark.parametrize("shape", [(2, 3, 4), (1, 2, 2), (3, 1, 1)], ids=str)
def test_the_climb_is_that_of_the_slow_form(family, shape):
    method = FedRobust(family=family, **FAST)
    memory, model, batch = climbed(method, shape, 4)
    matrix, shift = slowly(model, batch, method, 4)
    np.testing.assert_allclose(memory["matrix"], matrix, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(memory["shift"], shift, rtol=1e-9, atol=1e-12)
    assert np.abs(shift).max() > 1e-3 and np.abs(matrix - np.eye(len(shift))).max() > 0


def test_with_one_pixel_both_families_are_the_same():
    found = [
        climbed(FedRobust(family=family, **FAST), (4, 1, 1), 3)[0]
        for family in FAMILIES
    ]
    for name in ("matrix", "shift"):
        torch.testing.assert_close(found[0][name], found[1][name], rtol=0, atol=0)


def test_per_channel_is_the_full_map_of_that_structure():
    x, generator = a_batch((2, 3, 4)).x, torch.Generator().manual_seed(0)
    mixed = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    shift = torch.tensor([0.5, -1.0], dtype=torch.float64)
    full = torch.kron(mixed, torch.eye(12, dtype=torch.float64))
    one = FedRobust().distort(x, mixed, shift)
    other = FedRobust(family="full").distort(x, full, shift.repeat_interleave(12))
    torch.testing.assert_close(one, other)
    assert one.stride() == other.stride() == x.stride()
    by_hand = torch.einsum("bchw,cd->bdhw", x, mixed) + shift.view(1, -1, 1, 1)
    torch.testing.assert_close(one, by_hand)


@both
def test_a_small_climb_does_not_lower_the_loss_of_the_batch(family):
    for seed in range(5):
        shape = (2, 3, 3)
        model, batch, context = network(shape), a_batch(shape, seed=seed), a_visit()
        method = FedRobust(family=family, matrix_rate=1e-5, shift_rate=1e-4)
        step(method, model, batch, context)
        memory = context.memory
        distorted = method.distort(batch.x, memory["matrix"], memory["shift"])
        before, after = (
            F.cross_entropy(model(x), batch.y) for x in (batch.x, distorted)
        )
        assert after > before


@both
def test_strong_penalties_hold_the_distortion_at_the_identity(family):
    sizes = []
    for strength in (1, 100, 1e6):
        rates = {
            "matrix_penalty": 10 * strength,
            "matrix_rate": 0.02 / strength,
            "shift_penalty": 4 * strength,
            "shift_rate": 0.05 / strength,
        }
        memory, *_ = climbed(FedRobust(family=family, **rates), (2, 3, 3), 40)
        identity = torch.eye(len(memory["shift"]))
        away = (memory["matrix"] - identity).norm() + memory["shift"].norm()
        sizes.append(away.item())
    assert sizes[0] > 10 * sizes[1] > 100 * sizes[2] and sizes[2] < 1e-5


def test_at_the_top_the_shift_is_the_slope_over_twice_the_penalty():
    """A linear model, whose loss has one slope: delta = sum grad_x l / 2 lambda."""

    class Linear:
        def loss(self, output, y):
            return output.mean()

    shape = (2, 1, 1)
    model, batch = nn.Sequential(nn.Flatten(), nn.Linear(2, 1)).double(), a_batch(shape)
    context = replace(a_visit(), task=Linear())
    for _ in range(400):
        step(FedRobust(family="full", matrix_rate=0.0), model, batch, context)
    each = model[1].weight.detach()[0]  # grad_x of every sample's loss
    expected = sum(each for _ in batch.x) / (2 * 4.0)
    torch.testing.assert_close(context.memory["shift"], expected)


# ---- who sees which distortion ------------------------------------------------------
@both
def test_the_network_descends_on_the_distortion_before_the_climb(family):
    shape, method = (2, 3, 3), FedRobust(family=family, **FAST)
    model, batch, context = network(shape), a_batch(shape), a_visit()
    for _ in range(3):
        old = {n: v.clone() for n, v in context.memory.items()} or method.neutral(
            batch.x
        )
        start = [p.detach().clone() for p in model.parameters()]
        loss = F.cross_entropy(model(method.distort(batch.x, **old)), batch.y)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        step(method, model, batch, context, lr=0.5)
        for p, w, g in zip(model.parameters(), start, slopes, strict=True):
            torch.testing.assert_close(p.detach(), w - 0.5 * g)
        assert not torch.equal(context.memory["shift"], old["shift"])


def test_running_statistics_move_once_per_step_and_see_the_distorted_batch(federation):
    run = a_run(FedRobust(), federation, model=AwkwardNet).step()
    steps = [m.weights["stages.1.num_batches_tracked"].item() for m in run.messages]
    sizes = federation.sizes
    assert steps == [2 * (n // 8 + (n % 8 > 1)) for n in sizes]


def test_a_replay_starts_from_the_memory_of_the_first_look():
    seen = []

    class Counts:
        def loss(self, model, batch, context):
            seen.append(context.memory["n"].item())
            context.memory["n"] = context.memory["n"] + 1
            return model(batch.x).sum()

    model = nn.Linear(2, 1)
    context = a_visit(memory={"n": torch.tensor(0)})
    optimiser = LookTwice(list(model.named_parameters()), 0.1, radius=0.1)
    batch = Batch(torch.ones(1, 2), torch.zeros(1), torch.zeros(1), 0)
    for _ in range(2):
        take_step(Counts(), model, optimiser, batch, context, a_stream())
    assert seen == [0, 0, 1, 1] and context.memory["n"] == 2


# ---- the limit: FedAvg --------------------------------------------------------------
@pytest.mark.slow
@both
@pytest.mark.parametrize(("channels", "model"), [(1, small_cnn), (3, AwkwardNet)])
def test_without_a_climb_it_is_fedavg_bit_for_bit(family, channels, model):
    federation = unequal(channels=channels)
    training = LocalTraining(0.1, 2, 8, momentum=0.9)
    settings = {"model": model, "training": training}
    fedavg = plain(federation, **settings)
    robust = fitted(FedRobust(family=family, **STILL), federation, **settings)
    assert distance(fedavg, robust) == 0
    assert bytes_by_part(fedavg) == bytes_by_part(robust)


@pytest.mark.slow
@both
def test_near_it_the_result_is_near_and_away_from_it_is_not(federation, family):
    fedavg = plain(federation)
    slow = {"matrix_rate": 1e-8, "shift_rate": 1e-7}
    loose = {"matrix_rate": 0.1, "matrix_penalty": 0.1}
    loose |= {"shift_rate": 1.0, "shift_penalty": 0.1}
    near, far = (
        fitted(FedRobust(family=family, **rates), federation) for rates in (slow, loose)
    )
    assert 0 < distance(fedavg, near) < 1e-3 < distance(fedavg, far)


# ---- what stays ---------------------------------------------------------------------
@pytest.mark.parametrize(("family", "d"), [("per_channel", 2), ("full", 2 * 8 * 8)])
def test_the_distortion_stays_with_its_client_and_lasts(federation, family, d):
    run = a_run(FedRobust(family=family, **FAST), federation, select=Turns())
    kept = {}
    for _ in range(4):
        run.step()
        for client, own in kept.items():
            is_new = client in [m.client for m in run.messages]
            now = run.private[client].memory
            assert torch.equal(now["shift"], own["shift"]) != is_new
        kept |= {i: dict(p.memory) for i, p in run.private.items()}
        assert all(m.upload == {} for m in run.messages)
    for own in kept.values():
        assert {n: v.shape for n, v in own.items()} == {"matrix": (d, d), "shift": (d,)}
        assert not any(v.requires_grad for v in own.values())
    shifts = [own["shift"] for own in kept.values()]
    assert len(shifts) == 5
    assert all(not torch.equal(a, b) for a in shifts for b in shifts if a is not b)
    assert set(run.wire.part) == {"weights", "num_examples"}
    assert run.server.memory == {} and run.server.shared == {}


def test_predictions_are_made_on_pictures_as_they_are(federation):
    run = fitted(FedRobust(**FAST), federation)
    x, y, *_ = federation.test.whole()
    expected = F.cross_entropy(run.model(x), y, reduction="none").detach()
    np.testing.assert_allclose(run.scores(federation.test, 2).loss, expected, rtol=1e-4)


# ---- as for every method ------------------------------------------------------------
def test_pictures_too_large_for_a_full_matrix_are_refused_before_training():
    federation = unequal(channels=17)  # 17 · 8 · 8 = 1088
    with pytest.raises(ValueError, match=r"1,024 values, found 1,088.*per_channel"):
        a_run(FedRobust(family="full"), federation, model=report_cnn)
    a_run(FedRobust(), federation, model=small_cnn)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"shift_rate": 0.125}, "0.125"),
        ({"matrix_rate": 0.006}, "0.005"),
        ({"shift_penalty": 25.0}, "0.02"),
    ],
)
def test_rates_at_which_the_penalty_overshoots_are_refused(settings, limit):
    with pytest.raises(ValueError, match=rf"_rate must be below 1 / .*= {limit}, or"):
        FedRobust(**settings)
    FedRobust(shift_penalty=0.0, shift_rate=50.0)


@pytest.mark.parametrize("method", [FedRobust(), FedMix()])
def test_tokens_cannot_be_distorted_or_mixed(method):
    tokens = np.random.default_rng(0).integers(0, 30, (40, 8))
    data = from_arrays(tokens, np.arange(40) % 2)
    federation = Federation.build(data, iid(data, clients=4, rng=0))
    with pytest.raises(ValueError, match=r"changes the values of inputs, found whole"):
        method.check_federation(federation)
