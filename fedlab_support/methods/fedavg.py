"""FedAvg, and with it the contract of every method: the hooks of a round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import Settings, setting
from ..core.messages import Message, Server, Tensors, weighted_mean
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..training.context import ClientContext
from ..training.optimisers import Fused
from ..training.settings import LocalTraining, build_optimiser


@dataclass(frozen=True)
class FedAvg(Settings):
    """Average the weights of clients after local training.

    Every method is its difference from this class: it subclasses FedAvg, adds its
    settings as fields, and overrides the hooks that its paper changes. The hooks are
    listed here in the order in which a run calls them. A method holds no state; what
    has to last lives in ``server.memory``, in ``context.memory`` or in the private part
    of the model.

    A class that overrides ``loss`` or ``before_training`` is stacked (trained for all
    clients at once) only if it sets ``stackable = True`` itself. It may do so if the
    loss reads only the parameters, the batch's x and y, and the broadcast that all
    clients share, and takes means over samples with ``context.task.loss`` only, and if
    ``before_training`` changes nothing that the loss reads.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    weighting: str = setting(  # "equal": all clients count alike
        "examples", one_of=("examples", "equal")
    )

    stackable: ClassVar[bool] = True  # whether the stacked engine can train it
    needs_classes: ClassVar[bool] = False  # needs one class per sample, not masks
    needs_images: ClassVar[bool] = False  # uint8 (N, C, H, W), not features
    predicts_personally: ClassVar[bool] = True  # with private weights, if there are any
    predicts_per_image: ClassVar[bool] = True  # not depending on the rest of a batch
    val_share: ClassVar[float] = 0.0  # validation share that each client needs
    needs_parts: ClassVar[tuple[str, ...]] = ()  # that the network must have

    @property
    def label(self) -> str:
        """Name of the method in tables and figures."""
        return type(self).__name__

    @classmethod
    def overrides(cls, hook: str) -> bool:
        """Whether the method replaces a hook, so that the default can be skipped."""
        return getattr(cls, hook) is not getattr(FedAvg, hook)

    # ---- once, before round 1 -------------------------------------------------------
    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError if the method cannot train on this federation."""
        data = federation.data
        if self.needs_classes:
            data.classes_for(repr(self))
        if self.needs_images:
            data.images_for(repr(self))

    def check_training(self, training: LocalTraining) -> None:
        """Raise ValueError if the method cannot train with these settings."""

    def adapt(self, model: nn.Module) -> nn.Module:
        """Return the network to train, which may be ``model`` changed in place.

        model:  as its factory built it, with the attributes ``image_shape``, (C, H, W)
                of images or the shape of another input, and ``num_classes``.
        """
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """Names of the model's state that stays with the client."""
        return set()

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """A one-time upload before round 1; clients are visited only if overridden."""
        return {}

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """The server's first ``memory``, from the set-up uploads of all clients."""
        return {}

    def setup_reply(self, memory: Tensors, client_id: int) -> Tensors:
        """A one-time reply to a client, stored in its ``context.memory``."""
        return {}

    # ---- every round, down ----------------------------------------------------------
    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """What this client receives besides the weights."""
        return server.shared

    # ---- every round, on the client -------------------------------------------------
    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Called with the model as received, in evaluation mode, before the first step.

        May set layer state from the broadcast and measure the received model. The
        result is part of the upload.
        """
        return {}

    def optimiser(self, named_params, training: LocalTraining) -> Fused | Optimizer:
        """A new optimiser for this visit."""
        return build_optimiser(named_params, training)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The local objective on one batch, a scalar."""
        return context.task.loss(model(batch.x), batch.y)

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """What is uploaded besides the weights; called in evaluation mode.

        May change the model: the weights that it holds afterwards are uploaded.
        """
        return {}

    # ---- every round, on the server -------------------------------------------------
    def upload_spec(self, model: nn.Module) -> Tensors | None:
        """Expected names, shapes and types of an upload; None if they are not known.

        model: as adapted, before round 1.
        """
        uploads = self.overrides("before_training") or self.overrides("after_training")
        return None if uploads else {}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError to leave out the client that sent this upload.

        Called for set-up uploads and for uploads, unless their specification is empty.
        model: as adapted; it has ``image_shape`` and ``num_classes``.
        """

    def check_setup(self, tensors: Tensors, model: nn.Module, most: int) -> None:
        """As `check_upload`, for set-up uploads.

        most: the client's number of training samples.
        """
        self.check_upload(tensors, model)

    def aggregation_weights(self, server: Server, messages: list[Message]) -> Tensor:
        """One weight per message, float64 (m,), summing to 1."""
        if self.weighting == "equal":
            return torch.full((len(messages),), 1 / len(messages), dtype=torch.float64)
        sizes = torch.tensor([m.num_examples for m in messages], dtype=torch.float64)
        return sizes / sizes.sum()

    def aggregate(self, server: Server, messages: list[Message]) -> Server:
        """The server after the round; messages are sorted by client."""
        weights = self.aggregation_weights(server, messages)
        mean = weighted_mean([m.weights for m in messages], weights)
        return replace(server, weights={**server.weights, **mean})

    def server_metrics(self, server: Server, messages: list[Message]) -> Tensors:
        """Metrics for the history, called after `aggregate`; nothing of it is sent.

        Returns one number per message, (m,), by name of the metric.
        """
        return {}

    # ---- evaluation -----------------------------------------------------------------
    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The output, (B, M), for normalised images (B, C, H, W) or other inputs."""
        return model(x)

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """The weights that predict for a client.

        private:   the client's private weights, empty before its first visit.
        client_id: None stands for a client that never participated.
        """
        return {**server.weights, **private}
