"""FedDG: frequencies, the bank on the wire, the step ahead, the authors' numbers."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.fft import fft2
from torch.nn import functional as F

from fedlab_support import FedAvg, FedDG, LocalTraining, Run, small_cnn
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import feddg
from fedlab_support.methods.shared.samples import others
from fedlab_support.training.loop import take_step
from tests import runs
from tests.runs import (
    TRAINING,
    Steady,
    a_visit,
    distance,
    expect_left_out,
    garbled,
)
from tests.support.methods.test_reference import FLOAT64, case, vectors
from tests.tiny import a_stream

WIDE = 0.2  # of 8 pixels: b = 1, a window of 3x3


pytestmark = pytest.mark.usefixtures("one_thread")


def a_run(federation, method=None, model=Steady, **settings) -> Run:
    return runs.a_run(method or FedDG(alpha=WIDE), federation, model, **settings)


def fitted(federation, method=None, rounds=2, **settings) -> Run:
    run = a_run(federation, method, **settings)
    run.fit(rounds, progress=False)
    return run


def begun(federation, method=None, **settings) -> Run:
    """A run after a short round: all clients have their bank, one has trained."""
    settings = {"training": LocalTraining(), "select": lambda *_: [0], **settings}
    return a_run(federation, method, **settings).step(evaluate=False)


def pictures(shape, num: int = 4, seed: int = 0, dtype=torch.float64) -> torch.Tensor:
    """Pictures with structure and a mean that is not 0, negative for the first."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(num, *shape, generator=stream, dtype=dtype)
    offset = torch.arange(num, dtype=dtype) - 0.5
    return (x + offset[:, None, None, None]).to(memory_format=torch.channels_last)


def share(value: float, x: torch.Tensor) -> torch.Tensor:
    return torch.full((len(x),), value, dtype=x.dtype)


def is_low(height: int, width: int, b: int) -> torch.Tensor:
    """The window by signed frequencies, bool (H, W), found with a slow loop."""
    low = torch.zeros(height, width, dtype=torch.bool)
    for u in range(-b, b + 1):
        for v in range(-b, b + 1):
            low[u % height, v % width] = True
    return low


# ---- frequencies --------------------------------------------------------------------
SHAPES = [(1, 8, 8), (3, 7, 9), (3, 9, 6), (3, 5, 12), (1, 28, 28)]
ALPHAS = [0.0, 0.2, 0.49]
everywhere = pytest.mark.parametrize("alpha", ALPHAS)
on_all_shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@everywhere
@on_all_shapes
def test_a_picture_with_its_own_amplitude_is_itself(shape, alpha):
    method, x = FedDG(alpha=alpha), pictures(shape)
    for value in (0.0, 0.3, 1.0):
        t = method.restyle(x, method.amplitudes(x), share(value, x))
        torch.testing.assert_close(t, x, rtol=0, atol=1e-10)
    single = x.float()
    t = method.restyle(single, method.amplitudes(single), share(1.0, single))
    torch.testing.assert_close(t, single, rtol=0, atol=1e-5)
    foreign = method.amplitudes(pictures(shape, seed=1))
    assert (method.restyle(x, foreign, share(1.0, x)) - x).abs().max() > 1e-2


@everywhere
@on_all_shapes
def test_a_mixing_of_0_is_the_identity(shape, alpha):
    method, x = FedDG(alpha=alpha), pictures(shape)
    foreign = 10 * method.amplitudes(pictures(shape, seed=1))
    t = method.restyle(x, foreign, share(0.0, x))
    torch.testing.assert_close(t, x, rtol=0, atol=1e-10)
    assert (method.restyle(x, foreign, share(1e-3, x)) - x).abs().max() > 1e-5


