"""Messages are clipped and noisy as promised, and what that is worth is counted."""

import itertools
import runpy
import sys
import warnings
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedlab_support import (
    FedAvg,
    FedAvgM,
    FedDG,
    Federation,
    FedProx,
    FedSR,
    LocalTraining,
    Run,
    iid,
    power_of_choice,
    small_cnn,
    uniform,
)
from fedlab_support.core.messages import Message, nbytes
from fedlab_support.core.rng import torch_stream
from fedlab_support.engines import Faults
from fedlab_support.methods import FedBN, FedRobust, FedSAM
from fedlab_support.training.privacy import Privacy
from tests.tiny import tiny_data

TRAINING = LocalTraining(lr=0.1, epochs=2, batch_size=8)
STILL = LocalTraining(lr=0.0)
DELTA = 1e-5

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation():
    data = tiny_data(num=90)
    return Federation.build(data, iid(data, 4, rng=0))


def wide(image_shape, num_classes):
    """20,000 parameters or so: enough to see the noise's distribution."""
    size = image_shape[0] * image_shape[1] * image_shape[2]
    layers = torch.nn.Linear(size, 290), torch.nn.ReLU(), torch.nn.Linear(290, 4)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def a_run(federation, privacy, training=STILL, method=None, select=None, **kw):
    method = method or FedAvg("equal")
    kw = {"model": wide, "workers": 1, "evaluate_every": 99, **kw}
    return Run(
        method, federation, training=training, select=select, privacy=privacy, **kw
    )


def vector(tree) -> np.ndarray:
    return torch.cat([v.double().flatten() for v in tree.values()]).numpy()


def received(dtype=torch.float64) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(0)
    shapes = {"w": (30, 20), "b": (20,), "gate": ()}
    return {
        n: 1 + torch.randn(s, generator=stream, dtype=dtype) for n, s in shapes.items()
    }


def moved(v, length: float, seed: int = 1) -> Message:
    """A message whose step has that length and is spread unevenly over the tensors."""
    stream = torch.Generator().manual_seed(seed)
    steps = {
        n: 3.0 ** len(n) * torch.randn(x.shape, generator=stream, dtype=torch.float64)
        for n, x in v.items()
    }
    scale = length / np.linalg.norm(vector(steps))
    weights = {n: (x.double() + scale * steps[n]).to(x.dtype) for n, x in v.items()}
    return Message(2, 9, weights, metrics={"loss": 0.5})


def step_of(message: Message, v) -> np.ndarray:
    return vector(message.weights) - vector(v)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- clipping -----------------------------------------------------------------------
@pytest.mark.parametrize("length", [1e-3, 0.499, 0.5, 0.501, 7.0, 1e25])
def test_a_step_is_clipped_as_one_vector_to_the_exact_length(length):
    v = received()
    said = moved(v, length)
    kept = step_of(Privacy(clip=0.5, noise=0).protect(said, v, stream()), v)
    assert np.linalg.norm(kept) == pytest.approx(min(length, 0.5), rel=1e-9)
    direction = step_of(said, v) / np.linalg.norm(step_of(said, v))
    np.testing.assert_allclose(kept, min(length, 0.5) * direction, atol=1e-12)


def test_a_step_of_nothing_stays_nothing():
    v = received(torch.float32)
    said = Message(2, 9, {n: x.clone() for n, x in v.items()})
    kept = Privacy(clip=0.5, noise=0).protect(said, v, stream()).weights
    assert all(torch.equal(kept[n], v[n]) for n in v)


def test_the_message_keeps_its_form_and_says_nothing_of_the_number_of_examples():
    v = received(torch.float32)
    said = moved(v, 3.0)
    before = vector(said.weights)
    kept = Privacy().protect(said, v, stream())
    assert (kept.client, kept.num_examples, kept.metrics) == (2, 1, {"loss": 0.5})
    assert [*kept.weights] == [*v] and nbytes(kept.weights) == nbytes(v)
    assert all(kept.weights[n].dtype == v[n].dtype for n in v)
    assert np.array_equal(vector(said.weights), before), "in a new message"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_not_finite_does_not_leave_the_client(bad):
    v = received()
    said = moved(v, 1.0)
    said.weights["b"][3] = bad
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        Privacy().protect(said, v, stream())


