"""Runs on a device that refuses what a GPU refuses, with the numbers of the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch

import fedlab_support as fl
from fedlab_support import FedAvg, Federation, Run
from fedlab_support.federation.partition import by_owner
from fedlab_support.models import small_unet
from tests.conformance.cases import CASES, SGD, Case, brief
from tests.device import NAME, OtherDevice, on_cpu
from tests.runs import unequal
from tests.tiny import tiny_masks

pytestmark = pytest.mark.usefixtures("one_thread", "tiny_styles")


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Five clients of 5 to 30 training images, some of them kept for validation."""
    return unequal(num=110, channels=3, val=0.25)


def there(*shape) -> torch.Tensor:
    """Ones on the device."""
    return torch.ones(shape, device=NAME)


REFUSED = {
    "a matrix and one of the CPU": lambda: there(2, 3) + torch.ones(2, 3),
    "the same the other way round": lambda: torch.ones(2, 3) * there(2, 3),
    "a number of the device and a vector": lambda: there().add(torch.ones(3)),
    "a matrix product": lambda: there(2, 3) @ torch.ones(3, 2),
    "a loss": lambda: torch.nn.functional.cross_entropy(there(1, 3), torch.tensor([0])),
    "a mask": lambda: torch.where(torch.tensor([True, False]), there(2), 0.0),
    "a stack, even of numbers": lambda: torch.stack([there(), torch.tensor(1.0)]),
    "indices of the device": lambda: torch.ones(3)[torch.tensor([0], device=NAME)],
    "rows by indices of the CPU": lambda: there(3).index_select(0, torch.tensor([0])),
    "a sum on the CPU": lambda: torch.zeros(()).add_(there()),
    "comparing": lambda: torch.equal(there(3), torch.ones(3)),
    "random numbers": lambda: torch.rand(3, device=NAME),
    "a generator of the CPU": lambda: torch.randn(
        3, device=NAME, generator=torch.Generator()
    ),
}


@pytest.mark.parametrize("mixed", REFUSED.values(), ids=REFUSED)
def test_the_device_refuses_what_a_gpu_refuses(mixed):
    with pytest.raises(OtherDevice, match="device"):
        mixed()


@pytest.mark.parametrize("array", [lambda x: x.numpy(), np.asarray, np.array])
def test_it_gives_no_arrays(array):
    with pytest.raises(TypeError, match=r"Tensor\.cpu\(\)"):
        array(there(3))


def test_what_a_gpu_allows_has_the_numbers_of_the_cpu():
    x = torch.arange(6.0).view(2, 3)
    y = x.to(NAME)
    assert y.device.type == NAME and y.cpu().equal(x)
    assert (y + torch.tensor(2.0)).cpu().equal(x + 2)
    assert y[torch.tensor([1])].cpu().equal(x[1:])
    y[0] = torch.zeros(3)  # a copy
    assert y.tolist() == [[0, 0, 0], [3, 4, 5]] and float(y.sum()) == 12
    y.data = y.data[:1]
    assert (y + 1).tolist() == [[1, 1, 1]]


