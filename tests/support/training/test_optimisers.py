"""Our optimisers beside torch's own."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from fedlab_support.training.optimisers import FusedAdam, FusedSGD


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))


def closure_of(model, x, skipped=()):
    def closure():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        for name in skipped:
            model.get_parameter(name).grad = None
        return loss

    return closure


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_are_torchs(momentum, decay):
    """Two groups; one parameter gets its first gradient later than the others."""
    ours = network()
    theirs = copy.deepcopy(ours)
    groups = [
        [
            {"params": list(model[0].parameters()), "weight_decay": decay},
            {"params": list(model[3].parameters()), "weight_decay": 0.0, "lr": 0.02},
        ]
        for model in (ours, theirs)
    ]
    fast = FusedSGD(groups[0], lr=0.1, momentum=momentum)
    slow = SGD(groups[1], lr=0.1, momentum=momentum)
    start = copy.deepcopy(ours.state_dict())
    for step in range(5):
        x = torch.randn(4, 1, 6, 6)
        skipped = ["3.bias"] if step < 2 else []
        losses = [
            optimiser.step(closure_of(model, x, skipped))
            for optimiser, model in ((fast, ours), (slow, theirs))
        ]
        torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-7)
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(
            value, theirs.state_dict()[name], rtol=1e-6, atol=1e-7
        )
        assert not torch.equal(value, start[name])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_it_is_the_fused_kernel_bit_for_bit(momentum):
    ours = network()
    theirs = copy.deepcopy(ours)
    fast = FusedSGD([{"params": list(ours.parameters())}], 0.1, momentum)
    slow = SGD(theirs.parameters(), lr=0.1, momentum=momentum, fused=True)
    for _ in range(4):
        x = torch.randn(4, 1, 6, 6)
        fast.step(closure_of(ours, x))
        slow.step(closure_of(theirs, x))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])


@pytest.mark.parametrize("kind", [Adam, AdamW])
def test_adam_is_the_fused_kernel_bit_for_bit(kind):
    """Two groups; one parameter gets its first gradient later than the others."""
    ours = network()
    theirs = copy.deepcopy(ours)
    groups = [
        [
            {"params": list(model[0].parameters()), "weight_decay": 0.1},
            {"params": list(model[3].parameters()), "weight_decay": 0.0, "lr": 0.02},
        ]
        for model in (ours, theirs)
    ]
    fast = FusedAdam(groups[0], 0.1, decoupled=kind is AdamW)
    slow = kind(groups[1], lr=0.1, fused=True)
    for step in range(5):
        x = torch.randn(4, 1, 6, 6)
        skipped = ["3.bias"] if step < 2 else []
        fast.step(closure_of(ours, x, skipped))
        slow.step(closure_of(theirs, x, skipped))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name])


def test_a_new_optimiser_has_no_momentum_of_an_older_one():
    model, x = network(), torch.randn(4, 1, 6, 6)
    groups = [{"params": list(model.parameters())}]
    FusedSGD(groups, 0.1, 0.9).step(closure_of(model, x))
    again = FusedSGD(groups, 0.1, 0.9)
    assert not again.state and "momentum_buffer" not in groups[0]