def test_neither_does_it_in_a_run(federation):
    @dataclass(frozen=True)
    class LastStepDiverges(FedAvg):
        def loss(self, model, batch, context):
            factor = 1e38 if context.client.id == 1 else 1.0
            return super().loss(model, batch, context) * factor

    run = a_run(federation, Privacy(), TRAINING, LastStepDiverges("equal"))
    run.job = replace(run.job, training=LocalTraining(lr=10.0, batch_size=99))
    run.engine.open(run.job)
    with pytest.warns(UserWarning, match="client 1 is left out.*norm became"):
        run.step()
    assert set(run.wire.query("client == 1").direction) == {"down"}


# ---- the neutral setting ------------------------------------------------------------
def test_without_clipping_and_noise_a_message_is_as_without_privacy():
    v = received()
    said = moved(v, 3.0)
    for x in said.weights.values():
        x.mul_(torch.logspace(-12, 3, x.numel(), dtype=x.dtype).reshape(x.shape))
    kept = Privacy(clip=1e9, noise=0).protect(said, v, stream())
    for n in v:
        bound = 2.0**-52 * torch.maximum(v[n].abs(), said.weights[n].abs())
        assert ((kept.weights[n] - said.weights[n]).abs() <= bound).all()
    assert not np.allclose(vector(said.weights), vector(v))


def test_the_neutral_setting_gives_fedavg_and_near_it_is_near(federation):
    settings = (None, Privacy(1e9, 0), Privacy(1e3, 1e-9), Privacy(0.05, 0))
    runs = [a_run(federation, privacy, TRAINING) for privacy in settings]
    weights = [vector(run.step().step().server.weights) for run in runs]
    np.testing.assert_allclose(weights[1], weights[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(weights[2], weights[0], atol=1e-4)
    assert np.abs(weights[3] - weights[0]).max() > 1e-3


# ---- noise --------------------------------------------------------------------------
def noises(run: Run, rounds: int = 3) -> dict[tuple[int, int], np.ndarray]:
    """What was added, by round and client, in units of noise · clip; nobody moves."""
    found = {}
    for _ in range(rounds):
        before = vector(run.server.weights)
        run.step(evaluate=False)
        for message in run.messages:
            added = vector(message.weights) - before
            sigma = run.job.privacy.noise * run.job.privacy.clip
            found[run.server.round, message.client] = added / sigma
    return found


def test_noise_is_gaussian_of_the_promised_size_and_always_another(federation):
    found = noises(a_run(federation, Privacy(clip=0.5, noise=3.0)))
    n = len(found[1, 0])
    assert len(found) == 3 * 4 and n > 19_000
    for added in found.values():
        assert abs(added.mean()) < 5 / np.sqrt(n)
        assert abs(added.std() - 1) < 5 / np.sqrt(2 * n)
        assert abs((added**4).mean() - 3) < 5 * np.sqrt(96 / n)
        within = abs(np.corrcoef(added[1:], added[:-1])[0, 1])
        assert within < 5 / np.sqrt(n), "one coordinate says nothing of the next"
    for one, other in itertools.combinations(found.values(), 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)


def test_the_averages_noise_is_smaller_by_the_root_of_the_messages(federation):
    run = a_run(federation, Privacy(clip=0.5, noise=3.0))
    before = vector(run.server.weights)
    step = vector(run.step(evaluate=False).server.weights) - before
    assert step.std() == pytest.approx(1.5 / np.sqrt(4), rel=0.03)


def test_noise_is_the_same_for_any_number_of_workers_and_decided_by_the_seed(
    federation,
):
    one, two, other = (
        noises(a_run(federation, Privacy(seeded=True), workers=workers, seed=seed), 2)
        for workers, seed in ((1, 0), (2, 0), (1, 1))
    )
    assert all(np.array_equal(one[key], two[key]) for key in one)
    assert not any(np.allclose(one[key], other[key]) for key in one)


def test_two_runs_of_one_seed_share_no_noise_unless_it_is_seeded(federation):
    one, again = (noises(a_run(federation, Privacy(), seed=0), 2) for _ in range(2))
    n = len(one[1, 0])
    for key in one:
        assert abs(np.corrcoef(one[key], again[key])[0, 1]) < 5 / np.sqrt(n)


def test_no_small_seed_gives_the_noise_of_a_message(federation):
    """The attack: draw the noise of every seed that people choose, and compare."""

    def is_found(privacy: Privacy) -> bool:
        added = noises(a_run(federation, privacy, seed=7), 1)[1, 0]
        guesses = (torch_stream(seed, "privacy", 1, 0) for seed in range(300))
        first = [torch.randn(32, generator=g, dtype=torch.float64) for g in guesses]
        return any(np.allclose(added[:16], guess[:16], atol=1e-3) for guess in first)

    assert is_found(Privacy(seeded=True)), "that is what the option costs"
    assert not is_found(Privacy())


def test_noise_shifts_no_other_stream(federation):
    """The batches of a noisy run come in the order of one without noise."""
    tiny = Privacy(clip=1e3, noise=1e-12)
    losses = [
        a_run(federation, privacy, TRAINING).fit(1, progress=False).table()
        for privacy in (None, tiny)
    ]
    first, second = (t.query("split == 'train'").value.to_numpy() for t in losses)
    assert len(first) == 4 and np.array_equal(first, second)


# ---- counting -----------------------------------------------------------------------
def gaussian_rdp(rounds: int, noise: float) -> float:
    """Epsilon of the Gaussian mechanism: its Rényi divergence, converted, minimised."""
    alpha = 1 + np.geomspace(1e-3, 1e4, 200_000)
    divergence = rounds * alpha / (2 * noise**2)
    convert = np.log1p(-1 / alpha) - (np.log(DELTA) + np.log(alpha)) / (alpha - 1)
    return float((divergence + convert).min())


def gaussian_exactly(rounds: int, noise: float) -> float:
    """Theorem 8 of Balle and Wang, ICML 2018, by bisection; mu = sqrt(T) / sigma."""
    mu, low, high = np.sqrt(rounds) / noise, 0.0, 1e4
    for _ in range(200):
        epsilon = (low + high) / 2
        with np.errstate(over="ignore"):
            tail = np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        delta = norm.cdf(mu / 2 - epsilon / mu) - tail
        low, high = (epsilon, high) if delta > DELTA else (low, epsilon)
    return high


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 10, 300])
@pytest.mark.parametrize("noise", [0.7, 2.0, 15.0])
def test_what_the_server_learns_is_the_gaussian_mechanisms(rounds, noise):
    epsilon = Privacy(1.0, noise).epsilon(rounds, DELTA)
    reference, exact = gaussian_rdp(rounds, noise), gaussian_exactly(rounds, noise)
    assert reference * (1 - 1e-6) <= epsilon <= reference * 1.03 or epsilon > 100
    assert exact < epsilon < 1.35 * exact


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "noise"), [(10, 0.5), (2, 1.0), (50, 0.2)])
def test_who_sees_averages_only_learns_what_a_sampled_mechanism_tells(clients, noise):
    """Rényi divergence of the sampled Gaussian by quadrature, at whole orders."""
    rounds, q, sigma = 100, clients / 100, noise * np.sqrt(clients)
    x = np.linspace(-40 * sigma, 40 * sigma + 70, 40_001)
    ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2 * x - 1) / (2 * sigma**2))
    best = np.inf
    for alpha in range(2, 64):
        density = norm.logpdf(x, scale=sigma) + alpha * ratio
        most = density.max()
        log_a = most + np.log(np.trapezoid(np.exp(density - most), x))
        divergence = rounds * log_a / (alpha - 1)
        convert = np.log1p(-1 / alpha) - np.log(DELTA * alpha) / (alpha - 1)
        best = min(best, divergence + convert)
    epsilon = Privacy(1.0, noise).epsilon(rounds, DELTA, clients, 100)
    assert 0.95 * best < epsilon <= best * (1 + 1e-6)


