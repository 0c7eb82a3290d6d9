"""Mistakes in somebody's own code are raised, refused or warned of, never swallowed."""

import warnings
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import fedlab_support as fl
from fedlab_support import FedAvg, LocalTraining, Run
from fedlab_support.methods import catalogue
from fedlab_support.run.building import check_method
from tests.runs import a_run, fitted, unequal
from tests.tiny import tiny_data


@dataclass(frozen=True)
class Broken(FedAvg):
    """FedAvg whose loss raises for some of the clients."""

    kind: type = NameError
    text: str = "name 'lam' is not defined"
    clients: tuple = (0, 1, 2, 3, 4)

    def loss(self, model, batch, context):
        """The loss, or an error; "{}" in its text is the client's number."""
        number = context.client.id
        if number in self.clients:
            raise self.kind(self.text.format(number))
        return super().loss(model, batch, context)


def test_an_error_of_every_client_is_raised_with_the_traceback_of_the_first():
    run = a_run(Broken(), unequal(), workers=2)
    with pytest.raises(NameError, match="'lam'") as found:
        run.fit(3, progress=False)
    assert found.traceback[-1].name == "loss"
    assert found.traceback[-1].frame.f_locals["number"] == 0
    assert run.server.round == 0


def test_mistakes_in_code_are_raised_whatever_they_name():
    with pytest.raises(KeyError, match="label 0"):
        a_run(Broken(kind=KeyError, text="label {}"), unequal()).step()


@pytest.mark.parametrize(
    ("method", "select"),
    [
        (Broken(clients=(0, 1, 2, 3)), None),
        (Broken(kind=OSError, text="client {} has a bad file"), None),
        (Broken(kind=FloatingPointError, text="loss became nan"), None),
        (Broken(kind=TimeoutError, text="too late"), None),
        (Broken(), fl.uniform(1)),
    ],
)
def test_other_failures_leave_clients_out_unless_the_first_is_to_be_raised(
    method, select
):
    run = a_run(method, unequal(), select=select)
    with pytest.warns(UserWarning, match="left out of the round"):
        run.step()
    assert run.server.round == 1
    run = a_run(method, unequal(), select=select, on_failure="raise")
    with pytest.raises(method.kind):
        run.step()
    assert run.server.round == 0


def test_a_mistake_in_the_setup_is_raised_too():
    class Misset(FedAvg):
        """FedAvg whose setup fails everywhere."""

        def client_setup(self, model, context):
            """A typing error."""
            return context.clients

    with pytest.raises(AttributeError, match="clients"):
        a_run(Misset(), unequal()).step()


class Number(FedAvg):
    """FedAvg whose loss is a number."""

    def loss(self, model, batch, context):
        """Without a gradient."""
        return super().loss(model, batch, context).item()


class EachOfThem(FedAvg):
    """FedAvg that forgets to average."""

    def loss(self, model, batch, context):
        """A loss per sample."""
        return context.task.losses(model(batch.x), batch.y)


class Forgetful(FedAvg):
    """FedAvg that forgets to return the server."""

    def aggregate(self, server, messages):
        """Nothing."""


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Number(), "Number.loss must return a scalar tensor, found float"),
        (EachOfThem(), r"return a scalar tensor, found Tensor of shape \(\d+,\)"),
        (Forgetful(), "Forgetful.aggregate must return a Server, .* found NoneType"),
    ],
)
def test_a_hook_that_returns_something_else_is_named(method, words):
    with pytest.raises(TypeError, match=words):
        a_run(method, unequal()).step()


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("loss", torch.ones(()), ValueError, 'the loop logs "loss" itself'),
        ("part", torch.ones(2), TypeError, r"'part' must be .* scalar .* shape \(2,\)"),
    ],
)
def test_a_logged_value_is_a_scalar_under_a_name_of_its_own(name, value, error, words):
    def loss(self, model, batch, context):
        context.log(name, value)
        return FedAvg.loss(self, model, batch, context)

    with pytest.raises(error, match=words):
        a_run(with_hook("loss", loss), unequal()).step()


def with_hook(name, hook):
    """FedAvg with one hook of one's own, called Wrong."""
    return type("Wrong", (FedAvg,), {name: hook, "__module__": __name__})()


def remember_a_number(self, model, context):
    """Private memory that is no tensor."""
    context.memory["visits"] = 1
    return {}