@everywhere
@on_all_shapes
def test_amplitudes_are_mixed_inside_the_window_only_and_the_phase_is_kept(
    shape, alpha
):
    _, h, w = shape
    method, x, other = FedDG(alpha=alpha), pictures(shape), pictures(shape, seed=1)
    mixing = torch.tensor([0.1, 0.5, 0.8, 1.0], dtype=x.dtype)
    t = method.restyle(x, method.amplitudes(other), mixing)
    low = is_low(h, w, int(alpha * min(h, w)))
    assert low.sum() == (2 * int(alpha * min(h, w)) + 1) ** 2
    mine, theirs, mixed = fft2(x), fft2(other), fft2(t)
    lam = mixing.view(-1, 1, 1, 1)
    inside = (1 - lam) * mine.abs() + lam * theirs.abs()
    expected = torch.where(low, inside, mine.abs())
    torch.testing.assert_close(mixed.abs(), expected, rtol=1e-9, atol=1e-9)
    turned = mixed / mixed.abs() - mine / mine.abs()  # as points on the unit circle
    assert turned.abs().max() < 1e-8
    assert t.dtype == x.dtype and t.shape == x.shape


def test_every_picture_has_its_own_share_and_its_own_partner():
    method, x, other = (
        FedDG(alpha=WIDE),
        pictures((3, 8, 8)),
        pictures((3, 8, 8), seed=1),
    )
    mixing = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=x.dtype)
    together = method.restyle(x, method.amplitudes(other), mixing)
    for i in range(4):
        row = slice(i, i + 1)
        alone = method.restyle(x[row], method.amplitudes(other[row]), mixing[row])
        torch.testing.assert_close(together[row], alone, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(together[1], together[2])


@on_all_shapes
def test_a_window_of_one_shifts_the_brightness(shape):
    method, x, other = FedDG(alpha=0.0), pictures(shape), pictures(shape, seed=1)
    change = method.restyle(x, method.amplitudes(other), share(1.0, x)) - x
    spread = change.flatten(2).std(2)
    assert spread.max() < 1e-10, "constant per channel"
    assert change.abs().max() > 0.01
    mean, foreign = (x + change).mean((2, 3)), other.mean((2, 3))
    torch.testing.assert_close(mean.abs(), foreign.abs(), rtol=1e-9, atol=1e-9)
    assert torch.equal(mean.sign(), x.mean((2, 3)).sign()), "the phase of the mean"


def test_a_blank_picture_gives_finite_numbers():
    method, blank = FedDG(alpha=WIDE), torch.zeros(2, 1, 8, 8)
    foreign = method.amplitudes(pictures((1, 8, 8), 2, dtype=torch.float32))
    assert method.restyle(blank, foreign, torch.ones(2)).isfinite().all()
    assert (method.amplitudes(blank) == 0).all()


# ---- the authors' numbers -----------------------------------------------------------
EXCHANGES = [
    name.removesuffix("__img").split("__")
    for name in vectors("feddg_amplitude")
    if name.endswith("__img")
]


@pytest.mark.parametrize(("tag", "window", "ratio"), EXCHANGES)
def test_the_exchange_is_that_of_the_official_demo(tag, window, ratio):
    arrays = case("feddg_amplitude", tag)
    method = FedDG(alpha=float(window.removeprefix("L")))
    x, other = (arrays[f"{who}_chw"][None] for who in ("src", "trg"))
    b = arrays[f"{window}__b"].item()
    foreign = method.amplitudes(other)
    assert foreign.shape[-2:] == (2 * b + 1, 2 * b + 1)
    low = is_low(*x.shape[-2:], b)
    sorted_low = [a[..., low].sort().values for a in (arrays["trg_amp_unshifted"],)]
    found = foreign.flatten(2).sort().values[0]
    np.testing.assert_allclose(found, sorted_low[0], rtol=1e-9, atol=1e-8)

    mixing = 1 - float(ratio.removeprefix("ratio"))  # theirs is the local share
    t = method.restyle(x, foreign, share(mixing, x))[0]
    np.testing.assert_allclose(t, arrays[f"{window}__{ratio}__img"], rtol=0, atol=1e-8)
    amplitude = arrays[f"{window}__{ratio}__amp"]
    np.testing.assert_allclose(fft2(t).abs(), amplitude, rtol=1e-9, atol=1e-7)
    if ratio == "ratio0":
        swapped = arrays[f"{window}__full_swap_hwc"].permute(2, 0, 1)
        np.testing.assert_allclose(t, swapped, rtol=0, atol=1e-8)


def test_all_sizes_windows_and_shares_of_the_file_were_compared():
    assert len(EXCHANGES) == 36 and {e[0] for e in EXCHANGES} == {
        "gray28",
        "rgb16x24",
        "rgb_odd15x17",
    }


def test_the_reports_settings_give_the_reports_picture():
    arrays = {
        n: torch.from_numpy(a) for n, a in vectors("feddg_report_settings").items()
    }
    method = FedDG(
        alpha=arrays["L"].item(), mixing=1 - arrays["local_weight_ratio"].item()
    )
    assert (method.alpha, method.mixing) == (0.003, 0.6)
    x, other = arrays["src"][None], arrays["trg"][None]
    t = method.restyle(x, method.amplitudes(other), share(method.mixing, x))[0]
    np.testing.assert_allclose(t, arrays["out"], rtol=1e-4, atol=1e-5)
    assert (arrays["out"] - arrays["src"]).abs().max() > 0.01


META = "feddg_meta_step_big_step_small_clip"


def watched_step(monkeypatch, method):
    """The official case: its numbers, the gradients, the weights ahead, the losses."""
    given = {n: torch.from_numpy(np.array(a)) for n, a in vectors(META).items()}
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)
    model, context, seen = nn.Sequential(*layers).double(), a_visit(), {}
    model.load_state_dict({n: given[f"param__{n}"] for n in model.state_dict()})

    def functional_call(module, ahead, inputs):
        seen.update({name: value.detach().clone() for name, value in ahead.items()})
        return torch.func.functional_call(module, ahead, inputs)

    with monkeypatch.context() as patch:
        patch.setattr(feddg, "functional_call", functional_call)
        patch.setattr(FedDG, "_restyled", lambda *_: given["x_meta_test"])
        batch = Batch(given["x_meta_train"], given["y"], torch.arange(10), 0)
        loss = method.loss(model, batch, context)
    loss.backward()
    return given, model, seen, context.logged_means() | {"loss": loss.item()}


