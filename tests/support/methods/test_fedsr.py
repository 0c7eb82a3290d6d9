"""FedSR: its limits, its formulas, what stays at home, and the authors' numbers."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from fedlab_support import FedAvg, Federation, FedSR, LocalTraining, Run, small_cnn
from fedlab_support.core.rng import layer_noise
from fedlab_support.engines.local import LocalEngine
from fedlab_support.federation.partition import by_owner
from fedlab_support.federation.samples import Batch
from fedlab_support.models import GaussianHead, small_unet
from fedlab_support.training.loop import take_step
from tests.runs import a_visit
from tests.support.methods.test_reference import FLOAT32, case, vectors
from tests.tiny import a_stream, tiny_data

TRAINING = LocalTraining(lr=0.1, epochs=2, batch_size=8, momentum=0.9)
M, D = 4, 5  # classes of the tiny data, features after the head's own layer
HIDDEN = 12
OWN = {"head.reference_mean", "head.reference_scale", "head.stretch"}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def federation():
    """Five clients of unequal size; the first has no sample of class 0."""
    data = tiny_data(num=90)
    return Federation.build(data, by_owner(data), val=0.2)


class Flat(nn.Module):
    """One hidden layer on the pixels, one linear head."""

    def __init__(self, image_shape, num_classes, hidden=HIDDEN):
        super().__init__()
        pixels = int(np.prod(image_shape))
        self.neck = nn.Sequential(nn.Flatten(), nn.Linear(pixels, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, num_classes)

    def encode(self, x):
        return self.neck(x)

    def forward(self, x):
        return self.head(self.encode(x))


def a_run(federation, method=None, model=Flat, training=TRAINING, **settings) -> Run:
    method = method or FedSR(num_features=D)
    settings = {"workers": 1, **settings}
    return Run(method, federation, model, training, **settings)


def fitted(federation, method=None, rounds=2, **settings) -> Run:
    run = a_run(federation, method, **settings)
    run.fit(rounds, progress=False)
    return run


def a_head(seed: int = 0, stretch: float = 0.7, dtype=torch.float64) -> GaussianHead:
    """A head whose references have moved away from their start."""
    stream = torch.Generator().manual_seed(seed)
    head = GaussianHead(6, M, D).to(dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream))
        head.stretch.fill_(stretch)
    return head


def posterior(num: int = 7, seed: int = 1):
    """Means and deviations (num, D), and classes: one is absent, one comes often."""
    stream = torch.Generator().manual_seed(seed)
    mu = 2 * torch.randn(num, D, generator=stream, dtype=torch.float64)
    sigma = 0.1 + torch.rand(num, D, generator=stream, dtype=torch.float64)
    return mu, sigma, torch.tensor([0, 2, 3, 3, 2, 3, 3])[:num]


# ---- the limit: FedAvg with a linear head -------------------------------------------
@dataclass(frozen=True)
class Narrow(FedSR):
    """Starts with a deviation that does not depend on the picture."""

    raw_deviation: float = -200.0  # before the softplus

    def adapt(self, model):
        model = super().adapt(model)
        with torch.no_grad():
            model.head.split.weight[D:] = 0
            model.head.split.bias[D:] = self.raw_deviation
        return model


def plain_from(start: Run):
    """A factory of the same weights with an ordinary linear head."""

    def factory(image_shape, num_classes):
        model = Flat(image_shape, num_classes)
        model.head = nn.Sequential(nn.Linear(HIDDEN, D), nn.Linear(D, num_classes))
        model.load_state_dict(without_deviation(start))
        return model

    return factory


def without_deviation(run: Run) -> dict[str, torch.Tensor]:
    """The server's weights under the names of the plain model."""
    weights = {n: w.clone() for n, w in run.server.weights.items()}
    for kind in ("weight", "bias"):
        weights[f"head.0.{kind}"] = weights.pop(f"head.split.{kind}")[:D]
        weights[f"head.1.{kind}"] = weights.pop(f"head.classifier.{kind}")
    return weights


def distance(a: dict, b: dict) -> float:
    assert a.keys() == b.keys()
    return max((a[n] - b[n]).abs().max().item() for n in a)


def limit_and_plain(federation, raw_deviation, weighting="equal", rounds=2, **kw):
    """Where FedSR and FedAvg end that started together; and how far they walked."""
    kw = {"l2r_weight": 0.0, "cmi_weight": 0.0, **kw}
    method = Narrow(weighting, num_features=D, raw_deviation=raw_deviation, **kw)
    start = a_run(federation, method)
    begin = without_deviation(start)
    plain = fitted(federation, FedAvg(weighting), rounds, model=plain_from(start))
    end = without_deviation(fitted(federation, method, rounds))
    return distance(plain.server.weights, end), distance(begin, end)