@pytest.mark.parametrize(
    ("name", "hook", "words"),
    [
        ("before_training", lambda self, model, context: None, "found NoneType"),
        ("after_training", lambda self, model, context: {"g": 1.0}, "float as 'g'"),
        ("client_setup", lambda self, model, context: [1], "found list"),
        ("before_training", remember_a_number, "context.memory .* int as 'visits'"),
        ("server_setup", lambda self, uploads: {"c": [1]}, "memory .* list as 'c'"),
        (
            "aggregate",
            lambda self, server, messages: replace(server, shared={"c": 1.0}),
            "server's shared must hold named tensors, found float as 'c'",
        ),
    ],
)
def test_what_is_no_tensor_is_named(name, hook, words):
    with pytest.raises(TypeError, match=words) as found:
        a_run(with_hook(name, hook), unequal(), workers=1).step()
    is_returned = name in ("after_training", "client_setup")
    assert not is_returned or f"the result of Wrong.{name} must" in str(found.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: {n: v for n, v in w.items() if v.ndim > 1}, "is missing"),
        (lambda w: w | {"x": torch.ones(1)}, "'x' is unknown"),
        (lambda w: {n: v[None] for n, v in w.items()}, "the server's weights: .*shape"),
        (lambda w: {n: v.double() for n, v in w.items()}, "found torch.float64"),
    ],
)
def test_aggregation_keeps_the_weights_names_shapes_and_types(change, words):
    def aggregate(self, server, messages):
        after = FedAvg.aggregate(self, server, messages)
        return replace(after, weights=change(after.weights))

    run = a_run(with_hook("aggregate", aggregate), unequal())
    with pytest.raises(ValueError, match=words):
        run.step()
    assert run.server.round == 0


def test_a_setting_that_is_no_field_is_refused():
    class Hidden(FedAvg):
        """FedAvg with a setting that no description holds."""

        def __init__(self, mu):
            self.mu = mu

    words = r"found the attribute 'mu' of Hidden; .* __init__, mu: float = 0\.5"
    with pytest.raises(ValueError, match=words):
        a_run(Hidden(0.5), unequal())


def test_a_class_with_settings_that_is_no_dataclass_is_refused():
    class Plain(FedAvg):
        kind: ClassVar[str] = "plain"
        mu: float = 0.5

    words = r"Plain is no dataclass; write @dataclass.*so that 'mu' can be set"
    with pytest.raises(ValueError, match=words):
        a_run(Plain(), unequal())


class Doubled(fl.augment.Augmentation):
    """Images in double precision, as NumPy's noise makes them."""

    def apply(self, model, batch, context, rng):
        return batch._replace(x=batch.x + torch.from_numpy(rng.random(batch.x.shape)))


def test_an_augmentation_that_changes_the_type_of_images_is_named():
    training = LocalTraining(augment=Doubled())
    words = r"Doubled\.apply must keep .* torch\.float32 .*found torch\.float64"
    with pytest.raises(TypeError, match=words):
        fitted(FedAvg(), unequal(), 1, training=training)


@dataclass(frozen=True)
class BadCheck(FedAvg):
    """FedAvg whose checks of uploads raise for some of the clients."""

    check: str = "check_upload"
    kind: type = NameError
    clients: tuple = (0, 1, 2, 3, 4)

    def client_setup(self, model, context):
        """The client's number."""
        return {"me": torch.tensor([context.client.id])}

    after_training = client_setup

    def _check(self, name, tensors):
        if self.check == name and tensors["me"].item() in self.clients:
            raise self.kind("name 'lam' is not defined")

    def check_setup(self, tensors, model, most):
        """An error, on request."""
        self._check("check_setup", tensors)

    def check_upload(self, tensors, model):
        """An error, on request."""
        self._check("check_upload", tensors)


@pytest.mark.parametrize("check", ["check_setup", "check_upload"])
def test_a_mistake_in_a_check_is_raised_and_a_refusal_is_not(check):
    with pytest.raises(NameError, match="'lam'"):
        a_run(BadCheck(check=check), unequal()).step()
    some = BadCheck(check=check, clients=(1,))
    with pytest.warns(UserWarning, match="client 1 is left out"):
        a_run(some, unequal()).step()
    with pytest.raises(NameError, match="'lam'"):
        a_run(some, unequal(), on_failure="raise").step()


