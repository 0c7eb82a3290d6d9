"""Wide linear layers by oneDNN: nn.Linear's numbers, and only where that gains."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.parametrizations import weight_norm

from fedlab_support import FedAvg, LocalTraining, Run
from fedlab_support.engines import onednn_linear as wide
from fedlab_support.engines.onednn_linear import WideLinear, widened
from fedlab_support.methods import FedMix
from tests.runs import unequal

TRAINING = LocalTraining(lr=0.05, momentum=0.9, epochs=2, batch_size=7)
ZEN_5 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\n"
CPUS = {
    "Zen 5": (ZEN_5, True),
    "Zen 4": (ZEN_5.replace("26", "25"), True),
    "Zen 2": (ZEN_5.replace("26", "23"), False),
    "Intel": (ZEN_5.replace("AuthenticAMD", "GenuineIntel"), False),
    "ARM": ("processor\t: 0\nBogoMIPS\t: 50.00\n", False),
    "nothing": (None, False),
}


def pair(*size: int, **settings) -> tuple[nn.Linear, WideLinear]:
    torch.manual_seed(0)
    usual = nn.Linear(*size, **settings)
    ours = copy.deepcopy(usual)
    ours.__class__ = WideLinear
    return usual, ours


def close(ours, usual) -> None:
    """To rounding: each tensor against its own largest value."""
    for a, b in zip(ours, usual, strict=True):
        assert a.shape == b.shape and b.abs().max() > 0
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * b.abs().max().item())


@pytest.mark.parametrize("shape", [(6,), (1,), (), (3, 5), (2, 1, 4)], ids=str)
@pytest.mark.parametrize(
    ("size", "settings"),
    [((300, 500), {}), ((257, 130), {"bias": False}), ((2100, 1001), {})],
    ids=["even", "odd", "in pieces"],
)
def test_values_slopes_and_their_slopes_are_those_of_linear(shape, size, settings):
    assert wide.PIECE < 2100 * 1001
    found = []
    for layer in pair(*size, **settings):
        torch.manual_seed(1)
        x = torch.randn(*shape, size[0], requires_grad=True)
        aggregation_weights = torch.randn(*shape, size[1])
        y = layer(x)
        value = (y * aggregation_weights).tanh().sum()
        first = torch.autograd.grad(value, [x, *layer.parameters()], create_graph=True)
        value = sum(slope.square().sum() for slope in first)
        second = torch.autograd.grad(value, [x, *layer.parameters()])
        found.append([y, *first, *second])
    close(found[1], found[0])


def test_any_strides_will_do():
    usual, ours = pair(60, 90)
    x = torch.randn(60, 8, 5).permute(2, 1, 0)[:, ::2]
    close([ours(x)], [usual(x)])
    found = []
    for layer in (usual, ours):  # the slope of a sum has no strides at all
        layer(x).sum().backward()
        found.append([layer.weight.grad, layer.bias.grad])
    close(found[1], found[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transforms_of_functions_apply():
    usual, ours = pair(30, 50)
    x = torch.randn(4, 3, 30)
    weights = {n: torch.stack([p, 2 * p, p, -p]) for n, p in usual.named_parameters()}

    def slopes(layer):
        def loss(own, x):
            return functional_call(layer, own, (x,)).square().mean()

        return vmap(grad(loss))(weights, x)

    found = [slopes(layer) for layer in (ours, usual)]
    close(*(each.values() for each in found))


def test_other_types_go_the_usual_way():
    usual, ours = pair(30, 50)
    x = torch.randn(4, 30)
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x).dtype == torch.bfloat16 and ours(x).equal(usual(x))
    assert ours(x[:0]).shape == (0, 50) and ours(x[None, :0]).shape == (1, 0, 50)
    assert ours.double()(x.double()).equal(usual.double()(x.double()))
    with pytest.raises(RuntimeError, match="dtype"):
        ours(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        pair(30, 50)[1](x[:, 1:])


class Wide(nn.Module):
    """A network of one wide layer and one that is not."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        wide_layer = nn.Linear(math.prod(image_shape), 2048)
        self.stages = nn.Sequential(nn.Flatten(), wide_layer, nn.ReLU())
        self.head = nn.Linear(2048, num_classes)

    def encode(self, x):
        return self.stages(x)

    def forward(self, x):
        return self.head(self.encode(x))


def test_only_wide_plain_layers_change(monkeypatch):
    class Own(nn.Linear):
        pass

    monkeypatch.setattr(wide, "has_idle_width", lambda: True)
    size = (64, wide.WIDE // 64)
    model = nn.Sequential(
        nn.Linear(*size),
        nn.Linear(size[0], size[1] - 1),
        Own(*size),
        weight_norm(nn.Linear(*size)),
        nn.Conv2d(*size, 1),
    )
    before, types = model.state_dict(), [type(layer) for layer in model]
    assert widened(model) is model and model.state_dict().keys() == before.keys()
    assert [type(layer) for layer in model] == [WideLinear, *types[1:]]
    assert type(copy.deepcopy(model)[0]) is WideLinear


def test_without_a_gain_nothing_changes(monkeypatch):
    monkeypatch.setattr(wide, "has_idle_width", lambda: False)
    assert type(widened(nn.Sequential(nn.Linear(64, wide.WIDE)))[0]) is nn.Linear


@pytest.mark.parametrize(("cpuinfo", "is_idle"), CPUS.values(), ids=CPUS)
def test_processors_are_told_apart(cpuinfo, is_idle, monkeypatch, tmp_path):
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    monkeypatch.setattr(wide, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert wide.has_idle_width.__wrapped__() is is_idle
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not wide.has_idle_width.__wrapped__()


@pytest.mark.parametrize("method", [FedAvg(), FedMix()], ids=repr)
def test_runs_are_the_same_to_rounding(method, monkeypatch):
    """FedMix differentiates twice; results depend on no number of workers."""
    federation, calls = unequal(), []
    product = wide._product
    monkeypatch.setattr(wide, "_product", lambda *a: calls.append(a) or product(*a))

    def fitted(is_idle, workers=1):
        monkeypatch.setattr(wide, "has_idle_width", lambda: is_idle)
        run = Run(method, federation, Wide, TRAINING, workers=workers, seed=3)
        start = run.server.weights["stages.1.weight"].clone()
        run.fit(3, progress=False)
        assert (run.server.weights["stages.1.weight"] - start).abs().max() > 1e-3
        assert type(run.model.stages[1]) is nn.Linear
        return run

    usual, calls_of_usual = fitted(False), len(calls)
    ours, both = fitted(True), fitted(True, workers=2)
    assert calls_of_usual == 0 and calls
    weights = [run.server.weights for run in (usual, ours, both)]
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights[2], weights[1], rtol=0, atol=0)
    assert ours.history.events().empty
