"""FedFA: perturb feature statistics in training, more where clients differ more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, expect_nonnegative
from ..models.layers.augmentation import FUSIONS, FeatureAugmentation, modulation
from ..models.stages import STAGES, are_stages, insert, stage_numbers, widths_of
from ..training.context import ClientContext
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedFA(FedAvg):
    """FedAvg with layers that perturb the mean and deviation of features in training.

    Clients upload the moments of their features; the server returns their variance
    across clients per channel, which scales the noise. A client keeps its own moments
    from round to round. ``p=0`` or ``stages=()`` gives FedAvg; the latter uploads
    nothing extra.

    We follow the paper's text. The released code computes one unbiased variance over
    all clients *and channels* (``server_variance="scalar"``), so that gamma, a
    channel's share of the noise, is 1 everywhere, and averages the moments
    (``stats_carry="average"``, also useful for clients that rarely return); Algorithm 1
    has "reset".

    Source: Zhou, Konukoglu, ICLR 2023; code at 57e9582.
    """

    weighting: str = "equal"  # as in the paper and the released code
    p: float = setting(0.5, at_least=0, at_most=1)  # chance a layer acts; 0: FedAvg
    alpha: float = setting(0.99, at_least=0, at_most=1)  # momentum of the moments
    stages: tuple[int, ...] | None = setting(  # those with a layer; None: all
        None, holds=lambda numbers: numbers == () or are_stages(numbers), allowed=STAGES
    )
    fusion: str = setting("adaptive", one_of=FUSIONS)  # FedFA-C: "client", -R: "random"
    server_variance: str = setting(  # per channel, or one "scalar" as released
        "channel", one_of=("channel", "scalar")
    )
    stats_carry: str = setting(  # moments between rounds: kept, averaged or reset
        "persist", one_of=("persist", "average", "reset")
    )
    noise: float = setting(0.0, at_least=0)  # deviation of noise on uploads; 0: none

    stackable: ClassVar[bool] = False
    predicts_personally: ClassVar[bool] = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert a layer after each of the chosen stages."""
        numbers, widths = stage_numbers(model, self.stages), widths_of(model)
        for n in numbers:
            layer = FeatureAugmentation(widths[n - 1], self.p, self.alpha, self.fusion)
            insert(model, n, "ffa", layer)
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """The moments of every layer."""
        found = model.named_modules()
        return {f"{n}.moments" for n, m in found if isinstance(m, FeatureAugmentation)}

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Copy what the server sent into the layers' buffers of the same names.

        Logs how much gamma differs between channels, as a deviation; at 0, the clients'
        differences change nothing.
        """
        received, buffers = context.received.shared, dict(model.named_buffers())
        if self.stats_carry == "reset":
            for name in self.private_names(model):
                model.get_submodule(name.removesuffix(".moments")).forget()
        for name in received.keys() & buffers.keys():
            buffers[name].copy_(received[name])
        if self.fusion == "adaptive" and self.p and received:
            for name in sorted(self.private_names(model)):  # sets differ in order
                v = buffers[name.replace(".moments", ".variances")]
                context.log("gamma_spread", modulation(v).std(-1).mean())
        return {}

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The moments (2, C) of each layer, if its noise depends on the server."""
        upload = FedFA.upload_spec(self, model)  # without what a subclass adds
        for name, value in upload.items() if self.noise else ():
            mean, deviation = self._noisy(value, context)
            upload[name] = torch.stack([mean, deviation.relu()])
        return upload

    def _noisy(self, value: Tensor, context: ClientContext) -> Tensor:
        eps = torch.randn(value.shape, generator=context.rng).to(value)
        return value + self.noise * eps

    def upload_spec(self, model: nn.Module) -> Tensors:
        """The moments that the model holds."""
        if self.fusion not in ("adaptive", "direct"):
            return {}
        return {n: model.get_buffer(n) for n in sorted(self.private_names(model))}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError for moments with a deviation below 0."""
        for name, value in tensors.items():
            if name.endswith(".moments"):
                expect_nonnegative(f"{name!r}: deviations", value[1])

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Average weights, and share V, the variance of the moments over clients."""
        server, shared = super().aggregate(server, messages), {}
        is_scalar = self.server_variance == "scalar"
        over = (0, 2) if is_scalar else 0
        for name in (n for n in messages[0].upload if n.endswith(".moments")):
            moments = torch.stack([m.upload[name] for m in messages])
            # V = 1/m sum_k (x_k - mean)²
            unbiased = is_scalar and moments[:, 0].numel() > 1
            v = moments.var(over, correction=int(unbiased), keepdim=True)[0]
            v = v.expand_as(moments[0])
            shared[name.replace(".moments", ".variances")] = v.contiguous()
            if self.stats_carry == "average":
                shared[name] = moments.mean(0)
        return replace(server, shared=shared)