@pytest.mark.parametrize("weighting", ["equal", "examples"])
def test_without_regularisers_and_noise_it_is_fedavg_with_a_linear_head(
    federation, weighting
):
    assert len(set(federation.sizes)) > 3, "clients of unequal size"
    apart, walked = limit_and_plain(federation, -200.0, weighting)
    assert apart < 1e-5 and walked > 0.05


def test_the_two_weightings_lead_elsewhere(federation):
    ends = [
        without_deviation(fitted(federation, FedSR(w, num_features=D)))
        for w in ("equal", "examples")
    ]
    assert distance(*ends) > 1e-3
    usual = without_deviation(fitted(federation, FedSR(num_features=D)))
    assert distance(usual, ends[0]) == 0, "equal by default, as in the official code"


def test_near_the_limit_the_result_is_near(federation):
    apart, _ = limit_and_plain(federation, -12.0)
    assert 1e-7 < apart < 1e-3
    for weights in ({"l2r_weight": 1e-5}, {"cmi_weight": 1e-7}):
        apart, _ = limit_and_plain(federation, -200.0, **weights)
        assert 1e-8 < apart < 1e-3


@pytest.mark.parametrize("away", [{"l2r_weight": 0.3}, {"cmi_weight": 0.01}])
def test_away_from_the_limit_the_result_differs(federation, away):
    assert limit_and_plain(federation, -200.0, **away)[0] > 1e-3
    assert limit_and_plain(federation, 0.0)[0] > 1e-2, "noise alone"


# ---- the divergence -----------------------------------------------------------------
@pytest.mark.parametrize("stretch", [0.25, 1.0, 2.0])
def test_the_divergence_is_zero_exactly_where_posterior_and_reference_agree(stretch):
    head, (_, _, y) = a_head(stretch=stretch), posterior()
    tau = F.softplus(head.reference_scale)[y].detach()
    mu, sigma = head.reference_mean[y].detach() / stretch, tau / stretch
    assert head.cmi(mu, sigma, y).item() == 0
    for off in (1e-3, -1e-3):
        assert head.cmi(mu + off, sigma, y).item() > 1e-8
        assert head.cmi(mu, sigma * (1 + off), y).item() > 1e-8
        assert head.cmi(mu, sigma, (y + 1) % M).item() > 1e-3
        other = a_head(stretch=stretch * (1 + off))
        assert other.cmi(mu, sigma, y).item() > 1e-8


