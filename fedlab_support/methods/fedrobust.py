"""FedRobust: clients train on the worst-case affine distortion of their images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import expect, setting
from ..core.messages import Tensors
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg

MOST_COLUMNS = 1024
"""Values per image up to which a full matrix is allowed; it then takes 4 MB."""


@dataclass(frozen=True)
class FedRobust(FedAvg):
    """FedAvg on images that are distorted, x Λ + δ, so as to increase the loss.

    Λ and δ start at I and 0, stay on the client and are used in training only. Each
    batch takes one gradient ascent step on both, with a penalty on their size. Rates of
    0 give FedAvg. Penalties and rates are those of the official code for MNIST, for the
    loss summed over a batch; for CIFAR-10 it has ``shift_rate=0.025``.

    ``family="full"`` mixes all values of an image, at most 1,024, as in the code. The
    default works for images of any size: it applies one C x C matrix to the channels of
    every pixel, so the penalty is multiplied, and the rate divided, by the number of
    pixels. It distorts far less, since gradients of different pixels cancel.

    The paper trains the network on the distortion after the ascent step, the code on
    that before; we follow the code. The code has no local steps; we follow the paper.

    Source: Reisizadeh et al., NeurIPS 2020, Algorithm 1; code at farzanfarnia/RobustFL
    531ec8a.
    """

    family: str = setting(  # one matrix for channels, or for all values ("full")
        "per_channel", one_of=("per_channel", "full")
    )
    matrix_rate: float = setting(0.001, at_least=0)  # ascent step of Λ; 0: it stays I
    matrix_penalty: float = setting(100.0, at_least=0)  # on ||Λ - I||²
    shift_rate: float = setting(0.02, at_least=0)  # ascent step of δ; 0: it stays 0
    shift_penalty: float = setting(4.0, at_least=0)  # on ||δ||²

    stackable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for part, (rate, penalty) in self.climbs.items():
            allowed = (
                f"below 1 / (2 {part}_penalty) = {0.5 / (penalty or math.inf):.3g}, or "
                "the penalty overshoots and the distortion diverges"
            )
            is_stable = penalty == 0 or 2 * rate * penalty < 1
            expect(self, f"{part}_rate", allowed, is_stable)

    @property
    def climbs(self) -> dict[str, tuple[float, float]]:
        """Rate and penalty of either part of the distortion."""
        return {
            "matrix": (self.matrix_rate, self.matrix_penalty),
            "shift": (self.shift_rate, self.shift_penalty),
        }

    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError for inputs that cannot be distorted."""
        super().check_federation(federation)
        federation.data.refuse_tokens(repr(self))

    def adapt(self, model: nn.Module) -> nn.Module:
        """The network; ValueError for images that are too large for a full matrix."""
        num = math.prod(model.image_shape)
        if self.family == "full" and num > MOST_COLUMNS:
            raise ValueError(
                f"a full matrix is for images of at most {MOST_COLUMNS:,} values, "
                f"found {num:,}; take family='per_channel'"
            )
        return model

    def distort(self, x: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
        """X Λ + δ for images x (B, C, H, W); a row of X is an image or a pixel."""
        if self.family == "per_channel":
            return (x.movedim(1, -1) @ matrix + shift).movedim(-1, 1)
        distorted = (x.flatten(1) @ matrix + shift).view(x.shape)
        return torch.empty_like(x).copy_(distorted)  # in the layout of x

    def neutral(self, x: Tensor) -> Tensors:
        """The identity for images x: Λ = I and δ = 0."""
        num = x.shape[1] if self.family == "per_channel" else x[0].numel()
        return {"matrix": torch.eye(num).to(x), "shift": x.new_zeros(num)}

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The task's loss on distorted images; Λ and δ then take an ascent step."""
        x, memory, start = batch.x, context.memory, self.neutral(batch.x)
        parts = [memory.get(name, start[name]).detach() for name in start]
        parts = [part.requires_grad_() for part in parts]
        loss = context.task.loss(model(self.distort(x, *parts)), batch.y)
        slopes = torch.autograd.grad(len(x) * loss, parts, retain_graph=True)
        # values of an image on which one entry acts
        num = x[0, 0].numel() if self.family == "per_channel" else 1
        for name, part, slope in zip(start, parts, slopes, strict=True):
            rate, penalty = self.climbs[name]
            # v <- v + eta (grad sum l - 2 lambda (v - v_0)),  v = Λ or δ
            v = part.detach()
            memory[name] = v + rate * (slope / num - 2 * penalty * (v - start[name]))
        return loss
