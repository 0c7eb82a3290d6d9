"""Settings are checked, optimisers as asked for, and frozen state does not travel."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlab_support.core.messages import Broadcast
from fedlab_support.core.metrics import task
from fedlab_support.engines.process import intra_op_threads
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_owner
from fedlab_support.methods import FedAvg
from fedlab_support.models import CNN
from fedlab_support.training.context import ClientContext
from fedlab_support.training.learner import Learner, frozen_modules, trained_names
from fedlab_support.training.loop import refuse_divergence, train_locally
from fedlab_support.training.optimisers import FusedAdam, FusedSGD
from fedlab_support.training.settings import LocalTraining, build_optimiser
from tests.runs import Steady, a_visit, unequal
from tests.tiny import a_stream, tiny_data

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("loss", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_ends_a_visit(loss):
    refuse_divergence(3e38)
    with pytest.raises(FloatingPointError, match=f"became {loss}; lower the learning"):
        refuse_divergence(loss)


# ---- settings -----------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("lr", [NAN, INF, -0.1]),
        ("epochs", [0, -1, 2.5, NAN, "3"]),
        ("batch_size", [0, -4, 0.5, None]),
        ("momentum", [1, 1.5, -0.1, NAN]),
        ("weight_decay", [-1e-5, NAN, INF]),
        ("linear_weight_decay", [-1e-5, NAN, INF]),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_name(name, values):
    for value in values:
        with pytest.raises(ValueError, match=rf"^{name} must .*, found .*{value}"):
            LocalTraining(**{name: value})


def test_an_unknown_optimiser_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="or 'adamw', found 'adagrad'; a method"):
        LocalTraining(optimiser="adagrad")


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_momentum_is_refused_where_nothing_would_use_it(optimiser):
    with pytest.raises(ValueError, match=f"momentum=0.9 with '{optimiser}'"):
        LocalTraining(optimiser=optimiser, momentum=0.9)


def test_the_edges_of_the_ranges_are_allowed():
    LocalTraining(lr=0, epochs=1, batch_size=1, momentum=0, weight_decay=0)
    LocalTraining(lr=1e3, momentum=0.999, linear_weight_decay=0.0)


def test_numpy_numbers_are_as_good_as_python_ones():
    counts = {"epochs": np.int64(2), "batch_size": np.int32(4)}
    settings = LocalTraining(lr=np.float64(0.1), **counts)
    assert settings == LocalTraining(lr=0.1, epochs=2, batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of an overflow, in float32
        LocalTraining(lr=np.float32(0.1))


# ---- optimisers ---------------------------------------------------------------------
def network() -> CNN:
    return CNN((1, 8, 8), 3, widths=(4, 8), hidden=6, norm="batch")


def decays(training: LocalTraining) -> dict[str, float]:
    """The weight decay that each named parameter of the network gets."""
    model = network()
    optimiser = build_optimiser(list(model.named_parameters()), training)
    names = {id(value): name for name, value in model.named_parameters()}
    found = [
        (names[id(parameter)], group["weight_decay"])
        for group in optimiser.param_groups
        for parameter in group["params"]
    ]
    assert sorted(name for name, _ in found) == sorted(names.values())
    return dict(found)


def test_decay_of_linear_layers_acts_on_their_matrices_only():
    found = decays(LocalTraining(weight_decay=1e-5, linear_weight_decay=1e-3))
    assert found.pop("neck.1.weight") == found.pop("head.weight") == 1e-3
    assert set(found.values()) == {1e-5}
    assert {"head.bias", "stages.0.0.weight", "stages.0.1.weight"} <= set(found)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_one_decay_holds_for_all_unless_said_otherwise(optimiser):
    same = LocalTraining(weight_decay=0.1, optimiser=optimiser)
    assert set(decays(same).values()) == {0.1}
    none = LocalTraining(weight_decay=0.1, linear_weight_decay=0.0, optimiser=optimiser)
    assert decays(none)["head.weight"] == 0.0


def test_parameters_of_another_type_have_a_group_of_their_own():
    model = network()
    model.head.double()
    optimiser = build_optimiser(model.named_parameters(), LocalTraining())
    kinds = [{p.dtype for p in group["params"]} for group in optimiser.param_groups]
    assert kinds == [{torch.float32}, {torch.float64}]


def test_the_optimiser_has_the_asked_kind_rate_and_momentum():
    named = list(network().named_parameters())
    sgd = build_optimiser(named, LocalTraining(lr=0.3, momentum=0.7))
    assert isinstance(sgd, FusedSGD)
    assert {(g["lr"], g["momentum"]) for g in sgd.param_groups} == {(0.3, 0.7)}
    adam = build_optimiser(iter(named), LocalTraining(lr=0.3, optimiser="adam"))
    assert isinstance(adam, FusedAdam)
    assert {g["lr"] for g in adam.param_groups} == {0.3}
    assert not sgd.state


# ---- what is frozen -----------------------------------------------------------------
class PartlyFrozen(nn.Module):
    """A frozen backbone with two BatchNorms, a trained block, and odd single layers."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.Dropout(0.5)),
        )
        self.backbone.requires_grad_(False)
        self.block = nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4, affine=False),
            nn.BatchNorm2d(4),
            nn.BatchNorm2d(4),
        )
        self.block[3].requires_grad_(False)
        self.loose = nn.BatchNorm2d(4, affine=False)
        self.head = nn.Linear(4 * 8 * 8, 4)
        self.head.weight.requires_grad_(False)

    def forward(self, x):
        return self.head(self.loose(self.block(self.backbone(x))).flatten(1))


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def test_what_is_trained_travels_and_what_is_frozen_does_not():
    # A BatchNorm without parameters belongs to the module that holds it.
    travels = {"block.0.weight", "block.0.bias", "block.2.weight", "block.2.bias"}
    travels |= {
        f"{norm}.{name}" for norm in ("block.1", "block.2") for name in STATISTICS
    }
    travels |= {f"loose.{name}" for name in STATISTICS} | {"head.bias"}
    names = trained_names(PartlyFrozen())
    assert set(names) == travels
    assert len(names) == len(travels)


