"""FedFA+: FedFA with feature histograms aligned across clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors
from ..federation.samples import Batch
from ..models.layers.histogram import (
    FeatureHistogram,
    expect_shares,
    extent,
    symmetric_kl,
)
from ..models.stages import insert
from ..training.context import ClientContext
from .fedfa import FedFA


@dataclass(frozen=True)
class FedFAPlus(FedFA):
    """FedFA whose local objective pulls features towards their global histogram.

    After training, every client uploads a soft histogram of each channel of one stage.
    Bins span the smallest to the largest value on the client's own data; this range is
    not uploaded. From round 2 on, the histogram of a batch is pulled towards the mean
    histogram of all clients. ``stages=()`` leaves only this part, the paper's FedFA^h.

    No code was released. We average over channels the mean of both KL divergences, in
    nats. The range is that of the client's previous round; without one, that of the
    batch.

    Source: Zhou, Yuan, Wang, Konukoglu, *Federated Feature Augmentation and Alignment*,
    sections 3.3 and 3.4.
    """

    alignment: float = setting(0.1, at_least=0)  # lambda; 0 gives FedFA
    bins: int = setting(8, at_least=2)  # L; the outermost two lie beyond the range
    temperature: float = setting(0.01, above=0)  # tau; hard bins in the limit of 0
    aligned_stage: int | None = None  # number, from 1; None: the last
    pool_features: bool = False  # True: one value per image and channel, not per pixel

    label: ClassVar[str] = "FedFA+"

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert FedFA's layers, and one that records features of the aligned stage."""
        model = super().adapt(model)
        if self.alignment:
            layer = FeatureHistogram(self.bins, self.temperature, self.pool_features)
            insert(model, self._aligned(model), "histogram", layer)
        return model

    def _aligned(self, model: nn.Module) -> int:
        return len(model.stages) if self.aligned_stage is None else self.aligned_stage

    def _layer(self, model: nn.Module) -> FeatureHistogram:
        return model.stages[self._aligned(model) - 1].added.histogram

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """CE + lambda · J(pi of the batch, pi of all); CE before the latter exists."""
        if "histogram" not in context.received.shared:
            return super().loss(model, batch, context)
        layer = self._layer(model)
        with layer.listening() as features:
            task_loss = super().loss(model, batch, context)
        z = layer.values(features)
        pi = layer.shares(z, context.memory.get("extent", extent(z)))
        divergence = symmetric_kl(pi, context.received.shared["histogram"]).mean()
        context.log("task_loss", task_loss)
        context.log("divergence", divergence)
        return task_loss + self.alignment * divergence

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """FedFA's moments, and the histogram pi_k (C, L) of unperturbed features."""
        upload = super().after_training(model, context)
        if self.alignment:
            layer = self._layer(model)
            with torch.no_grad(), layer.listening() as features:
                for batch in context.client.train.batches(context.training.batch_size):
                    model.encode(batch.x)
            z = layer.values(features)
            context.memory["extent"] = extent(z)
            upload["histogram"] = pi = layer.shares(z, context.memory["extent"])
            if self.noise:
                upload["histogram"] = layer.as_shares(self._noisy(pi, context))
        return upload

    def upload_spec(self, model: nn.Module) -> Tensors:
        """FedFA's moments, and L shares for each channel of the aligned stage."""
        form = super().upload_spec(model)
        if self.alignment:
            width = model.widths[self._aligned(model) - 1]
            form["histogram"] = next(model.parameters()).new_empty(width, self.bins)
        return form

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """As FedFA; the shares of a channel must be ≥ 0 and sum to 1."""
        super().check_upload(tensors, model)
        if "histogram" in tensors:
            expect_shares(tensors["histogram"], self.bins)

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """As FedFA; also share pi, the mean of this round's histograms."""
        server = super().aggregate(server, messages)
        if not self.alignment:
            return server
        # pi = 1/m sum_k pi_k
        pi = torch.stack([m.upload["histogram"] for m in messages]).mean(0)
        return replace(server, shared={**server.shared, "histogram": pi})
