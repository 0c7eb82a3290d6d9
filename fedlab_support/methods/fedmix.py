"""FedMix: mixup with averages of other clients' images, to first order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.checks import setting
from ..core.messages import Tensors, expect_count, expect_names
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..models.pretrained import plain_attention
from ..training.context import ClientContext
from ..training.settings import LocalTraining
from .fedavg import FedAvg
from .shared.samples import gather, others


@dataclass(frozen=True)
class FedMix(FedAvg):
    """FedAvg that mixes each client's images with averages of other clients' images.

    Before round 1 every client uploads mean image and mean label of groups of its data,
    and receives those of all others, G (CHW + M) numbers each. A group never consists
    of one image, and a client with one image uploads none.
    ``share=0`` is FedAvg.

    ``naive=True`` adds the mean to the images (NaiveMix); otherwise the loss of that
    mixup is expanded around the client's own images, which needs second derivatives.
    The paper has ``share`` 0.2 for FEMNIST, 0.05 for CIFAR-10, 0.1 for CIFAR-100;
    NaiveMix 0.2, 0.1, 0.1. A public reimplementation divides the expansion's last term
    by the batch size; the paper does not. The mean of masks is the share of each class
    in each pixel; Dice is not quite linear in it.

    Source: Yoon, Shin, Hwang, Yang, ICLR 2021.
    """

    share: float = setting(0.05, at_least=0, at_most=1)  # of foreign means; 0: FedAvg
    group_size: int | None = setting(  # images per mean; None: all
        None, at_least=2, hint="the mean of one image is that image"
    )
    naive: bool = False  # True: mix images, without the expansion

    stackable: ClassVar[bool] = False

    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError for labels without shares of classes, which it averages."""
        super().check_federation(federation)
        federation.data.classes_for(repr(self), masks=True)
        federation.data.refuse_tokens(repr(self))

    def check_training(self, training: LocalTraining) -> None:
        """Raise ValueError for compiled networks if the loss is expanded."""
        if training.compile and not self.naive:
            raise ValueError(
                "FedMix needs second derivatives, which compiled networks lack; take "
                "LocalTraining(compile=False), or FedMix(naive=True)"
            )

    def adapt(self, model: nn.Module) -> nn.Module:
        """The network, with second derivatives where the expansion needs them."""
        return model if self.naive else plain_attention(model)

    def num_groups(self, n: int) -> int:
        """The number G of means of a client with n images.

        It is n / ``group_size`` rounded up, or less, so that each group has at least
        two images: the mean of one is that image.
        """
        return min(math.ceil(n / (self.group_size or n)), n // 2)

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Mean images, (G, C, H, W), and labels, (G, M, …), of random, even groups.

        For G see ``num_groups``.
        """
        mine, n = context.client.train, len(context.client.train)
        num = self.num_groups(n)
        group = torch.randperm(n, generator=context.rng) * max(1, num) // n
        share = F.normalize(F.one_hot(group).to(torch.float32), p=1, dim=0)
        images, labels = 0, 0
        for x, y, index, _ in mine.batches(context.training.batch_size):
            # (1/M) sum_j x_j and (1/M) sum_j onehot(y_j), over the images of a group
            part = share.to(x)[index]
            target = context.task.soft(y, context.num_classes).to(x)
            images = images + torch.einsum("bg,b...->g...", part, x)
            labels = labels + torch.einsum("bg,b...->g...", part, target)
        return {"images": images[:num], "labels": labels[:num]}

    def check_setup(self, tensors: Tensors, model: nn.Module, most: int) -> None:
        """Raise ValueError for labels that are not shares, or too many mean images."""
        expect_names(tensors, "images", "labels")
        images, labels = tensors["images"], tensors["labels"]
        is_off = ((labels.sum(1) - 1).abs() > 1e-3).any() or (labels < 0).any()
        if len(images) != len(labels) or is_off:
            raise ValueError(
                "each mean image needs a label of shares ≥ 0 that sum to 1, found "
                f"{len(images)} images, {len(labels)} labels, sums {labels.sum(1)}"
            )
        limit = self.num_groups(most)
        expect_count("the number of mean images", len(images), limit, least=0)

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """All means."""
        return gather(uploads, "images", beside=("labels",))

    def setup_reply(self, pooled: Tensors, client_id: int) -> Tensors:
        """The means of all other clients."""
        theirs = others(pooled, client_id)
        return {name: theirs[name] for name in ("entries", "labels")}

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """(1 - a) l(f(u), y) + a l(f(u), y') + a <d/du (1 - a) l(f(u), y), x'>.

        One mean image x' with its label y' is used for the whole batch; u = (1 - a) x,
        and a is ``share``. NaiveMix has u + a x' in place of u, and no third term.
        """
        theirs, a = context.memory, self.share
        one = torch.randint(len(theirs["labels"]), (), generator=context.rng)
        mean_x, mean_y = (
            theirs[name][one].to(batch.x) for name in ("entries", "labels")
        )
        u = ((1 - a) * batch.x).requires_grad_()
        output = model(u + a * mean_x if self.naive else u)
        parts = {
            "own_loss": (1 - a) * context.task.loss(output, batch.y),
            "foreign_loss": a * context.task.loss(output, mean_y.expand_as(output)),
        }
        if not self.naive:
            (slope,) = torch.autograd.grad(parts["own_loss"], u, create_graph=True)
            # the loss is a mean over samples, so the slope has their 1/B already
            parts["expansion"] = a * (slope * mean_x).sum()
        return context.logged_sum(parts)