@pytest.mark.parametrize("stretch", [0.01, 0.5, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_divergence_is_that_of_torch(stretch, seed):
    head, (mu, sigma, y) = a_head(seed, stretch), posterior(seed=seed)
    reference = Normal(head.reference_mean[y], F.softplus(head.reference_scale)[y])
    expected = kl_divergence(Normal(stretch * mu, stretch * sigma), reference)
    found = head.cmi(mu, sigma, y)
    # summed over features, mean over the batch
    torch.testing.assert_close(found, expected.sum(1).mean(), rtol=1e-10, atol=1e-10)
    assert found > 0


def test_the_divergence_in_closed_form_is_that_of_the_reference_file():
    pure, head = case("fedsr", "pure"), GaussianHead(6, 4, 5).double()
    head.reference_mean.data = pure["r_mu"]
    head.reference_scale.data = pure["r_sigma_raw"]
    found = head.cmi(pure["mu"], pure["sigma"], pure["y"]).item()
    assert found == pytest.approx(pure["CMI"].item(), rel=1e-10)
    for i, one in enumerate(pure["CMI_per_sample"]):
        row = slice(i, i + 1)
        found = head.cmi(pure["mu"][row], pure["sigma"][row], pure["y"][row])
        assert found.item() == pytest.approx(one.item(), rel=1e-10)


@pytest.mark.parametrize("stretch", [1.0, 0.0, -1.0])
def test_underflow_of_the_deviation_leaves_loss_and_gradients_finite(stretch):
    model = FedSR(num_features=D).adapt(Flat((1, 8, 8), M))
    with torch.no_grad():
        model.head.split.weight.zero_()
        model.head.split.bias.zero_()
        model.head.split.bias[D:] = -200.0  # softplus gives 0, and z is 0
        model.head.stretch.fill_(stretch)
    x, y = torch.randn(3, 1, 8, 8), torch.tensor([0, 2, 2])
    method = FedSR(num_features=D, cmi_weight=1.0, l2r_weight=1.0)
    loss = method.loss(model, Batch(x, y, torch.arange(3), 0), a_visit())
    loss.backward()
    assert loss.isfinite() and loss > 10, "the divergence is large there"
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


# ---- the authors' numbers -----------------------------------------------------------
NAMES = {
    "head.split.weight": "net_fc_weight",
    "head.split.bias": "net_fc_bias",
    "head.classifier.weight": "cls_weight",
    "head.classifier.bias": "cls_bias",
    "head.reference_mean": "r_mu",
    "head.reference_scale": "r_sigma_raw",
    "head.stretch": "C",
}


class Bare(nn.Module):
    """Features are the input: the reference has one linear layer as network."""

    def __init__(self, width: int, num_classes: int):
        super().__init__()
        self.head = nn.Linear(width, num_classes)

    def encode(self, x):
        return x


def given_noise(patch, eps: torch.Tensor) -> None:
    """Let the head find ``eps`` where it draws."""

    def randn(shape, generator):
        assert torch.Size(shape) == eps.shape
        return eps

    patch.setattr(torch, "randn", randn)


def one_official_step(monkeypatch, name: str):
    """The package's step on a case of the reference: model and what it logged."""
    given = case("fedsr", name)
    method = FedSR(
        l2r_weight=given["coeff_L2R"].item(),
        cmi_weight=given["coeff_CMI"].item(),
        num_features=4,
    )
    model = method.adapt(Bare(6, 3))
    model.load_state_dict({n: given[f"before__{o}"] for n, o in NAMES.items()})
    assert given["wd_net_cls"] == given["wd_r_and_C"]
    settings = [given[what].item() for what in ("lr", "momentum", "wd_net_cls")]
    lr, momentum, decay = settings
    training = LocalTraining(lr=lr, momentum=momentum, weight_decay=decay)
    context = a_visit(training=training)
    optimiser = method.optimiser(list(model.named_parameters()), context.training)
    batch = Batch(given["x"], given["y"], torch.arange(5), 0)
    with monkeypatch.context() as patch:
        given_noise(patch, given["eps"][None])
        take_step(method, model, optimiser, batch, context, a_stream())
    return given, method, model, context.logged_means()


CASES = ("init", "trained_r", "cmi_only", "l2r_only")


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_and_one_step_are_those_of_the_official_code(
    monkeypatch, name
):
    given, method, model, logged = one_official_step(monkeypatch, name)
    assert logged["task_loss"] == pytest.approx(given["ce"].item(), rel=1e-5)
    terms = (("l2r", "L2R", method.l2r_weight), ("cmi", "CMI", method.cmi_weight))
    for ours, theirs, weight in terms:
        assert (ours in logged) == (weight > 0)
        part = weight * given[theirs].item()
        assert logged.get(ours, 0.0) == pytest.approx(part, rel=1e-5)
    after = model.state_dict()
    for ours, theirs in NAMES.items():
        gradient = model.get_parameter(ours).grad
        expected = given[f"grad__{theirs}"]
        found = torch.zeros_like(expected) if gradient is None else gradient
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)
        expected = given[f"after_one_sgd_step__{theirs}"]
        np.testing.assert_allclose(after[ours], expected, rtol=1e-6, atol=1e-6)
    moved = [o for o in NAMES.values() if (given[f"grad__{o}"] != 0).any()]
    assert len(moved) == (4 if name == "l2r_only" else 7)


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_those_of_the_official_code(monkeypatch, name):
    given, method, model, _ = one_official_step(monkeypatch, name)
    assert method.num_samples == len(given["eval_eps"]) == 20
    with monkeypatch.context() as patch, layer_noise(torch.Generator()):
        given_noise(patch, given["eval_eps"])
        found = method.predict(model, given["x"]).detach()
    np.testing.assert_allclose(found, given["eval_log_mean_softmax"], **FLOAT32)


def test_the_norm_alone_is_that_of_the_official_deterministic_variant():
    given = {n: torch.from_numpy(v) for n, v in vectors("fedl2r").items()}
    weight = given["coeff_L2R"].item()
    method = FedSR(l2r_weight=weight, cmi_weight=0.0, num_features=4)
    model = method.adapt(Bare(6, 3))
    with torch.no_grad():
        model.head.split.weight.zero_()
        model.head.split.bias.fill_(-200.0)
        for ours, theirs in list(NAMES.items())[:4]:
            model.get_parameter(ours)[:4] = given[f"before__{theirs}"]
    training = LocalTraining(
        given["lr"].item(),
        momentum=given["momentum"].item(),
        weight_decay=given["wd"].item(),
    )
    context = a_visit(training=training)
    optimiser = method.optimiser(list(model.named_parameters()), training)
    batch = Batch(given["x"], given["y"], torch.arange(5), 0)
    take_step(method, model, optimiser, batch, context, a_stream())
    logged = context.logged_means()
    assert logged["task_loss"] == pytest.approx(given["ce"].item(), rel=1e-5)
    assert logged["l2r"] == pytest.approx(weight * given["L2R"].item(), rel=1e-5)
    for ours, theirs in list(NAMES.items())[:4]:
        after = given[f"after_one_sgd_step__{theirs}"]
        found = model.state_dict()[ours][:4]
        np.testing.assert_allclose(found, after, rtol=1e-6, atol=1e-6)


def test_the_power_of_two_squares_each_norm(monkeypatch):
    _, _, _, logged = one_official_step(monkeypatch, "l2r_only")
    given = case("fedsr", "l2r_only")
    fc, bias = given["before__net_fc_weight"], given["before__net_fc_bias"]
    mu, raw = (given["x"] @ fc.T + bias).chunk(2, dim=1)
    z = mu + given["eps"] * raw.exp().log1p()
    norms = z.square().sum(1).sqrt()
    assert logged["l2r"] == pytest.approx(0.5 * norms.mean().item(), rel=1e-5)

    assert replace(FedSR(), power=2) != FedSR()
    squared = FedSR(l2r_weight=0.5, cmi_weight=0.0, power=2, num_features=4)
    model, context = squared.adapt(Bare(6, 3)), a_visit()
    model.load_state_dict({n: given[f"before__{o}"] for n, o in NAMES.items()})
    with monkeypatch.context() as patch:
        given_noise(patch, given["eps"][None])
        squared.loss(model, Batch(given["x"], given["y"], torch.arange(5), 0), context)
    expected = 0.5 * norms.square().mean().item()
    assert context.logged_means()["l2r"] == pytest.approx(expected, rel=1e-5)


# ---- prediction ---------------------------------------------------------------------
@pytest.mark.parametrize("num_samples", [0, 1, 20])
@pytest.mark.parametrize("form", ["official", "report"])
def test_a_prediction_exponentiates_to_a_distribution(num_samples, form):
    method = FedSR(num_samples=num_samples, form=form)
    model = method.adapt(Flat((1, 8, 8), M)).eval()
    x = 3 * torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with layer_noise(torch.Generator()):
        chances = method.predict(model, x).exp()
    assert chances.shape == (6, M)
    assert (chances > 0).all() and len(chances.unique(dim=0)) == 6
    torch.testing.assert_close(chances.sum(1), torch.ones(6))


def test_probabilities_are_averaged_not_their_logarithms():
    model = FedSR(num_features=D).adapt(Flat((1, 8, 8), M)).eval()
    x = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with layer_noise(torch.Generator().manual_seed(3)):
        found = FedSR(num_features=D, num_samples=7).predict(model, x)
    stream = torch.Generator().manual_seed(3)
    raw = model.head.split(model.encode(x))
    mu, sigma = raw[:, :D], F.softplus(raw[:, D:])
    mean = torch.zeros(6, M)
    for eps in torch.randn((7, 6, D), generator=stream):
        mean += model.head.classifier(mu + eps * sigma).softmax(1) / 7
    torch.testing.assert_close(found, mean.log(), rtol=1e-5, atol=1e-6)


def test_without_samples_the_mean_predicts(federation):
    still, noisy = (
        fitted(federation, FedSR(num_features=D, num_samples=num)) for num in (0, 20)
    )
    assert distance(still.server.weights, noisy.server.weights) == 0, "same training"
    x = federation.test.whole().x
    model = still.model
    direct = model.head.classifier(model.head.split(model.encode(x))[:, :D])
    found = FedSR(num_samples=0).predict(model, x)  # draws nothing, needs no stream
    torch.testing.assert_close(found, direct.log_softmax(1))
    losses = [run.scores(federation.test).loss for run in (still, noisy)]
    assert np.abs(losses[0] - losses[1]).max() > 1e-4
    np.testing.assert_array_equal(losses[1], noisy.scores(federation.test).loss)


# ---- what travels, and what stays ---------------------------------------------------
def test_no_reference_and_no_scale_travels_in_any_part(federation, monkeypatch):
    crossed: list[dict] = []

    def watch(name, tensors_of):
        usual = getattr(LocalEngine, name)

        def watched(self, *args):
            answers = usual(self, *args)
            crossed.extend(tensors_of(args, answers))
            return answers

        monkeypatch.setattr(LocalEngine, name, watched)

    def of_training(args, answers):
        told = [part for b in args[0].values() for part in (b.weights, b.shared)]
        said = [part for m, _ in answers.values() for part in (m.weights, m.upload)]
        return told + said

    watch("train", of_training)
    watch("client_setup", lambda args, answers: [said for said, _ in answers.values()])
    run = fitted(federation)
    assert len(crossed) == 2 * 5 * 4
    for tensors in crossed:
        assert not OWN & tensors.keys()
        shaped = [n for n, v in tensors.items() if v.shape == (M, D)]
        assert shaped in ([], ["head.classifier.weight"])
        assert all(v.ndim for v in tensors.values()), "no scalar such as c"
    assert run.server.memory == {} and run.server.shared == {}
    assert set(run.wire.part) == {"weights", "num_examples"}
    sizes = (D * M + M) + 2 * D * (HIDDEN + 1) + HIDDEN * 65
    downs = run.wire.query("direction == 'down'").bytes
    assert set(downs) == {4 * sizes}, "the head is 2 D wide and nothing else is added"


@dataclass(frozen=True)
class Looks(FedSR):
    """Keeps the references as they were when the visit began."""

    def before_training(self, model, context):
        own = {n: model.get_parameter(n).detach().clone() for n in OWN}
        context.memory.update(own)
        return {}


def test_references_and_scale_change_and_persist_between_visits(federation):
    def select(roster, rng):
        return [0, 3] if roster.times_chosen.sum() == 0 else [3, 4]

    run = a_run(federation, Looks(num_features=D, cmi_weight=0.1), select=select).step()
    first = {i: run.private[i].weights for i in (0, 3)}
    assert first[0].keys() == OWN
    for name in OWN:
        assert not torch.equal(first[3][name], run.private[3].memory[name]), name
        assert not torch.equal(first[3][name], first[0][name]), name
    assert (run.private[3].memory["head.reference_mean"] == 0).all()
    assert (run.private[3].memory["head.reference_scale"] == 1).all()
    run.step()
    for name in OWN:
        assert torch.equal(run.private[3].memory[name], first[3][name]), "found again"
        assert not torch.equal(run.private[3].weights[name], first[3][name])
        assert torch.equal(run.private[0].weights[name], first[0][name])
        newcomer = run.private[4].memory[name]
        assert torch.equal(newcomer, torch.full_like(newcomer, "mean" not in name))


def test_a_class_that_a_client_lacks_keeps_its_reference(federation):
    counts = federation.class_counts()
    assert counts[0, 0] == 0 and (counts[4] > 0).all()
    run = a_run(federation).step()
    moved = [
        run.private[i].weights["head.reference_mean"].abs().sum(1) > 0 for i in (0, 4)
    ]
    assert moved[0].tolist() == (counts[0] > 0).tolist() and moved[1].all()


def test_with_a_fixed_scale_c_stays_1_and_is_nobodys_state(federation):
    run = fitted(federation, FedSR(num_features=D, cmi_weight=0.1, learn_scale=False))
    for i in range(5):
        assert run.private[i].weights.keys() == OWN - {"head.stretch"}
    assert run.model.head.stretch == 1 and "head.stretch" not in run.server.weights
    learned = fitted(federation, FedSR(num_features=D, cmi_weight=0.1))
    assert distance(run.server.weights, learned.server.weights) > 1e-5


def test_the_form_of_the_report_has_no_private_state(federation):
    run = fitted(federation, FedSR(form="report"))
    assert run.private == {} and not OWN & run.server.weights.keys()
    assert not [n for n in run.server.weights if n.startswith("head.split")]
    head = run.model.head
    assert (head.reference_mean == 0).all() and (head.reference_scale == 1).all()
    assert head.reference_mean.shape == (M, HIDDEN // 2)
    assert head.classifier.weight.shape == (M, HIDDEN), "plain logits"


def test_the_form_of_the_report_penalises_halves_of_the_features():
    method = FedSR(form="report", l2r_weight=0.5, cmi_weight=0.25)
    model, context = method.adapt(Flat((1, 8, 8), M)), a_visit()
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 1, 2, 3, 3])
    loss = method.loss(model, Batch(x, y, torch.arange(6), 0), context)
    features = model.encode(x)
    half = HIDDEN // 2
    mu, sigma = features[:, :half], F.softplus(features[:, half:])
    eps = torch.randn((1, 6, half), generator=torch.Generator().manual_seed(0))[0]
    norm = (mu + eps * sigma).norm(dim=1).mean()
    prior = Normal(0.0, F.softplus(torch.tensor(1.0)))
    divergence = kl_divergence(Normal(mu, sigma), prior).sum(1).mean()
    plain = F.cross_entropy(model(x), y)
    torch.testing.assert_close(loss, plain + 0.5 * norm + 0.25 * divergence)
    assert context.logged_means()["task_loss"] == pytest.approx(plain.item())


