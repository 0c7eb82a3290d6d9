"""FedBN: every client keeps its own BatchNorm layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from ..core.checks import setting
from ..core.messages import Message, Server, Tensors, weighted_mean
from ..training.context import ClientContext
from ..training.learner import batch_norms, trained_names
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg that does not average BatchNorm layers, which are found by their type.

    Without BatchNorm it is FedAvg. Clients predict with their own layers
    (``personal_accuracy``). The paper does not specify the layers of a new client;
    ``unseen`` does:

    batch:    statistics of the predicted batch, with the initial scale and shift; no
              BatchNorm is sent. Engines evaluate shuffled batches of one domain, 32 to
              63 images each, since a batch of one class has misleading statistics; a
              batch of one image uses the initial ones.
    average:  mean scale, shift and statistics of the last round's clients, which upload
              theirs for this purpose only.
    adapt:    mean scale and shift, statistics of the batch.

    The authors' code finds the layers by "bn" in their names, which misses some.
    FedFA's code evaluates with layers that were never trained; we do not follow it.

    Source: Li et al., ICLR 2021, Algorithm 1; code at med-air/FedBN 2fa38ad.
    """

    unseen: str = setting(  # new clients: batch statistics, means, or both (adapt)
        "batch", one_of=("batch", "average", "adapt")
    )

    stackable: ClassVar[bool] = False

    @property
    def predicts_per_image(self) -> bool:
        """Whether a prediction is independent of the other images of its batch."""
        return self.unseen == "average"

    def adapt(self, model: nn.Module) -> nn.Module:
        """Reset every BatchNorm's counter of batches, also if it is pretrained."""
        for norm in batch_norms(model).values():
            if norm.track_running_stats:
                norm.num_batches_tracked.zero_()
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """Parameters, statistics and counters of every BatchNorm that is trained."""
        prefixes = tuple(f"{name}." if name else "" for name in batch_norms(model))
        return {name for name in trained_names(model) if name.startswith(prefixes)}

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The client's scale and shift, and statistics, if new clients need them."""
        return self.upload_spec(model)

    def upload_spec(self, model: nn.Module) -> Tensors:
        """Nothing, the parameters of the BatchNorm layers, or their whole state."""
        if self.unseen == "batch":
            return {}
        state = model.state_dict()
        if self.unseen == "adapt":
            state = dict(model.named_parameters(remove_duplicate=False))
        names = self.private_names(model) & state.keys()
        return {n: state[n] for n in sorted(names) if state[n].is_floating_point()}

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """Average the shared weights; store the mean of the uploads separately."""
        after = super().aggregate(server, messages)
        uploads = [message.upload for message in messages]
        shares = self.aggregation_weights(server, messages)
        return replace(after, memory=weighted_mean(uploads, shares))

    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The output, (B, M); an untrained BatchNorm uses this batch's statistics."""
        norms = [m for m in batch_norms(model).values() if m.track_running_stats]
        new = [norm for norm in norms if not norm.num_batches_tracked]
        if self.unseen == "average" or len(x) == 1:
            new = []
        for norm in new:  # use the batch's statistics, but do not record them
            norm.training, norm.track_running_stats = True, False
        try:
            return model(x)
        finally:
            for norm in new:
                norm.training, norm.track_running_stats = False, True

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """Shared weights with the client's own layers, or the mean ones."""
        return {**server.weights, **server.memory, **private}
