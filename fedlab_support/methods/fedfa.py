"""FedFA: noise on the statistics of features, larger where clients differ more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors
from ..models.layers.augmentation import FUSIONS, FeatureAugmentation
from ..models.stages import insert, stage_numbers
from ..training.context import ClientContext
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedFA(FedAvg):
    """FedAvg with layers that shift the mean and deviation of features in training.

    Clients say the moments of their features; the server answers how much these differ
    between clients, channel by channel, and there the noise is larger. The moments
    themselves stay with the client from round to round. ``p=0`` or ``stages=()`` is
    FedAvg; the latter says nothing.

    The released code takes one variance over all clients *and channels*
    (``server_variance="scalar"``), with which gamma is 1 everywhere, and averages the
    moments (``stats_carry="average"``, also for clients that rarely return); Algorithm
    1 has "reset". We follow the paper's text.

    Source: Zhou, Konukoglu, ICLR 2023; code at 57e9582.
    """

    weighting: str = "equal"  # as paper and code average
    p: float = setting(  # chance that a layer changes a batch; 0 gives FedAvg
        0.5, at_least=0, at_most=1
    )
    alpha: float = setting(  # share of the past in the moments; 0: last batch
        0.99, at_least=0, at_most=1
    )
    stages: tuple[int, ...] | None = None  # with a layer, from 1; None: all
    fusion: str = setting(  # or "direct"; "client" (FedFA-C), "random" (FedFA-R)
        "adaptive", one_of=FUSIONS
    )
    server_variance: str = setting(  # or "scalar", as released
        "channel", one_of=("channel", "scalar")
    )
    stats_carry: str = setting(  # moments from round to round; "average", "reset"
        "persist", one_of=("persist", "average", "reset")
    )
    noise: float = setting(  # deviation of noise on what is said of features; 0: none
        0.0, at_least=0
    )

    stackable: ClassVar[bool] = False
    predicts_personally: ClassVar[bool] = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """A layer behind each of the chosen stages."""
        for n in stage_numbers(model, self.stages):
            settings = (model.widths[n - 1], self.p, self.alpha, self.fusion)
            insert(model, n, "ffa", FeatureAugmentation(*settings))
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """The moments of every layer."""
        found = model.named_modules()
        return {f"{n}.moments" for n, m in found if isinstance(m, FeatureAugmentation)}

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """What the server said goes into the layers' buffers of the same names."""
        told, buffers = context.received.shared, dict(model.named_buffers())
        if self.stats_carry == "reset":
            for name in self.private_names(model):
                model.get_submodule(name.removesuffix(".moments")).forget()
        for name in told.keys() & buffers.keys():
            buffers[name].copy_(told[name])
        return {}

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The moments (2, C) of each layer, if the noise depends on the server."""
        said = FedFA.upload_spec(self, model)  # without what a child adds
        for name, value in said.items() if self.noise else ():
            mean, deviation = self._blurred(value, context)
            said[name] = torch.stack([mean, deviation.relu()])
        return said

    def _blurred(self, value: Tensor, context: ClientContext) -> Tensor:
        eps = torch.randn(value.shape, generator=context.rng).to(value)
        return value + self.noise * eps

    def upload_spec(self, model: nn.Module) -> Tensors:
        """The model's own moments."""
        if self.fusion not in ("adaptive", "direct"):
            return {}
        return {n: model.get_buffer(n) for n in sorted(self.private_names(model))}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Moments are pairs (2, C), and deviations are not negative."""
        for name, value in tensors.items():
            is_pair = value.ndim == 2 and len(value) == 2
            if name.endswith(".moments") and not (is_pair and (value[1] >= 0).all()):
                raise ValueError(
                    f"{name!r} must hold means and deviations ≥ 0, (2, C), found "
                    f"{value} of shape {tuple(value.shape)}"
                )

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """V, the variance of the moments over this round's clients, beside the mean."""
        server, shared = super().aggregate(server, messages), {}
        over = 0 if self.server_variance == "channel" else (0, 2)
        for name in (n for n in messages[0].upload if n.endswith(".moments")):
            said = torch.stack([m.upload[name] for m in messages])
            # V = 1/m sum_k (x_k - mean)²
            v = said.var(over, correction=0, keepdim=True)[0].expand_as(said[0])
            shared[name.replace(".moments", ".variances")] = v.contiguous()
            if self.stats_carry == "average":
                shared[name] = said.mean(0)
        return replace(server, shared=shared)