def test_features_without_two_halves_are_refused_when_the_run_is_made(federation):
    with pytest.raises(ValueError, match=r"even number of features.*found 7"):
        a_run(federation, FedSR(form="report"), partial(Flat, hidden=7))
    a_run(federation, FedSR(), partial(Flat, hidden=7))


def test_a_head_of_several_layers_is_refused_by_name(federation):
    class Deep(Flat):
        def __init__(self, *shape):
            super().__init__(*shape)
            self.head = nn.Sequential(self.head, nn.Identity())

    with pytest.raises(ValueError, match=r"linear head.*found Sequential"):
        a_run(federation, FedSR(), Deep)


def test_validation_measures_the_servers_model_not_a_personal_one(federation):
    run = fitted(federation, FedSR(num_features=D, num_samples=0))
    assert len(run.private) == 5, "there is private state"
    val = run.history.table().query("split == 'val'")
    assert set(val.metric) == {"accuracy", "loss"} and set(val.client) == set(range(5))
    newest = val[(val["round"] == 2) & (val.metric == "loss")].set_index("client").value
    for i in range(5):
        x, y, *_ = federation.client(i).val.whole()
        direct = F.cross_entropy(run.model(x), y).item()
        assert newest[i] == pytest.approx(direct, rel=1e-4)


