"""FPL: keep features close to class prototypes that the server clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, expect_classes, expect_names
from ..core.metrics import per_class
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.clustering import means_by_group


@dataclass(frozen=True)
class FPL(FedAvg):
    """FedAvg that also compares features with prototypes of every class.

    A client uploads the mean feature of each of its classes. The server clusters them
    per class, so that clients with similar prototypes count once, and sends the means
    of the clusters. In the first round, or with both weights 0, training is that of
    FedAvg. Feature maps are averaged over the mask of each class.

    As in the authors' code, prototypes are accumulated during the last epoch
    (``exact=True`` measures the trained model), and the distance to the mean of the
    clusters is averaged over dimensions (the paper sums). The mean of a single image
    would reveal its features, so by default, unlike in the paper, it is not uploaded.

    Source: Huang et al., CVPR 2023; code at 74201b3.
    """

    contrast_weight: float = setting(1.0, at_least=0)  # of the contrast; 0: none
    consistency_weight: float = setting(1.0, at_least=0)  # of distances; 0: none
    temperature: float = setting(0.02, above=0)  # of the contrast
    min_count: int = setting(2, at_least=1)  # fewest images per prototype; paper: 1
    exact: bool = False  # True: prototypes from an extra pass over the data

    stackable: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True  # mixed labels belong to no prototype
    needs_parts: ClassVar[tuple[str, ...]] = ("encode", "head")

    def check_federation(self, federation: Federation) -> None:
        """Accept masks, too: every pixel has a class."""
        federation.data.classes_for(repr(self), masks=True)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE + a · contrast + b · consistency; CE alone before prototypes arrive."""
        features = model.encode(batch.x)
        parts = {"task_loss": context.task.loss(model.head(features), batch.y)}
        z, y = per_class(features, batch.y)
        is_last = batch.epoch == context.training.epochs - 1
        if is_last and not self.exact:
            self._collect(z.detach(), y, context)
        if shared := context.received.shared:
            parts |= self.comparison(z, y, **shared)
        return context.logged_sum(parts)

    def comparison(
        self, z: Tensor, y: Tensor, prototypes: Tensor, classes: Tensor
    ) -> Tensors:
        """The weighted ``contrast`` and ``consistency`` of features, a scalar each.

        z, y:                 features (B, D) and their classes (B,).
        prototypes, classes:  prototypes (J, D) and their classes (J,); samples of other
                              classes add 0.
        """
        is_own, n = y[:, None] == classes, len(y)
        known = is_own.any(1)
        z, is_own = z[known], is_own[known]
        unit, units = (F.normalize(v, dim=1, eps=1e-8) for v in (z, prototypes))
        # a (log sum_P exp(cos(z, P)/tau) - log sum_{P of y} exp(cos(z, P)/tau))
        with torch.autocast(z.device.type, enabled=False):
            scores = unit.to(units) @ units.T / self.temperature
        own = scores.masked_fill(~is_own, -math.inf)
        contrast = self.contrast_weight * (scores.logsumexp(1) - own.logsumexp(1))
        # b |z - U|² / D, with U the mean of the prototypes of y
        mine = is_own.to(z)
        unbiased = mine @ prototypes.to(z) / mine.sum(1, keepdim=True)
        consistency = self.consistency_weight * (z - unbiased).square().mean(1)
        return {"contrast": contrast.sum() / n, "consistency": consistency.sum() / n}

    def _collect(self, z: Tensor, y: Tensor, context: ClientContext) -> None:
        """Add features (R, D) of classes (R,) to the sums in the client's memory."""
        num, kept = context.num_classes, context.memory
        sums = kept.get("sums", z.new_zeros(num, z.shape[1], dtype=torch.float32))
        kept["sums"] = sums.index_add(0, y, z.float())
        kept["counts"] = kept.get("counts", 0) + y.bincount(minlength=num)

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Prototypes (M, D) of classes (M,) with at least ``min_count`` images."""
        batches = context.client.train.batches(context.training.batch_size)
        for batch in batches if self.exact else ():
            self._collect(*per_class(model.encode(batch.x), batch.y), context)
        sums, counts = context.memory.pop("sums"), context.memory.pop("counts")
        classes = (counts >= self.min_count).nonzero()[:, 0]
        return {"prototypes": sums[classes] / counts[classes, None], "classes": classes}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError unless each class has at most one prototype, (D,)."""
        expect_names(tensors, "prototypes", "classes")
        prototypes, classes = tensors["prototypes"], tensors["classes"]
        head = model.head.parameters()
        width = next((p.shape[1] for p in head if p.ndim > 1), None)
        if width is not None and prototypes.shape[1:] != (width,):
            raise ValueError(
                f"prototypes must have {width} columns, found shape "
                f"{tuple(prototypes.shape)}"
            )
        expect_classes("prototypes", classes, prototypes, model.num_classes)
        if len(classes.unique()) < len(classes):
            raise ValueError(f"a class has one prototype, found {classes.tolist()}")

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """FedAvg; also share the means of the clusters of prototypes of each class."""
        names = "prototypes", "classes"
        rows = (torch.cat([m.upload[name] for m in messages]) for name in names)
        shared = dict(zip(names, means_by_group(*rows), strict=True))
        return replace(super().aggregate(server, messages), shared=shared)
