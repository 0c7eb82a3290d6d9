"""Layers that draw noise, from the visit's own stream instead of a global generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..streams import current_layer_noise


class Dropout(nn.Module):
    """Sets each value to 0 with probability ``p`` in training; 0 does nothing.

    With ``whole_samples`` the same draw holds for all values of a sample, which is
    what residual networks call drop-path.
    """

    def __init__(self, p: float, whole_samples: bool = False):
        super().__init__()
        self.p, self.whole_samples = p, whole_samples

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as ``x``, scaled so that the expectation is ``x``."""
        if not self.training or self.p == 0:
            return x
        shape = (len(x),) + (1,) * (x.ndim - 1) if self.whole_samples else x.shape
        draw = torch.rand(shape, generator=current_layer_noise()).to(x.device)
        return x * (draw >= self.p) / (1 - self.p)

    def extra_repr(self) -> str:
        """What ``print(model)`` shows inside the brackets."""
        return f"p={self.p}, whole_samples={self.whole_samples}"


def own_noise(model: nn.Module) -> nn.Module:
    """Replace torch's and timm's dropout by ours, by type, in place.

    Raises ValueError for an active noise layer that has no replacement here: it would
    draw from PyTorch's global generator, and results would depend on the workers.
    """
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            if type(child) is nn.Dropout:
                setattr(module, child_name, Dropout(child.p))
            elif type(child).__name__ == "DropPath":
                rate = getattr(child, "drop_prob", 0.0) or 0.0
                setattr(module, child_name, Dropout(rate, whole_samples=True))
        if _draws_globally(module):
            raise ValueError(
                f"layer {name or 'itself'!r} ({type(module).__name__}) draws noise "
                "from PyTorch's global generator; use fedlab_support.models.Dropout, "
                "or set its probability to 0"
            )
    return model


def _draws_globally(module: nn.Module) -> bool:
    if isinstance(module, _DropoutNd):
        return type(module) is not nn.Dropout and module.p > 0
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return module.dropout > 0
    return isinstance(module, nn.RReLU | nn.FractionalMaxPool2d)
