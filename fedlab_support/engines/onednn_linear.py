"""Wide linear layers where PyTorch's matrix products leave a processor's width unused.

On a CPU they are MKL's, and MKL keeps to AVX2 on processors that Intel did not make.
oneDNN, of which PyTorch has its convolutions, goes by AVX-512: a step of such a layer
takes half of MKL's time on Zen 5, which runs it whole, and 0.75 to 1 of it on Zen 4.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

WIDE = 2**18
"""Weights of a layer from which on oneDNN gains; with batches of eight, hardly yet."""

PIECE = 2**21
"""Values of a product that come at once: a whole gradient would take more room."""

CPUINFO, ZEN_4 = Path("/proc/cpuinfo"), 25
"""The family as Linux numbers it; it is Zen 3's, too, which has no AVX-512."""


class WideLinear(nn.Linear):
    """A linear layer by oneDNN: ``nn.Linear``'s numbers to rounding, and gradients.

    Other types than float32, autocast, and what does not fit go ``nn.Linear``'s way.
    """

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        is_float32 = x.dtype == self.weight.dtype == torch.float32
        is_here = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        fits = x.numel() > 0 and x.shape[-1] == self.in_features
        if not (is_float32 and is_here and fits):
            return super().forward(x)
        rows = _Product.apply(x.reshape(-1, x.shape[-1]), self.weight)
        y = rows.view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


class _Product(torch.autograd.Function):
    """``a @ b.T`` of a (M, K) and b (N, K), as often differentiable as you like."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return _product(a, b)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor | None, Tensor | None]:
        (a, b), (of_a, of_b) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _Product.apply(slope, b.t()) if of_a else None,
            _Product.apply(slope.t(), a.t()) if of_b else None,
        )


def _product(a: Tensor, b: Tensor) -> Tensor:
    a, pieces = a.contiguous(), -(-len(a) * len(b) // PIECE)
    if not b.is_contiguous():
        # by columns, as it is as a rule; other strides take oneDNN 200 times as long
        b = b.t().contiguous().t()
    if pieces == 1:
        return _onednn(a, b)
    found = a.new_empty(len(a), len(b))
    for part, rows in zip(a.chunk(pieces), found.chunk(pieces), strict=True):
        rows.copy_(_onednn(part, b))
    return found


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")


def widened(model: nn.Module) -> nn.Module:
    """The model itself; on a processor that gains, its wide layers go by oneDNN."""
    for layer in model.modules() if has_idle_width() else ():
        if type(layer) is nn.Linear and layer.weight.numel() >= WIDE:
            layer.__class__ = WideLinear
    return model


@cache
def has_idle_width() -> bool:
    """Whether MKL leaves this processor's AVX-512 unused: AMD from Zen 4 on."""
    found = CPUINFO.read_text(encoding="utf-8") if CPUINFO.exists() else ""
    family = re.search(r"AuthenticAMD\s+cpu family\s*:\s*(\d+)", found)
    return (
        family is not None
        and int(family[1]) >= ZEN_4
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
