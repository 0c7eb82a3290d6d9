"""Layers that hold the weights of many clients and treat each client with its own.

Activations keep clients and samples in one dimension, (K·B, …), client after client:
whatever treats samples one by one then needs no change. Weights have the clients in
front, (K, …); K may shrink between calls.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Many(nn.Module):
    """One layer for each of K clients; whoever uses it sets ``weight`` and ``bias``."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.settings = {name: getattr(layer, name) for name in self.kept}
        self.register_parameter("weight", None)
        self.register_parameter("bias", None)


class ManyLinear(Many):
    """K linear layers; ``weight`` (K, out, in), ``bias`` (K, out) or None."""

    kept = ()

    def forward(self, x: Tensor) -> Tensor:
        """(K·B, …, in) → (K·B, …, out)."""
        weight, bias = self.weight, self.bias
        rows = x.reshape(len(weight), -1, x.shape[-1])
        return many_linear(rows, weight, bias).view(*x.shape[:-1], weight.shape[1])


def many_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What K linear layers make of rows (K, N, in): (K, N, out)."""
    is_autocast = torch.is_autocast_enabled(rows.device.type)  # has its own products
    return (_products if is_autocast else _Products.apply)(rows, weight, bias)


def _products(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return torch.bmm(rows, weight.mT)
    return torch.baddbmm(bias[:, None], rows, weight.mT)


class _Products(torch.autograd.Function):
    """The same; gradients lie as the weights do, where PyTorch's are to be turned."""

    @staticmethod
    def forward(ctx, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _products(rows, weight, bias)

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor | None, ...]:
        """Slopes of rows, weight and bias, as far as somebody asks for them."""
        (rows, weight), needed = ctx.saved_tensors, ctx.needs_input_grad
        return (
            torch.bmm(slope, weight) if needed[0] else None,
            torch.bmm(slope.mT, rows) if needed[1] else None,
            slope.sum(1) if needed[2] else None,
        )


class ColumnLinear(nn.Linear):
    """``nn.Linear`` as vmap is quick with it: the weight's gradient lies as it does."""

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        y = self.weight @ x.reshape(-1, x.shape[-1]).mT
        if self.bias is not None:
            y = y + self.bias[:, None].to(y.dtype)
        return y.mT.reshape(*x.shape[:-1], len(self.weight))


class ManyConv2d(Many):
    """K convolutions as groups of one; ``weight`` (K, out, in / groups, h, w)."""

    kept = ("stride", "padding", "dilation", "groups")

    def forward(self, x: Tensor) -> Tensor:
        """(K·B, in, H, W) → (K·B, out, H', W')."""
        k, out = self.weight.shape[:2]
        settings = self.settings | {"groups": k * self.settings["groups"]}
        side_by_side = x.unflatten(0, (k, -1)).transpose(0, 1).flatten(1, 2)
        bias = None if self.bias is None else self.bias.flatten()
        y = F.conv2d(side_by_side, self.weight.flatten(0, 1), bias, **settings)
        return y.unflatten(1, (k, out)).transpose(0, 1).flatten(0, 1)


class ManyGroupNorm(Many):
    """K group normalisations; ``weight`` and ``bias`` (K, channels)."""

    kept = ("num_groups", "eps")

    def forward(self, x: Tensor) -> Tensor:
        """(K·B, channels, …), normalised, scaled and shifted."""
        y = F.group_norm(x, **self.settings).unflatten(0, (len(self.weight), -1))
        shape = (len(self.weight), 1, -1) + (1,) * (x.ndim - 2)
        y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.flatten(0, 1)


class ManyLayerNorm(Many):
    """K layer normalisations; ``weight``, ``bias`` (K, *normalized_shape) or None."""

    kept = ("normalized_shape", "eps")

    def forward(self, x: Tensor) -> Tensor:
        """(K·B, …, *normalized_shape), normalised, scaled and shifted."""
        y = F.layer_norm(x, **self.settings).unflatten(0, (len(self.weight), -1))
        last = self.settings["normalized_shape"]
        shape = (len(self.weight),) + (1,) * (x.ndim - len(last)) + tuple(last)
        y = y * self.weight.view(shape)
        return (y if self.bias is None else y + self.bias.view(shape)).flatten(0, 1)


BATCHED = {
    nn.Linear: ManyLinear,
    nn.Conv2d: ManyConv2d,
    nn.GroupNorm: ManyGroupNorm,
    nn.LayerNorm: ManyLayerNorm,
}
"""Layers with a batched form, by their exact type."""


def batched_form(model: nn.Module) -> nn.Module | None:
    """A copy of the model in which every trained layer is batched, or None.

    Layers hold no parameters yet. None when a trained layer has no batched form.
    """
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        for name, child in list(module.named_children()):
            if _is_trained(child) and _has_batched_form(child):
                setattr(module, name, BATCHED[type(child)](child))
    return None if any(map(_is_trained, twin.modules())) else twin


def column_form(model: nn.Module) -> nn.Module:
    """A copy of the model in which linear layers are a :class:`ColumnLinear`."""
    twin = copy.deepcopy(model)
    for layer in twin.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = ColumnLinear
    return twin


def _is_trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters(recurse=False))


def _has_batched_form(module: nn.Module) -> bool:
    whole = all(p.requires_grad for p in module.parameters(recurse=False))
    padding = getattr(module, "padding_mode", "zeros")
    return whole and type(module) in BATCHED and padding == "zeros"
