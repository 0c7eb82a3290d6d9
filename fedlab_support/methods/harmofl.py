"""HarmoFL: pictures of one amplitude for all clients, and sharpness-aware steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, expect_alike, weighted_mean
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
    """FedAvg on pictures whose Fourier amplitude is the federation's, with SAM's steps.

    In a client's first round its amplitude follows its batches; the server's mean of
    these is what everybody uses from then on. It goes up in that round and comes down
    once to each client, of frequency 0 only with ``window="dc"``. ``alpha=0,
    window="none"`` is FedAvg of the same weighting. FedFA+ calls it FedHarmo.

    The paper replaces the whole amplitude: ``window="full"``, which takes all contrast
    from the pictures. The authors' code replaces the brightness only, and its decay is
    rounded to 0; we follow it in the first and the paper in the second. Its second
    pass moves running statistics as well; here only the first does.

    Source: Jiang, Wang, Dou, AAAI 2022; code at med-air/HarmoFL 63182fe.
    """

    weighting: str = "equal"  # as the authors' code averages
    window: str = setting(  # frequencies replaced: "dc", "full", or "none" as in FedAvg
        "dc", one_of=("dc", "full", "none")
    )
    decay: float = setting(  # what a batch counts in the running amplitude
        0.1, at_least=0, at_most=1
    )
    alpha: float = setting(  # radius of the perturbation, SAM's rho; 0 gives SGD
        0.05, at_least=0
    )

    stackable: ClassVar[bool] = False
    predicts_personally: ClassVar[bool] = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """Put the amplitude layer ahead of the network."""
        if self.window != "none":
            layer = AmplitudeNorm(model.image_shape, whole=self.window == "full")
            insert_entry(model, "harmony", layer)
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """The layer's state, which travels on its own."""
        return {name for name in model.state_dict() if name.startswith(f"{LAYER}.")}

    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """The common amplitude, if there is one that this client has not got yet."""
        memory = server.memory
        if "amplitude" not in memory or client_id in memory["told"]:
            return server.shared
        return server.shared | {"amplitude": memory["amplitude"]}

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Use the amplitude that was told, for good."""
        if "amplitude" in context.received.shared:
            model.get_submodule(LAYER).fix(context.received.shared["amplitude"])
        return {}

    def optimiser(self, named_params, training: LocalTraining) -> SAM:
        """SAM of radius alpha."""
        return SAM(super().optimiser(named_params, training), self.alpha)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The task's loss; until the amplitude is fixed it follows the batch first."""
        if self.window != "none" and not context.is_replaying:
            layer = model.get_submodule(LAYER)
            if not layer.is_fixed:
                layer.observe(batch.x, self.decay)
        return super().loss(model, batch, context)

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's own amplitude, as long as there is no common one."""
        if self.window == "none" or (layer := model.get_submodule(LAYER)).is_fixed:
            return {}
        return {"amplitude": layer.amplitude}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """An amplitude is like the layer's, and not negative; ValueError otherwise."""
        if tensors:
            own = model.get_buffer(f"{LAYER}.amplitude")
            expect_alike("a report", tensors, {"amplitude": own})
            if (least := tensors["amplitude"].min()) < 0:
                raise ValueError(f"amplitudes must be ≥ 0, found {least:.3g}")

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """Average weights and, once, amplitudes; note who knows the common one."""
        after, memory = super().aggregate(server, messages), dict(server.memory)
        if "amplitude" in memory:
            now = memory["told"].new_tensor([m.client for m in messages])
            memory["told"] = torch.cat([memory["told"], now]).unique()
        elif said := [m for m in messages if m.upload]:
            memory = weighted_mean(
                [m.upload for m in said], self.aggregation_weights(server, said)
            )
            memory["told"] = torch.tensor([], dtype=torch.int64)
        return replace(after, memory=memory)

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """The server's weights and amplitude, the same for everybody."""
        if "amplitude" not in server.memory:
            return server.weights
        state = {"amplitude": server.memory["amplitude"]}
        state["is_fixed"] = torch.tensor(True)
        return server.weights | {f"{LAYER}.{name}": v for name, v in state.items()}