def test_the_step_ahead_is_that_of_the_reference(monkeypatch):
    given = vectors(META)
    beta, clip = given["meta_step_size"].item(), given["clip_value"].item()
    method = FedDG(beta=beta, clip=clip)
    given, model, ahead, logged = watched_step(monkeypatch, method)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, given[f"param__{name}"]), "live weights stay"
        np.testing.assert_allclose(ahead[name], given[f"fast__{name}"], **FLOAT64)
        np.testing.assert_allclose(
            parameter.grad, given[f"total_grad__{name}"], **FLOAT64
        )
        assert (given[f"inner_grad__{name}"].abs() > clip).any(), "clipping matters"
    assert logged["task_loss"] == pytest.approx(given["loss_inner"].item(), rel=1e-9)
    outer = given["loss_outer"].item()
    assert logged["restyled_loss"] == pytest.approx(outer, rel=1e-9)
    assert logged["loss"] == pytest.approx(given["loss_inner"].item() + outer, rel=1e-9)


def test_the_inner_gradient_is_that_of_the_reference(monkeypatch):
    given, model, ahead, _ = watched_step(monkeypatch, FedDG(beta=0.5, clip=1e9))
    for name, parameter in model.named_parameters():
        found = (parameter.detach() - ahead[name]) / 0.5
        np.testing.assert_allclose(found, given[f"inner_grad__{name}"], **FLOAT64)


# ---- the step, on a client ----------------------------------------------------------
def welcomed(federation, method, client: int = 2):
    """A model, a batch of eight and a visit of a client that has its bank."""
    run = begun(federation, method)
    context = a_visit(federation, client, run.private[client].memory)
    return (
        run.model.train(),
        federation.client(client).train.batch(np.arange(8)),
        context,
    )