def test_frozen_modules_are_those_whose_parameters_are_all_frozen():
    model = PartlyFrozen()
    frozen = frozen_modules(model)
    assert set(frozen) == {*model.backbone.modules(), model.block[3]}
    assert len(frozen) == len(set(frozen))


def test_a_fully_frozen_model_and_one_without_parameters_are_told_apart():
    frozen = network().requires_grad_(False)
    assert set(frozen_modules(frozen)) == set(frozen.modules())
    assert trained_names(frozen) == []
    bare = nn.Sequential(nn.BatchNorm1d(3, affine=False), nn.ReLU())
    assert frozen_modules(bare) == []
    assert trained_names(bare) == [f"0.{name}" for name in STATISTICS]


def test_all_of_an_ordinary_model_travels_in_the_order_of_its_state():
    model = network()
    assert frozen_modules(model) == []
    assert trained_names(model) == list(model.state_dict())


def test_tied_weights_travel_under_both_names_and_scratch_buffers_not_at_all():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    model["a"].register_buffer("scratch", torch.ones(2), persistent=False)
    assert set(trained_names(model)) == {"a.weight", "a.bias", "b.weight", "b.bias"}


def test_training_moves_what_travels_and_leaves_the_rest_bit_for_bit():
    data = tiny_data()
    training = LocalTraining(lr=0.1, batch_size=4)
    model = PartlyFrozen()
    before = Learner(model).copies(model.state_dict())
    context = ClientContext(
        client=Federation.build(data, by_owner(data)).client(3),
        received=Broadcast(1, {}),
        training=training,
        task=task("classification"),
        stream=a_stream(),
    )
    train_locally(FedAvg(), Learner(model), context, seed=0)
    moved = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    assert moved == set(trained_names(model))
    still = {m for m in model.modules() if not m.training}
    assert still == set(frozen_modules(model))


@pytest.mark.parametrize(
    ("norms", "last"), [("trained", []), ("frozen", [1]), ("no", [1])]
)
def test_a_last_batch_of_one_is_left_out_where_batch_norm_trains(norms, last):
    sizes = []

    class Listens(FedAvg):
        def loss(self, model, batch, context):
            sizes.append(len(batch.x))
            return super().loss(model, batch, context)

    norm = nn.Identity() if norms == "no" else nn.BatchNorm1d(64)
    model = nn.Sequential(nn.Flatten(), norm.requires_grad_(norms == "trained"))
    model.append(nn.Linear(64, 4))
    data = tiny_data(num=9, test_share=0.0)
    federation = Federation.build(data, [np.arange(9)])
    context = replace(a_visit(federation), training=LocalTraining(batch_size=4))
    train_locally(Listens(), Learner(model), context, seed=0)
    assert sizes == [4, 4, *last]