def test_an_upload_that_every_check_refuses_leaves_the_weights():
    run = a_run(BadCheck(kind=ValueError), unequal())
    with pytest.warns(UserWarning, match="left out of the round: "):
        run.step()
    assert run.server.round == 1 and not run.messages


def test_injected_faults_are_no_mistakes():
    faults = fl.Faults(drop=1.0)
    run = a_run(FedAvg(), unequal(), faults=faults, on_failure="raise")
    run.step()
    assert run.server.round == 1


# ---- networks -----------------------------------------------------------------------
class Plain(nn.Module):
    """A network in one piece."""

    def __init__(self, shape, num_classes: int):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        )
        self.last = nn.Linear(4, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.last(self.layers(x).flatten(1))


def refused(method, federation) -> str:
    """Why the method cannot train the network in one piece; "" if it can."""
    try:
        a_run(method, federation, Plain)
    except ValueError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("label", catalogue())
def test_a_network_in_one_piece_trains_or_is_refused_at_construction(label):
    method, federation = catalogue()[label](), unequal(channels=3, val=0.2)
    if reason := refused(method, federation):
        assert "Plain" in reason or "network" in reason
    else:
        a_run(method, federation, Plain, on_failure="raise").step()


@pytest.mark.parametrize("kind", [fl.FISC, fl.FPL, fl.FedSR])
def test_methods_on_features_refuse_a_network_without_encode(kind):
    with pytest.raises(ValueError, match="encode and head, and Plain has no encode"):
        Run(kind(), unequal(channels=3, val=0.2), Plain)


@pytest.mark.parametrize("method", [FedAvg(), fl.FedProx()], ids=str)
def test_running_statistics_alone_are_nothing_to_train(method):
    def network(shape, num_classes):
        norm = nn.BatchNorm2d(shape[0], affine=False)
        return nn.Sequential(norm, nn.AdaptiveAvgPool2d((1, num_classes)), nn.Flatten())

    with pytest.raises(ValueError, match="nothing to train"):
        Run(method, unequal(), network)


# ---- hooks --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("agregate", "aggregate"),
        ("optimizer", "optimiser"),
        ("before_train", "before_training"),
        ("aggregation_weight", "aggregation_weights"),
    ],
)
def test_a_misspelt_hook_is_warned_of(name, hook):
    kind = type("Mine", (FedAvg,), {name: lambda self: None})
    with pytest.warns(UserWarning, match=rf"Mine\.{name} is never .* '{hook}'") as all_:
        run = a_run(kind(), unequal())
    assert len(all_) == 1 and all_[0].filename.endswith("runs.py")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.step()


@pytest.mark.parametrize("wrapped", [staticmethod, classmethod])
def test_a_misspelt_hook_that_needs_no_instance_is_warned_of(wrapped):
    kind = type("Mine", (FedAvg,), {"agregate": wrapped(lambda *given: None)})
    with pytest.warns(UserWarning, match=r"Mine\.agregate is never .* 'aggregate'"):
        a_run(kind(), unequal())


@pytest.mark.parametrize(
    ("hook", "mine"),
    [
        ("loss", lambda self, model, batch: None),
        ("aggregate", lambda self, server, messages, more: None),
        ("predict", lambda x: None),
    ],
)
def test_a_hook_with_other_parameters_is_refused_before_training(hook, mine):
    with pytest.raises(ValueError, match=rf"Mine\.{hook} is called with \(self, "):
        a_run(type("Mine", (FedAvg,), {hook: mine})(), unequal())


def test_what_counts_is_the_hook_of_the_class_and_not_of_its_parent():
    class Short(WithHelper):
        def loss(self, model, batch):
            return batch

    with pytest.raises(ValueError, match=r"Short\.loss is called with \(self, model"):
        a_run(Short(), unequal())


def test_the_method_and_the_training_of_a_run_cannot_be_exchanged():
    run = a_run(FedAvg(), unequal())
    for name in ("method", "training"):
        with pytest.raises(AttributeError):
            setattr(run, name, getattr(run, name))


def test_a_public_method_that_nothing_calls_is_warned_of():
    kind = type("Mine", (FedAvg,), {"on_round_end": lambda self: None})
    with pytest.warns(UserWarning, match=r"Mine\.on_round_end is never called"):
        a_run(kind(), unequal())


