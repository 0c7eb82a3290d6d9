"""HarmoFL: one Fourier amplitude for the images of all clients, and SAM steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import (
    Message,
    Server,
    Tensors,
    expect_alike,
    expect_nonnegative,
    weighted_mean,
)
from ..federation.samples import Batch
from ..models.layers.amplitude import AmplitudeNorm
from ..models.stages import insert_entry
from ..training.context import ClientContext
from ..training.optimisers import SAM
from ..training.settings import LocalTraining
from .fedavg import FedAvg

LAYER = "entry.harmony"


@dataclass(frozen=True)
class HarmoFL(FedAvg):
    """FedAvg on images that share one Fourier amplitude, trained with SAM.

    In round 1 each client uploads a running mean of its batches' amplitudes; from then
    on all clients use the server's mean of these, which each receives once. ``alpha=0,
    window="none"`` is FedAvg of the same weighting. FedFA+ calls HarmoFL *FedHarmo*.

    The paper replaces the whole amplitude (``window="full"``), which gives all images
    the same contrast. The authors' code replaces frequency 0, the brightness,
    only, and rounds its decay to 0. The default replaces frequency 0, as the code does,
    and uses the decay, as the paper does. In the code the second pass also updates
    running statistics; here only the first does.

    Source: Jiang, Wang, Dou, AAAI 2022; code at med-air/HarmoFL 63182fe.
    """

    weighting: str = "equal"  # as in the authors' code
    window: str = setting(  # frequencies replaced: "dc", "full", or "none" as in FedAvg
        "dc", one_of=("dc", "full", "none")
    )
    decay: float = setting(0.1, at_least=0, at_most=1)  # weight of a batch in the mean
    alpha: float = setting(0.05, at_least=0)  # SAM's rho; 0 gives SGD

    stackable: ClassVar[bool] = False
    needs_images: ClassVar[bool] = True
    predicts_personally: ClassVar[bool] = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert the amplitude layer in front of the network."""
        if self.window != "none":
            layer = AmplitudeNorm(model.image_shape, whole=self.window == "full")
            insert_entry(model, "harmony", layer)
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """The layer's state, which is not averaged with the weights."""
        return {name for name in model.state_dict() if name.startswith(f"{LAYER}.")}

    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """The common amplitude, if this client has not received it yet."""
        memory = server.memory
        if "amplitude" not in memory or client_id in memory["recipients"]:
            return server.shared
        return server.shared | {"amplitude": memory["amplitude"]}

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Fix the layer's amplitude to the one that was received."""
        if "amplitude" in context.received.shared:
            model.get_submodule(LAYER).fix(context.received.shared["amplitude"])
        return {}

    def optimiser(self, named_params, training: LocalTraining) -> SAM:
        """SAM of radius alpha."""
        return SAM(super().optimiser(named_params, training), self.alpha)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The task's loss; a batch updates the amplitude first until it is fixed."""
        if self.window != "none" and not context.is_replaying:
            layer = model.get_submodule(LAYER)
            if not layer.is_fixed:
                layer.observe(batch.x, self.decay)
        return super().loss(model, batch, context)

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's own amplitude until there is a common one."""
        if self.window == "none" or (layer := model.get_submodule(LAYER)).is_fixed:
            return {}
        return {"amplitude": layer.amplitude}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError unless an amplitude has the layer's form and is ≥ 0."""
        if tensors:
            own = model.get_buffer(f"{LAYER}.amplitude")
            expect_alike("an upload", tensors, {"amplitude": own})
            expect_nonnegative("amplitudes", tensors["amplitude"])

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Average weights and, once, amplitudes; record which clients have it."""
        after, memory = super().aggregate(server, messages), dict(server.memory)
        if "amplitude" in memory:
            now = memory["recipients"].new_tensor([m.client for m in messages])
            memory["recipients"] = torch.cat([memory["recipients"], now]).unique()
        elif first := [m for m in messages if m.upload]:
            memory = weighted_mean(
                [m.upload for m in first], self.aggregation_weights(server, first)
            )
            memory["recipients"] = torch.tensor([], dtype=torch.int64)
        return replace(after, memory=memory)

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """The server's weights and amplitude, the same for all clients."""
        if "amplitude" not in server.memory:
            return server.weights
        state = {"amplitude": server.memory["amplitude"]}
        state["is_fixed"] = torch.tensor(True)
        return server.weights | {f"{LAYER}.{name}": v for name, v in state.items()}
