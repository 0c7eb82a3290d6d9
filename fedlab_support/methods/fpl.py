"""FPL: features stay near the class means of all clients, clustered by look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, expect_classes
from ..core.metrics import per_class
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..training.context import ClientContext
from .fedavg import FedAvg
from .shared.clustering import means_by_group


@dataclass(frozen=True)
class FPL(FedAvg):
    """FedAvg that also compares features with prototypes of every class.

    A client says the mean feature of each of its classes. The server clusters them per
    class, so that a look counts once however many clients share it, and tells the means
    of the clusters. In a first round, or with both weights 0, training is that of
    FedAvg. Networks with maps as features average them over each class's mask.

    Prototypes are collected as in the authors' code, while the last epoch changes the
    weights; ``exact=True`` measures the trained model. The distance to the clusters'
    mean is averaged over dimensions as there (the paper sums). The mean feature of one
    picture tells that picture's features: by default it is not said (the paper's is).

    Source: Huang et al., CVPR 2023; code at 74201b3.
    """

    contrast_weight: float = setting(  # of nearness by angle; 0 leaves it out
        1.0, at_least=0
    )
    consistency_weight: float = setting(  # of the squared distance; 0 leaves it out
        1.0, at_least=0
    )
    temperature: float = setting(0.02, above=0)  # of the contrast
    min_count: int = setting(  # pictures behind a prototype; 1 as in the paper
        2, at_least=1
    )
    exact: bool = False  # True: prototypes from one more pass over the data

    stackable: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = True  # mixed labels belong to no prototype

    def check_federation(self, federation: Federation) -> None:
        """Masks will do: they tell the class of every pixel."""

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE + a · contrast + b · consistency; CE where no prototypes are told."""
        features = model.encode(batch.x)
        parts = {"task_loss": context.task.loss(model.head(features), batch.y)}
        z, y = per_class(features, batch.y)
        is_last = batch.epoch == context.training.epochs - 1
        if is_last and not self.exact and not context.is_replaying:
            self._collect(z.detach(), y, context)
        if told := context.received.shared:
            parts |= self.comparison(z, y, **told)
        for name, part in parts.items():
            context.log(name, part)
        return sum(parts.values())

    def comparison(
        self, z: Tensor, y: Tensor, prototypes: Tensor, classes: Tensor
    ) -> Tensors:
        """The weighted ``contrast`` and ``consistency`` of features, a scalar each.

        - ``z``: (B, D), of classes ``y`` (B,). ``prototypes``: (J, D), of ``classes``
          (J,). A sample whose class has none adds 0.
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
        """Add features (R, D) of classes (R,) to the sums that `report` takes away."""
        num, kept = context.num_classes, context.memory
        kept.setdefault("sums", z.new_zeros(num, z.shape[1], dtype=torch.float32))
        kept.setdefault("counts", y.new_zeros(num))
        kept["sums"].index_add_(0, y, z.float())
        kept["counts"] += y.bincount(minlength=num)

    @torch.no_grad()
    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Prototypes, (M', D), and their classes, (M',), of at least ``min_count``."""
        batches = context.client.train.batches(context.training.batch_size)
        for batch in batches if self.exact else ():
            self._collect(*per_class(model.encode(batch.x), batch.y), context)
        sums, counts = context.memory.pop("sums"), context.memory.pop("counts")
        said = (counts >= self.min_count).nonzero()[:, 0]
        return {"prototypes": sums[said] / counts[said, None], "classes": said}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """One prototype per class, as wide as features; ValueError otherwise."""
        num, head = model.num_classes, model.head.parameters()
        width = next((p.shape[1] for p in head if p.ndim > 1), None)
        expect_classes(tensors, "prototypes", "classes", num, True, width)

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """FedAvg, and the means of each class's clusters of this round's prototypes."""
        names, said = ("prototypes", "classes"), [m.upload for m in messages]
        rows = (torch.cat([report[name] for report in said]) for name in names)
        told = dict(zip(names, means_by_group(*rows), strict=True))
        return replace(super().aggregate(server, messages), shared=told)
