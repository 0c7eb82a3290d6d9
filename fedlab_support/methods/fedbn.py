"""FedBN: every client keeps its own batch normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, weighted_mean
from ..training.context import ClientContext
from ..training.learner import frozen_modules, trained_names
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg that never averages BatchNorm layers, chosen by their type.

    Without BatchNorm in the network it is FedAvg. Clients predict with their own layers
    (``personal_accuracy``); with what a client never seen does, the paper leaves open:

    - ``unseen="batch"``: the statistics of the batch to be predicted, with the initial
      scale and shift; no BatchNorm travels. Engines then mix the pictures of a domain,
      32 to 63 at once: of one class alone, as files lie in folders, statistics mislead.
      A single picture keeps the initial ones.
      The default, because it adds nothing to what FedBN sends.
    - ``unseen="average"``: scale, shift and statistics are the mean over the clients of
      the last round, which report theirs for this and nothing else.
    - ``unseen="adapt"``: mean scale and shift, statistics of the batch.

    The authors' code finds the layers by "bn" in their names, which misses some.
    FedFA's evaluates with layers that nobody trained; we do not follow it.

    Source: Li et al., ICLR 2021, Algorithm 1; code at med-air/FedBN 2fa38ad.
    """

    unseen: str = setting(  # or "average", or "adapt"
        "batch", one_of=("batch", "average", "adapt")
    )

    stackable: ClassVar[bool] = False

    @property
    def predicts_per_image(self) -> bool:
        """Not by the statistics of a batch, which is therefore of one domain, mixed."""
        return self.unseen == "average"

    def adapt(self, model: nn.Module) -> nn.Module:
        """Let every BatchNorm count its batches from 0, also where it is pretrained."""
        for norm in batch_norms(model).values():
            if norm.track_running_stats:
                norm.num_batches_tracked.zero_()
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """Parameters, statistics and counters of every BatchNorm that is trained."""
        layers = batch_norms(model).items()
        prefixes = tuple(f"{name}." if name else "" for name, _ in layers)
        return {name for name in trained_names(model) if name.startswith(prefixes)}

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Own scale and shift, and statistics, if clients never seen need them."""
        return self.upload_spec(model)

    def upload_spec(self, model: nn.Module) -> Tensors:
        """The model's own: nothing, its parameters, or its whole state."""
        own = {"batch": {}, "adapt": dict(model.named_parameters())}
        state = own.get(self.unseen, model.state_dict())
        names = self.private_names(model) & state.keys()
        return {n: state[n] for n in sorted(names) if state[n].is_floating_point()}

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """Average what is shared; the mean of the reports is kept aside."""
        after = super().aggregate(server, messages)
        said = [message.upload for message in messages]
        return replace(
            after,
            memory=weighted_mean(said, self.aggregation_weights(server, messages)),
        )

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The output, (B, M); a BatchNorm that never saw a batch looks at this one."""
        norms = [m for m in batch_norms(model).values() if m.track_running_stats]
        new = [norm for norm in norms if not norm.num_batches_tracked]
        if self.unseen == "average" or len(x) == 1:
            new = []
        for norm in new:  # trains on the batch, but learns nothing from it
            norm.training, norm.track_running_stats = True, False
        try:
            return model(x)
        finally:
            for norm in new:
                norm.training, norm.track_running_stats = False, True

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """Shared weights, with the client's own layers, or what stands in for them."""
        return {**server.weights, **server.memory, **private}


def batch_norms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Every BatchNorm that is trained, by each of its names."""
    frozen = frozen_modules(model)
    return {
        name: module
        for name, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, _BatchNorm) and module not in frozen
    }