def test_the_mean_loss_of_a_client_is_that_of_all_its_samples_at_once():
    federation = unequal(val=0.3)
    context, model = a_visit(federation, client=3), Steady((2, 8, 8), 4).eval()
    for samples in (context.client.train, context.client.val):
        whole = samples.whole()
        expected = F.cross_entropy(model(whole.x), whole.y).item()
        found = context.mean_loss(model, samples)
        assert found.item() == pytest.approx(expected, rel=1e-5)
        assert (found.dtype, found.shape) == (torch.float64, ())
        assert not found.requires_grad
    nothing = a_visit(unequal(), client=1)
    with pytest.raises(ValueError, match=r"client 1.*none.*val=0\.1"):
        nothing.mean_loss(model, nothing.client.val)


class Stubborn(nn.Linear):
    """A layer that decides itself what training mode is."""

    def train(self, mode: bool = True):
        return super().train(False)


def test_a_worker_switches_modes_as_the_model_itself_does():
    model = PartlyFrozen()
    model.stubborn, model.away = Stubborn(2, 2), nn.Dropout()
    learner = Learner(model)
    still = {*frozen_modules(model), model.stubborn}
    for hook in (lambda: None, model.eval, model.train, model.away.train):
        hook()
        assert learner.train() is model
        assert {m for m in model.modules() if not m.training} == still
        hook()
        assert learner.eval() is model
        assert not any(module.training for module in model.modules())


# ---- loading and copying ------------------------------------------------------------
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_copy_brings_another_model_to_the_same_state(layout):
    model = network().to(memory_format=layout)
    model(torch.randn(4, 1, 8, 8))  # moves the running statistics and counters
    names = trained_names(model)
    copied = Learner(model).copies(names)
    other = network().to(memory_format=layout)
    Learner(other).load(copied)
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
        assert copied[name].is_contiguous()
        assert copied[name].dtype == value.dtype
    assert other.state_dict()["stages.0.1.num_batches_tracked"] == 1
    assert not other.state_dict()["stages.0.1.running_mean"].eq(0).any()


def test_a_copy_does_not_follow_the_model_and_loading_does_not_tie_it():
    model = network()
    copied = Learner(model).copies(["head.bias"])
    told = {"head.bias": torch.arange(3.0)}
    Learner(model).load(told)
    assert not torch.equal(copied["head.bias"], model.head.bias)
    told["head.bias"].zero_()
    assert model.head.bias.tolist() == [0, 1, 2]
    assert model.head.bias.requires_grad


def test_loading_keeps_the_tensors_that_an_optimiser_holds():
    model = network()
    before = {name: value.data_ptr() for name, value in model.state_dict().items()}
    Learner(model).load(Learner(network()).copies(before))
    assert {n: v.data_ptr() for n, v in model.state_dict().items()} == before


def test_a_parameter_that_a_hook_replaces_is_the_one_that_is_trained():
    model = network()
    learner = Learner(model)
    model.head.bias = nn.Parameter(torch.zeros(3))
    assert dict(learner.trained)["head.bias"] is model.head.bias


def test_later_trees_win():
    model = network()
    ones, twos = ({"head.bias": torch.full((3,), value)} for value in (1.0, 2.0))
    Learner(model).load(ones, {}, twos)
    assert model.head.bias.tolist() == [2, 2, 2]


def test_adamw_decays_weights_apart_from_the_gradient():
    for optimiser, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        training = LocalTraining(lr=0.1, optimiser=optimiser, weight_decay=0.01)
        w = nn.Parameter(torch.tensor([3.0, -2.0]))
        v = nn.Parameter(w.detach().clone())
        ours, theirs = (
            build_optimiser([("w", w)], training),
            kind([v], 0.1, weight_decay=0.01),
        )
        for g in ([1.0, 5.0], [0.0, 0.0], [-3.0, 0.5]):
            w.grad, v.grad = torch.tensor(g), torch.tensor(g)
            ours.step(), theirs.step()
        torch.testing.assert_close(w, v)
    # one step of AdamW: w (1 - lr d) - lr sign(g)
    w = nn.Parameter(torch.tensor([3.0]))
    w.grad = torch.tensor([0.5])
    build_optimiser([("w", w)], training).step()
    assert w.item() == pytest.approx(3 * (1 - 0.1 * 0.01) - 0.1, rel=1e-6)


def test_threads_of_an_operation_are_those_of_the_block_around():
    """Also behind an inner block, as behind each visit within a round."""
    before = torch.get_num_threads()
    with intra_op_threads(1):
        with intra_op_threads(2):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
