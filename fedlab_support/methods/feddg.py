"""FedDG: mix low frequencies of other clients' images into the client's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, fft, nn
from torch.func import functional_call

from ..core.checks import setting
from ..core.messages import (
    Tensors,
    expect_classes,
    expect_count,
    expect_names,
    expect_nonnegative,
)
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.samples import draw, gather, others


@dataclass(frozen=True)
class FedDG(FedAvg):
    """FedAvg that also trains on the client's images in the style of other clients.

    Before round 1 every client uploads the low-frequency amplitudes of its images (with
    ``match_label`` also their labels) and receives those of all others, K N C (2b+1)²
    numbers in all. Each step minimises the loss on the client's own images plus the
    loss on restyled images after a virtual gradient step on the own ones. ``mixing=0,
    beta=0`` is FedAvg at twice the learning rate (SGD, no weight decay, no dropout).

    For large images the paper uses ``alpha=0.01``. The authors' loader replaces only
    the mean (``alpha=0, mixing=1``) and shares an eighth of the amplitudes. In *Towards
    Real World Federated Learning*, ``alpha=0.003, mixing=0.6, match_label=True`` also
    changes only the mean, at 28x28 pixels. The boundary-contrastive loss for masks is
    not implemented: masks are trained with the task's loss alone.

    Source: Liu et al., CVPR 2021; code at 0a281e4.
    """

    alpha: float = setting(0.05, at_least=0, below=0.5)  # half width b / shorter side
    mixing: float | None = setting(  # of the foreign amplitude; None: uniform in 0…1
        None, at_least=0, at_most=1
    )
    beta: float = setting(1e-3, at_least=0)  # size of the virtual step
    clip: float = setting(  # largest entry of the virtual step's gradient
        100.0, above=0, at_most=math.inf
    )
    match_label: bool = False  # True: foreign images of the same class, if any

    stackable: ClassVar[bool] = False
    needs_images: ClassVar[bool] = True

    @property
    def needs_classes(self) -> bool:
        """Whether foreign images of the same class are looked up."""
        return self.match_label

    def window(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Rows (2b+1, 1) and columns (2b+1,) of the frequencies |u|, |v| ≤ b."""
        # b = floor(alpha · min(H, W)); negative frequencies come last
        b = int(round(self.alpha * min(height, width), 9))
        low = torch.arange(-b, b + 1)
        return (low % height)[:, None], low % width

    def amplitudes(self, x: Tensor) -> Tensor:
        """Amplitudes in the window, (B, C, 2b+1, 2b+1), of images (B, C, H, W)."""
        return fft.fft2(x)[(..., *self.window(*x.shape[-2:]))].abs()

    def restyle(self, x: Tensor, foreign: Tensor, mixing: Tensor) -> Tensor:
        """Mix the window's amplitudes with foreign ones; keep the phase.

        x:        images, (B, C, H, W).
        foreign:  amplitudes of other images, as from ``amplitudes``.
        mixing:   lambda, the share of the foreign amplitude, (B,).
        Returns (B, C, H, W), not clipped to the range of images.
        """
        rows, columns = self.window(*x.shape[-2:])
        spectrum = fft.fft2(x)
        low, share = spectrum[..., rows, columns], mixing.view(-1, 1, 1, 1)
        # in the window (1 - lambda) A + lambda A'; only the change is transformed back
        mixed = torch.polar((1 - share) * low.abs() + share * foreign, low.angle())
        change = torch.zeros_like(spectrum)
        change[..., rows, columns] = mixed - low
        return x + fft.ifft2(change).real

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's amplitudes, (n, C, 2b+1, 2b+1), and labels if they are used."""
        x, y, *_ = context.client.train.whole()
        upload = {"labels": y} if self.match_label else {}
        upload["image_shape"] = torch.tensor(x.shape[1:])
        return upload | {"amplitudes": self.amplitudes(x)}

    def check_setup(self, tensors: Tensors, model: nn.Module, most: int) -> None:
        """Raise ValueError for wrong shapes, values, classes or too many amplitudes."""
        names = ["amplitudes", "image_shape"] + ["labels"] * self.match_label
        expect_names(tensors, *names)
        if self.match_label:
            entries, classes = tensors["amplitudes"], tensors["labels"]
            expect_classes("amplitudes", classes, entries, model.num_classes)
        expect_nonnegative("amplitudes", tensors["amplitudes"])
        if (shape := tensors["image_shape"].tolist()) != [*model.image_shape]:
            raise ValueError(
                f"expected images of shape {model.image_shape}, found {shape}; load "
                "the data with size="
            )
        expect_count("the number of amplitudes", len(tensors["amplitudes"]), most)

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """All amplitudes."""
        return gather(uploads, "amplitudes", "labels")

    def setup_reply(self, pooled: Tensors, client_id: int) -> Tensors:
        """The amplitudes of all other clients."""
        return others(pooled, client_id)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """L(theta; x) + L(theta - beta clip(grad L(theta; x)); t), to first order."""
        inner = context.task.loss(model(batch.x), batch.y)
        theta = {n: p for n, p in model.named_parameters() if p.requires_grad}
        gradient = torch.autograd.grad(inner, list(theta.values()), allow_unused=True)
        pairs, k = zip(theta.items(), gradient, strict=True), self.clip
        pairs = [(own, g) for own, g in pairs if g is not None]
        ahead = {name: p - self.beta * g.clamp(-k, k) for (name, p), g in pairs}
        ahead |= {name: buffer.clone() for name, buffer in model.named_buffers()}
        t = self._restyled(batch, context)
        outer = context.task.loss(functional_call(model, ahead, (t,)), batch.y)
        # has the value and the gradient of L(theta; x) without a third backward pass
        linear = sum((g * (p - p.detach())).sum() for (_, p), g in pairs)
        context.log("task_loss", inner)
        context.log("restyled_loss", outer)
        return inner.detach() + linear + outer

    def _restyled(self, batch: Batch, context: ClientContext) -> Tensor:
        """The batch with low frequencies of others, clipped to valid images."""
        theirs, x, rng = context.memory, batch.x, context.rng
        group = batch.y if self.match_label else None
        which = draw(theirs["sizes"], len(x), rng, group)
        drawn = torch.rand(len(x), generator=rng)
        mixing = drawn if self.mixing is None else torch.full_like(drawn, self.mixing)
        t = self.restyle(x, theirs["entries"][which].to(x), mixing.to(x))
        return context.client.train.store.clip(t)