class WithHelper(FedAvg):
    def scaled(self, value):
        return value

    def loss(self, model, batch, context):
        losses = [super().loss(model, batch, context)]
        return sum([self.scaled(value) for value in losses])


class WithMore(WithHelper):
    def doubled(self, value):
        return 2 * value

    def loss(self, model, batch, context):
        return self.doubled(super().loss(model, batch, context))


@pytest.mark.parametrize(
    "kind",
    [WithHelper, WithMore, type("Mine", (FedAvg,), {"_agregate": lambda self: None})],
)
def test_a_helper_is_not(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a_run(kind(), unequal())


@pytest.mark.parametrize("label", sorted(catalogue()))
def test_no_method_of_the_package_has_a_public_method_that_nothing_calls(label):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_method(catalogue()[label]())


# ---- arguments ----------------------------------------------------------------------
DATA = tiny_data(channels=3)
GOOD = (FedAvg(), unequal(), fl.small_cnn, fl.LocalTraining())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((GOOD[0], DATA, *GOOD[2:]), r"a Federation, .*; as in Federation\.build\("),
        ((*GOOD[:2], lambda shape, num: nn.LazyLinear(num)), "place of nn.LazyLinear"),
        ((*GOOD[:2], nn.Linear), r"as in Linear\(\(2, 8, 8\), 4\), which raises"),
    ],
)
def test_raw_data_and_modules_of_torch_are_refused_with_the_cure(given, words):
    with pytest.raises(ValueError, match=words):
        Run(*given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: fl.LocalTraining(lr="0.1"),
            "found '0.1'; this is a string: leave out",
        ),
        (lambda: fl.LocalTraining(optimiser="agd"), "found 'agd'; a method brings"),
        (lambda: fl.Federation.build(DATA, [[0, 1], 7]), r"found array\(7\) as one;"),
        (lambda: fl.Federation.build(DATA, np.arange(9)), r"one per client, found .*0"),
        (lambda: fl.Federation.build(torch.zeros(3), []), "from_arrays, from_dataset"),
        (lambda: fl.load("."), "It is a path: from_folders"),
    ],
)
def test_other_mistakes_of_a_first_hour_come_with_a_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_images_with_channels_last_are_refused_with_the_cure():
    last = DATA.images.transpose(0, 2, 3, 1)
    with pytest.raises(ValueError, match=r"channels last; use images\.transpose\(0, 3"):
        replace(DATA, images=last)
    assert len(replace(DATA, images=last.transpose(0, 3, 1, 2))) == len(DATA)


def test_images_as_floats_with_channels_last_are_refused_too():
    last = np.zeros((40, 16, 16, 3), np.float32)
    with pytest.raises(ValueError, match="channels last"):
        fl.from_arrays(last, np.arange(40) % 4)
    joints = fl.from_arrays(last[:, :, :9], np.arange(40) % 4)  # frames × joints × 3
    assert joints.image_shape == (16, 9, 3)


def test_features_of_one_pixel_are_no_images_with_channels_last():
    wide = np.zeros((len(DATA), 64, 1, 1), np.uint8)
    found = replace(DATA, images=wide, mean=(0.5,), std=(0.5,))
    assert found.image_shape == (64, 1, 1)


@pytest.mark.parametrize("is_frozen", [True, False])
def test_noise_of_another_kind_is_refused_unless_it_is_frozen(is_frozen):
    def network(shape, num_classes):
        body = nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.Dropout2d(0.5))
        body.requires_grad_(not is_frozen)
        return nn.Sequential(body, nn.Flatten(), nn.Linear(4 * 6 * 6, num_classes))

    data = tiny_data()
    federation = fl.Federation.build(data, fl.by_owner(data))
    if is_frozen:
        Run(FedAvg(), federation, network).step()
    else:
        with pytest.raises(ValueError, match=r"'0\.1' \(Dropout2d\) draws from"):
            Run(FedAvg(), federation, network)


def test_a_flag_of_numpy_is_a_flag():
    data = tiny_data()
    run = Run(FedAvg(), fl.Federation.build(data, fl.by_owner(data)), fl.small_cnn)
    run.step(evaluate=np.bool_(False)).step(evaluate=np.bool_(True))
    tested = run.history.table().query("split == 'test'")
    assert tested["round"].unique().tolist() == [0, 2]