def test_a_step_on_it_is_a_step_on_the_cpu():
    torch.manual_seed(0)
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0])
    nets = [fl.small_cnn((1, 8, 8), 3) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    for net, where in zip(nets, ("cpu", NAME), strict=True):
        net.to(where)
        loss = torch.nn.functional.cross_entropy(net(x.to(where)), y.to(where))
        loss.backward()
        torch.optim.SGD(net.parameters(), 0.1).step()
    for ours, theirs in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(ours, theirs.cpu(), rtol=0, atol=1e-6)


def numbers(run: Run) -> dict[str, np.ndarray]:
    """The server's weights, the history without its seconds, and the traffic."""
    weights = {n: on_cpu(v).double().numpy() for n, v in run.server.weights.items()}
    table = run.history.table().query("not metric.str.contains('seconds')")
    return weights | {"history": table.value.to_numpy(), "wire": run.wire.bytes}


def lean(case: Case) -> Case:
    """With few steps, which are slow on the device; some clients make two."""
    case = brief(case)
    return replace(case, training=replace(case.training, batch_size=16))


def same_as_the_cpu(build, folder, rounds: int = 2) -> Run:
    """The run on the device, stopped after a round and resumed, beside the CPU's."""
    plain, begun, resumed = build("cpu"), build(NAME), build(NAME)
    plain.fit(rounds, progress=False)
    begun.fit(1, False, folder)
    resumed.fit(rounds, False, folder)
    ours, theirs = numbers(resumed), numbers(plain)
    assert ours.keys() == theirs.keys()
    is_sgd = plain.training.optimiser == "sgd"
    near = {"rtol": 1e-4, "atol": 1e-5} if is_sgd else {"rtol": 1e-3, "atol": 5e-4}
    for name, value in theirs.items():  # Adam divides by gradients, tiny ones too
        np.testing.assert_allclose(ours[name], value, **near)
    assert {v.device.type for v in resumed.server.weights.values()} == {NAME}
    assert not len(resumed.history.events())
    return resumed


def test_a_run_of_the_cpu_does_not_continue_on_the_device(federation, tmp_path):
    def build(device: str) -> Run:
        return Run(fl.FedAvgM(), federation, fl.small_cnn, SGD, device=device)

    build("cpu").fit(1, False, tmp_path)
    with pytest.raises(ValueError, match="device: here 'pretend', there 'cpu'"):
        build(NAME).fit(2, False, tmp_path)


@dataclass(frozen=True)
class Further:
    """Settings of a run beside its method."""

    settings: dict
    case: Case = CASES["FedAvg"]


def augmented(augment) -> Case:
    return Case(FedAvg(), training=replace(SGD, augment=augment))


FURTHER = {
    "mixup": Further({}, augmented(fl.augment.Mixup())),
    "manifold mixup": Further({}, augmented(fl.augment.ManifoldMixup())),
    "MixStyle": Further({}, augmented(fl.augment.MixStyle())),
    "MoEx": Further({}, augmented(fl.augment.MoEx())),
    "DAC-SC": Further({}, augmented(fl.augment.DACSC())),
    "power of choice": Further({"select": fl.power_of_choice(2, 4)}),
    "privacy": Further(
        {"privacy": fl.Privacy(noise=0.1, seeded=True)}, Case(FedAvg("equal"))
    ),
    "stacked": Further({"engine": "stacked"}),
    "three workers": Further({"workers": 3}),
    "batch norm": Further(
        {}, replace(CASES["FedBN"], model=partial(fl.small_cnn, norm="batch"))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_rounds_evaluation_and_resume_have_the_numbers_of_the_cpu(
    name, federation, tmp_path
):
    case = lean(CASES[name])

    def build(device):
        how = {"workers": 1, "device": device}
        return Run(case.method, federation, case.model, case.training, **how)

    same_as_the_cpu(build, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FURTHER)
def test_other_settings_have_the_numbers_of_the_cpu(name, federation, tmp_path):
    case, settings = lean(FURTHER[name].case), FURTHER[name].settings

    def build(device):
        how = {"workers": 1, "device": device, **settings}
        return Run(case.method, federation, case.model, case.training, **how)

    same_as_the_cpu(build, tmp_path)


@pytest.mark.slow
def test_masks_have_the_numbers_of_the_cpu(tmp_path):
    data = tiny_masks(num=90, size=16)
    federation = Federation.build(data, by_owner(data))

    def build(device):
        how = {"workers": 1, "device": device}
        return Run(FedAvg(), federation, small_unet, replace(SGD, epochs=1), **how)

    same_as_the_cpu(build, tmp_path)


def test_a_device_without_float64_is_refused(federation, monkeypatch):
    def without(*_, **__):
        raise TypeError("float64 is not supported")

    monkeypatch.setattr(torch, "zeros", without)
    with pytest.raises(ValueError, match="computes in float64, found 'pretend'"):
        Run(FedAvg(), federation, fl.small_cnn, SGD, device=NAME)