def test_the_loss_is_the_sum_of_both_and_the_second_is_taken_ahead(
    federation, monkeypatch
):
    method = FedDG(alpha=WIDE, beta=0.3, clip=0.02, mixing=0.9)
    model, batch, context = welcomed(federation, method)
    own, usual = copy.deepcopy(model), FedDG._restyled
    made = []

    def watched(self, *args):
        made.append(usual(self, *args))
        return made[0]

    monkeypatch.setattr(FedDG, "_restyled", watched)
    loss = method.loss(model, batch, context).item()
    inner = F.cross_entropy(own(batch.x), batch.y)
    inner.backward()
    with torch.no_grad():
        for parameter in own.parameters():
            if parameter.requires_grad:
                parameter -= 0.3 * parameter.grad.clamp(-0.02, 0.02)
    outer = F.cross_entropy(own(made[0]), batch.y).item()
    logged = context.logged_means()
    assert logged["task_loss"] == pytest.approx(inner.item(), rel=1e-5)
    assert logged["restyled_loss"] == pytest.approx(outer, rel=1e-5)
    assert loss == pytest.approx(inner.item() + outer, rel=1e-5)
    plain = F.cross_entropy(model(made[0]), batch.y).item()
    assert abs(outer - plain) > 1e-3, "the step matters"


def test_the_step_ahead_leaves_weights_as_they_are_and_updates_statistics_once(
    federation,
):
    method = FedDG(alpha=WIDE, beta=10.0)
    model, batch, context = welcomed(federation, method)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    once = copy.deepcopy(model)
    once(batch.x)
    method.loss(model, batch, context).backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
    name = "stages.1.num_batches_tracked"
    assert model.state_dict()[name] == once.state_dict()[name] > 0
    for (name, buffer), expected in zip(
        model.named_buffers(), once.buffers(), strict=True
    ):
        assert torch.equal(buffer, expected), name
    model(batch.x)
    running = model.stages[1].running_mean
    assert not torch.equal(running, once.stages[1].running_mean), "it would show"


@pytest.mark.parametrize("mixing", [1.0, None])
def test_restyled_pictures_stay_in_the_range_of_pictures(federation, mixing):
    method = FedDG(alpha=0.4, mixing=mixing)
    _, _, context = welcomed(federation, method)
    data = federation.data
    for x, y, *rest in context.client.train.batches(8):
        t = method._restyled(Batch(x, y, *rest), context)
        shade = t * torch.tensor(data.std).view(-1, 1, 1)
        shade += torch.tensor(data.mean).view(-1, 1, 1)
        assert shade.min() > -1e-6 and shade.max() < 1 + 1e-6
        assert not torch.allclose(t, x, atol=0.05)
    bright = method.restyle(x, 20 * method.amplitudes(x), torch.ones(len(x)))
    clipped = context.client.train.store.clip(bright)
    assert bright.max() > clipped.max() + 1, "without clipping it would show"
    assert torch.equal(context.client.train.store.clip(x), x)


def test_without_a_fixed_share_each_picture_draws_its_own(federation, monkeypatch):
    _, batch, context = welcomed(federation, FedDG(alpha=WIDE))
    seen, usual = [], FedDG.restyle

    def watched(self, x, foreign, mixing):
        seen.append(mixing)
        return usual(self, x, foreign, mixing)

    monkeypatch.setattr(FedDG, "restyle", watched)
    for _ in range(25):
        FedDG(alpha=WIDE)._restyled(batch, context)
    drawn = torch.stack(seen)
    assert drawn.shape == (25, 8) and len(drawn.unique()) == 200
    assert drawn.min() < 0.1 and drawn.max() > 0.9
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.07)
    FedDG(alpha=WIDE, mixing=0.6)._restyled(batch, context)
    assert seen[-1].tolist() == pytest.approx([0.6] * 8)


# ---- the limit: FedAvg at twice the learning rate -----------------------------------
@pytest.mark.slow
def test_without_step_and_mixing_it_is_fedavg_at_twice_the_learning_rate(federation):
    doubled = replace(TRAINING, lr=2 * TRAINING.lr)
    plain = fitted(federation, FedAvg(), training=doubled)
    assert distance(plain, a_run(federation)) > 0.05, "weights have moved"
    assert (
        distance(plain, fitted(federation, FedDG(alpha=WIDE, mixing=0.0, beta=0.0)))
        < 1e-5
    )
    for near in (
        FedDG(alpha=WIDE, mixing=1e-4, beta=0.0),
        FedDG(alpha=WIDE, mixing=0.0, beta=1e-4),
    ):
        assert 1e-7 < distance(plain, fitted(federation, near)) < 1e-3
    for away in (
        FedDG(alpha=WIDE, mixing=1.0, beta=0.0),
        FedDG(alpha=WIDE, mixing=0.0, beta=1.0),
    ):
        assert distance(plain, fitted(federation, away)) > 1e-3


