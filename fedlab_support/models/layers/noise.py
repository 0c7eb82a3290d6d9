"""Noise layers, which draw from the client's stream and not from a global generator."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from ...core.checks import Range, checked
from ...core.rng import current_layer_noise, layer_noise


class Dropout(nn.Module):
    """Set each value to 0 with probability ``p`` in training.

    With ``whole_samples`` all values of a sample are dropped together, which is called
    drop-path in residual networks. Raises ValueError for p outside [0, 1].
    """

    @checked(p=Range(at_least=0, at_most=1))
    def __init__(self, p: float, whole_samples: bool = False):
        super().__init__()
        self.p, self.whole_samples = p, whole_samples

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as ``x``, scaled so that the expectation is ``x``."""
        if not self.training or self.p == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1) if self.whole_samples else x.shape
        draw = torch.rand(shape, generator=current_layer_noise()).to(x.device)
        return x * (draw >= self.p) / max(1 - self.p, torch.finfo(x.dtype).tiny)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows inside the brackets."""
        return f"p={self.p}, whole_samples={self.whole_samples}"


def own_noise(model: nn.Module) -> nn.Module:
    """Replace torch's dropout and timm's drop-path by ours, by type, in place."""
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if type(child) is nn.Dropout:
                ours = Dropout(child.p)
            elif type(child).__name__ == "DropPath" and child.scale_by_keep:
                ours = Dropout(child.drop_prob or 0.0, whole_samples=True)
            else:
                continue
            setattr(module, name, ours.train(child.training))
    return model


def rehearsed(model: nn.Module, example: Tensor) -> object:
    """What a copy of the model, in the model's mode, returns with its gradient.

    Raises ValueError, naming the layer, if it draws from PyTorch's global generator:
    with threads, results would depend on the workers.
    """
    model, drawing = copy.deepcopy(model), []

    def look(module: nn.Module, inputs: tuple, output: object) -> None:
        if not drawing and not torch.equal(torch.get_rng_state(), state):
            drawing.append(module)  # the innermost one is seen first

    for module in model.modules():
        module.register_forward_hook(look)
    noise = layer_noise(torch.Generator())
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), noise:
        state = torch.get_rng_state()
        output = model(example)
    for name, module in model.named_modules():
        if module in drawing:
            raise ValueError(
                f"the model must draw noise from the client's stream, found that "
                f"{name!r} ({type(module).__name__}) draws from PyTorch's global "
                "generator in training; use fedlab_support.models.Dropout there, or "
                "set its probability to 0"
            )
    return output