# ---- as for every method ------------------------------------------------------------
def test_it_fits_the_packages_own_network(federation):
    run = fitted(federation, FedSR(), 1, model=small_cnn)
    assert run.model.head.reference_mean.shape == (M, 64), "half of 128 by default"
    assert len(run.messages) == 5


def test_a_number_of_features_is_refused_where_the_form_has_its_own():
    with pytest.raises(ValueError, match="num_features must be"):
        FedSR(num_features=4, form="report")


# ---- masks: a Gaussian for every pixel ----------------------------------------------
def test_a_map_is_its_pixels_one_by_one():
    head, stream = a_head(), torch.Generator().manual_seed(2)
    maps = torch.randn(2, 6, 3, 4, generator=stream, dtype=torch.float64)
    y = torch.randint(0, M, (2, 3, 4), generator=stream)
    rows = maps.movedim(1, -1).flatten(0, -2)
    assert torch.equal(head(maps).movedim(1, -1).flatten(0, -2), head(rows))
    mu, sigma = head.gaussian(maps)
    assert mu.shape == (2, 3, 4, D)
    whole = head.cmi(mu, sigma, y)
    pixels = head.cmi(*head.gaussian(rows), y.flatten())
    torch.testing.assert_close(whole, pixels)


@pytest.mark.parametrize("form", ["official", "report"])
def test_a_network_for_masks_trains_and_forgets_no_part_of_the_loss(form):
    masked = tiny_data(num=24, owners=2, size=16)
    labels = (masked.images[:, 0] > 127).astype(np.uint8)
    names = {"class_names": ("ground", "organ"), "task": "segmentation"}
    masked = replace(masked, labels=labels, **names)
    federation = Federation.build(masked, by_owner(masked))
    run = a_run(federation, FedSR(form=form), small_unet, replace(TRAINING, epochs=1))
    before = dict(run.server.weights)
    run.step()
    logged = run.history.table().query("split == 'train'").set_index("metric")["value"]
    assert all(np.isfinite(logged[n]).all() for n in ("task_loss", "l2r", "cmi"))
    moved = {n for n, w in run.server.weights.items() if not w.equal(before[n])}
    assert {"head.classifier.weight", "blocks.0.0.weight"} <= moved
    part = run.federation.test.whole()
    with torch.inference_mode(), layer_noise(a_stream()):
        found = run.method.predict(run.model, part.x)
    assert found.shape == (len(part.y), 2, 16, 16)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(part.y), 16, 16))