# ---- the bank on the wire -----------------------------------------------------------
def amplitudes_of(federation, method, client: int) -> torch.Tensor:
    """All of a client's amplitudes, computed outside the run."""
    return method.amplitudes(federation.client(client).train.whole().x)


def is_among(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Which of ``rows`` is one of ``others``, bool (n,)."""
    exact = "donot_use_mm_for_euclid_dist"
    apart = torch.cdist(rows.flatten(1), others.flatten(1), compute_mode=exact)
    return (apart < 1e-3).any(1)


def ordered(entries: torch.Tensor) -> torch.Tensor:
    """Rows in an order that depends on their values only."""
    flat = entries.flatten(1)
    return flat[np.lexsort(flat.numpy().T)]


@pytest.mark.parametrize("match_label", [False, True])
def test_a_client_receives_exactly_the_amplitudes_of_all_others(
    federation, match_label
):
    method = FedDG(alpha=WIDE, match_label=match_label)
    run = begun(federation, method)
    all_amplitudes = [amplitudes_of(federation, method, k) for k in range(5)]
    counts = torch.from_numpy(federation.class_counts())
    for client in range(5):
        bank = run.private[client].memory
        assert bank.keys() == {"entries", "sizes"}
        theirs = [a for k, a in enumerate(all_amplitudes) if k != client]
        assert torch.equal(ordered(bank["entries"]), ordered(torch.cat(theirs)))
        assert not is_among(all_amplitudes[client], bank["entries"]).any()
        sizes = torch.tensor(federation.sizes)
        sizes[client] = 0
        if match_label:
            sizes = counts.sum(0) - counts[client]
        assert bank["sizes"].tolist() == [*sizes.tolist(), 0]


def test_groups_of_the_bank_hold_one_client_or_one_class_each(federation):
    for method in (FedDG(alpha=WIDE), FedDG(alpha=WIDE, match_label=True)):
        bank = begun(federation, method).private[1].memory
        pieces = bank["entries"].split(bank["sizes"].tolist())
        for group, piece in enumerate(pieces):
            for client in (0, 2, 3, 4):
                said = amplitudes_of(federation, method, client)
                if method.match_label:
                    labels = federation.client(client).train.labels
                    assert not is_among(said[labels != group], piece).any()
                    assert is_among(said[labels == group], piece).all()
                else:
                    assert is_among(said, piece).all() == (client == group)


def test_a_partner_is_of_the_same_class_if_there_is_any(federation, monkeypatch):
    method = FedDG(alpha=WIDE, mixing=1.0, match_label=True)
    seen, usual = [], FedDG.restyle

    def watched(self, x, foreign, mixing):
        seen.append(foreign)
        return usual(self, x, foreign, mixing)

    _, _, context = welcomed(federation, method)
    monkeypatch.setattr(FedDG, "restyle", watched)
    whole = context.client.train.whole()
    method._restyled(whole, context)
    pieces = context.memory["entries"].split(context.memory["sizes"].tolist())
    for label, foreign in zip(whole.y.tolist(), seen[0], strict=True):
        assert is_among(foreign[None], pieces[label]).item()
        assert not is_among(
            foreign[None], torch.cat(pieces[:label] + pieces[label + 1 :])
        )

    # nobody else has class 3: then any entry may come
    sizes = context.memory["sizes"].tolist()
    context.memory["entries"] = torch.cat(pieces[:3])
    context.memory["sizes"] = torch.tensor([*sizes[:3], 0, 0])
    last = Batch(whole.x, torch.full_like(whole.y, 3), whole.index, 0)
    for _ in range(10):
        method._restyled(last, context)
    drawn = torch.cat(seen[1:])
    assert all(is_among(drawn, piece).any() for piece in pieces[:3])


def test_clients_lend_their_look_equally_often_whatever_their_size(
    federation, monkeypatch
):
    method = FedDG(alpha=WIDE)
    _, batch, context = welcomed(federation, method, client=2)
    seen = []
    monkeypatch.setattr(
        FedDG, "restyle", lambda self, x, foreign, _: seen.append(foreign) or x
    )
    for _ in range(100):
        method._restyled(batch, context)
    drawn = torch.cat(seen)
    often = [
        is_among(drawn, amplitudes_of(federation, method, k)).double().mean().item()
        for k in range(5)
    ]
    assert often[2] == 0
    assert often == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.06)
    assert max(federation.sizes) > 3 * min(federation.sizes), "sizes would show"


@pytest.mark.slow
@pytest.mark.parametrize("match_label", [False, True])
@pytest.mark.parametrize(("alpha", "b"), [(0.0, 0), (0.2, 1), (0.49, 3)])
def test_only_the_window_travels_once(federation, alpha, b, match_label):
    run = fitted(federation, FedDG(alpha=alpha, match_label=match_label))
    per_picture = 4 * 2 * (2 * b + 1) ** 2  # float32, two channels
    label, shape = 8 * match_label, 3 * 8
    wire, sizes = run.wire, federation.sizes
    first = wire[wire["round"] == 0].set_index(["direction", "part", "client"]).bytes
    groups = 4 if match_label else 5
    for k in range(5):
        introduced = first["up", "setup_upload", k]
        assert introduced == sizes[k] * (per_picture + label) + shape
        rest = sizes.sum() - sizes[k]
        assert first["down", "setup_reply", k] == rest * per_picture + 8 * (groups + 1)
    assert len(first) == 10
    later = wire[wire["round"] > 0]
    assert set(later.part) == {"weights", "num_examples"}, "rounds are those of FedAvg"
    assert run.server.shared == {} and all(m.upload == {} for m in run.messages)


# ---- as for every method ------------------------------------------------------------
def test_a_layer_that_is_not_used_changes_nothing(federation):
    def with_a_spare(*shape):
        model = small_cnn(*shape)
        model.spare = nn.Linear(3, 3)
        return model

    one, other = (
        fitted(federation, rounds=1, model=model) for model in (small_cnn, with_a_spare)
    )
    assert distance(one, other) == 0


# ---- what cannot be had -------------------------------------------------------------
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (lambda said: {"image_shape": said["image_shape"] + 1}, "images of shape"),
        (lambda said: {"amplitudes": -said["amplitudes"]}, "must be ≥ 0, found -"),
        (lambda said: {"labels": said["labels"][1:]}, "a class in 0…3 for each of"),
        (lambda said: {"labels": said["labels"] + 9}, "a class in 0…3 for each of"),
        (lambda said: {"labels": said["labels"] - 9}, "a class in 0…3 for each of"),
    ],
)
def test_a_wrong_introduction_leaves_its_client_out(federation, wrong, reason):
    method = FedDG(alpha=WIDE, match_label=True)
    method = garbled(method, 1, lambda said: said | wrong(said))
    expect_left_out(a_run(federation, method), 1, reason)


def test_what_a_client_gets_is_decided_by_the_bank_alone(federation):
    run = begun(federation)
    for client in range(5):
        expected = others(run.server.memory, client)
        for name, value in run.private[client].memory.items():
            assert torch.equal(value, expected[name])
    optimiser = torch.optim.SGD(run.model.parameters(), lr=0.1)
    context = a_visit(federation, 0, run.private[0].memory)
    batch = context.client.train.batch(np.arange(4))
    before = copy.deepcopy(run.private[0].memory)
    take_step(FedDG(alpha=WIDE), run.model, optimiser, batch, context, a_stream())
    assert all(torch.equal(context.memory[n], v) for n, v in before.items())


def test_a_window_loses_no_frequency_to_rounding():
    rows, _ = FedDG(alpha=0.29).window(100, 100)  # 0.29 * 100 is 28.999999999999996
    assert len(rows) == 2 * 29 + 1