@pytest.mark.slow
def test_epsilon_grows_with_rounds_and_sampling_and_falls_with_noise():
    def spent(noise=1.0, rounds=50, clients=10, total=100, delta=DELTA):
        return Privacy(3.0, noise).epsilon(rounds, delta, clients, total)

    for values in (
        [spent(rounds=r) for r in (1, 5, 50, 500)],
        [spent(noise=n) for n in (10, 2, 1, 0.5)],
        [spent(total=k) for k in (1000, 100, 20, 10)],
        [spent(delta=d) for d in (1e-2, 1e-4, 1e-8)],
    ):
        assert np.all(np.diff(values) > 0)
    # m messages of noise s average to one message of noise s sqrt(m)
    assert spent(clients=10, total=10) == spent(np.sqrt(10), clients=1, total=1)
    assert spent() < Privacy(3.0, 1.0).epsilon(50, DELTA), "the server sees more"
    assert spent(noise=0.0) == np.inf == Privacy(1.0, 0.0).epsilon(1, DELTA)
    assert Privacy(1.0, 1e6).epsilon(1, 0.9) == 0.0
    assert spent() == Privacy(0.1, 1.0).epsilon(50, DELTA, 10, 100), "whatever the clip"


def test_small_budgets_can_be_counted_and_nothing_is_said_about_orders():
    Privacy().epsilon(1, DELTA)  # what Opacus imports has filters of its own
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        assert Privacy(1.0, 500.0).epsilon(1, DELTA) < 0.02
        assert Privacy(1.0, 0.05).epsilon(1, DELTA) > 100
        assert warnings.filters == filters and caught == []


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")
def test_without_opacus_all_works_but_counting(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opacus", None)
    alone = runpy.run_module("fedlab_support.training.privacy")["Privacy"]()
    v = received()
    alone.protect(moved(v, 1.0), v, stream())
    with pytest.raises(ImportError, match=r"pip install opacus"):
        alone.epsilon(1, DELTA)


# ---- what the guarantee needs -------------------------------------------------------
def saying_more(hook: str):
    """A method that overrides one hook, with what its parent does."""
    usual = getattr(FedAvg, hook)
    more = type(f"Says{hook.title()}", (FedProx,), {hook: lambda *a: usual(*a)})
    return more(weighting="equal")


@pytest.mark.parametrize(
    "hook", ["client_setup", "before_training", "after_training", "aggregation_weights"]
)
def test_a_method_that_says_more_than_weights_is_refused(federation, hook):
    with pytest.raises(ValueError, match=f"Says{hook.title()} overrides {hook};"):
        a_run(federation, Privacy(), method=saying_more(hook))


def test_a_method_that_introduces_clients_is_refused(federation):
    with pytest.raises(ValueError, match="FedDG overrides client_setup"):
        a_run(federation, Privacy(), method=FedDG("equal"), model=small_cnn)


def test_clients_that_do_not_count_the_same_are_refused(federation):
    with pytest.raises(ValueError, match=r"'examples'; use FedProx\(weighting='equal'"):
        a_run(federation, Privacy(), method=FedProx())


def test_only_parameters_may_travel(federation):
    def normed(shape, num_classes):
        return small_cnn(shape, num_classes, norm="batch")

    @dataclass(frozen=True)
    class KeepsNorms(FedAvg):
        def private_names(self, model):
            return {name for name in model.state_dict() if ".1." in name}

    with pytest.raises(ValueError, match=r"num_batches_tracked.*running_var.*'group'"):
        a_run(federation, Privacy(), model=normed)
    run = a_run(federation, Privacy(), TRAINING, KeepsNorms("equal"), model=normed)
    run.step()
    assert run.private[0].weights["stages.0.1.num_batches_tracked"] > 0


def test_fedbn_is_welcome_as_long_as_no_batchnorm_travels(federation):
    normed = partial(small_cnn, norm="batch")
    average = FedBN("equal", unseen="average")
    with pytest.raises(ValueError, match="FedBN overrides after_training"):
        a_run(federation, Privacy(), method=average, model=normed)
    run = a_run(federation, Privacy(), TRAINING, FedBN("equal"), model=normed).step()
    assert len(run.messages) == 4

    @dataclass(frozen=True)
    class Gossips(FedBN):
        def after_training(self, model, context):
            return {"size": torch.tensor([float(len(context.client.train))])}

    run = a_run(federation, Privacy(), TRAINING, Gossips("equal"), model=normed)
    with pytest.raises(ValueError, match=r"upload of \['size'\]; correct"):
        run.step()  # every client fails alike
    assert run.messages == []
    assert run.wire.query("part == 'upload'").empty, "nothing has left"


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        *(FedAvg("equal"), FedAvgM("equal"), FedProx("equal"), FedSR("equal")),
        *(FedSAM("equal"), FedRobust("equal")),
    ],
)
def test_methods_that_only_change_training_or_the_server_are_welcome(
    federation, method
):
    run = a_run(federation, Privacy(0.1, 0.1), TRAINING, method, model=small_cnn)
    run.step()
    assert len(run.messages) == 4 and run.history.events().empty


def test_a_selection_that_asks_clients_is_refused_and_nothing_has_happened(federation):
    run = a_run(federation, Privacy(), select=power_of_choice(1, candidates=2))
    with pytest.raises(ValueError, match=r"a loss is not protected by Privacy\(clip="):
        run.step()
    assert run.server.round == 0 and run.messages == [] and run.wire.empty


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"clip": np.inf}, {"noise": -1.0}, {"noise": np.nan}]
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        Privacy(**wrong)


def test_privacy_and_faults_go_together(federation):
    faults = Faults(drop=0.3, nan=0.2, malformed=0.2)
    run = a_run(federation, Privacy(), TRAINING, select=uniform(3), faults=faults)
    run.fit(5, progress=False)
    assert (
        len(run.history.events()) > 0 and np.isfinite(vector(run.server.weights)).all()
    )
    assert run.describe()["privacy"] == "Privacy(clip=1.0, noise=1.0, seeded=False)"
