"""FedAvg, and with it the contract of every method: the hooks of a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import expect, expect_flags
from ..core.messages import Message, Server, Tensors, weighted_mean
from ..federation.federation import Federation
from ..federation.samples import Batch
from ..training.local import ClientContext, LocalTraining, build_optimiser


@dataclass(frozen=True)
class FedAvg:
    """Average the weights of clients that each trained for a while.

    A method is its difference from this class: it subclasses FedAvg, adds its settings
    as fields, and overrides the hooks that its paper changes. The hooks stand here in
    the order in which a run calls them. A method holds no state: what must last lives
    in ``server.memory``, ``context.memory`` or the model's private names.

    Source: McMahan et al., AISTATS 2017, Algorithm 1.
    """

    weighting: str = "examples"  # or "equal": each client counts the same

    stackable: ClassVar[bool] = True  # may the stacked engine train it?
    needs_classes: ClassVar[bool] = False  # each picture's one class, beside the task
    predicts_personally: ClassVar[bool] = True  # with private weights, if there are any
    predicts_alone: ClassVar[bool] = True  # a picture, whatever else is in its batch
    keeps_back: ClassVar[float] = 0.0  # share of its samples that a client needs as val

    def __post_init__(self) -> None:
        known = ("examples", "equal")
        expect(self, "weighting", "'examples' or 'equal'", self.weighting in known)
        expect_flags(self)

    @property
    def label(self) -> str:
        """What tables and curves call the method."""
        return type(self).__name__

    # ---- once, before round 1 -------------------------------------------------------
    def check_federation(self, federation: Federation) -> None:
        """Raise ValueError when the method cannot train these clients."""
        if self.needs_classes and federation.data.has_masks:
            raise ValueError(
                f"{self!r} needs the one class of every picture, found masks in "
                f"{federation.data.name!r}; take pictures with classes, or a method "
                "that has no use for them, as FedAvg()"
            )

    def adapt(self, model: nn.Module) -> nn.Module:
        """Which network is trained; ``model.image_shape`` is that of a picture."""
        return model

    def private_names(self, model: nn.Module) -> set[str]:
        """Names of the model's state that stay with the client and never travel."""
        return set()

    def client_setup(self, model: nn.Module, context: ClientContext) -> Tensors:
        """What a client says once, before round 1; by default nobody is visited."""
        return {}

    def server_setup(self, uploads: dict[int, Tensors]) -> Tensors:
        """What the server makes of all introductions: its first ``memory``."""
        return {}

    def setup_reply(self, pooled: Tensors, client_id: int) -> Tensors:
        """What a client gets back, once; it lies in ``context.memory``."""
        return {}

    # ---- every round, down ----------------------------------------------------------
    def client_broadcast(self, server: Server, client_id: int) -> Tensors:
        """What this client is told beside the weights."""
        return server.shared

    # ---- every round, on the client -------------------------------------------------
    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Before the first step, model as received, in evaluation mode.

        Set layer state from what was told, measure the received model; what comes back
        joins the report.
        """
        return {}

    def optimiser(self, named_params, training: LocalTraining) -> Optimizer:
        """A fresh optimiser for this visit."""
        return build_optimiser(named_params, training)

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """The local objective on one batch, a scalar."""
        return context.task.loss(model(batch.x), batch.y)

    def after_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """What is said besides the weights, after training, in evaluation mode."""
        return {}

    # ---- every round, on the server -------------------------------------------------
    def upload_spec(self, model: nn.Module) -> Tensors | None:
        """What a report must be like in names, shapes and types; None: not compared.

        ``model``: as adapted, before round 1. Who overrides `report` says it here.
        """
        mine, base = type(self), FedAvg
        return (
            {}
            if (mine.before_training, mine.after_training)
            == (base.before_training, base.after_training)
            else None
        )

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Look at an introduction or report; ValueError leaves that client out.

        ``model``: as adapted; it knows its ``image_shape`` and ``num_classes``. Where
        the form of reports is empty, they have been looked at.
        """

    def aggregation_weights(
        self, server: Server, messages: Sequence[Message]
    ) -> Tensor:
        """One weight per message, float64 (m,), summing to 1."""
        if self.weighting == "equal":
            return torch.full((len(messages),), 1 / len(messages), dtype=torch.float64)
        sizes = torch.tensor([m.num_examples for m in messages], dtype=torch.float64)
        return sizes / sizes.sum()

    def aggregate(self, server: Server, messages: Sequence[Message]) -> Server:
        """The server after the round; messages come sorted by client."""
        shares = self.aggregation_weights(server, messages)
        mean = weighted_mean([m.weights for m in messages], shares)
        return replace(server, weights={**server.weights, **mean})

    def server_metrics(self, server: Server, messages: Sequence[Message]) -> Tensors:
        """What a history keeps of this round's decisions, as after `aggregate`.

        Name of a metric → a number per message, (m,); nothing of it travels.
        """
        return {}

    # ---- evaluation -----------------------------------------------------------------
    def predict(self, model: nn.Module, x: Tensor) -> Tensor:
        """The output, (B, M), for normalised pictures (B, C, H, W)."""
        return model(x)

    def evaluation_state(
        self, server: Server, private: Tensors, client_id: int | None
    ) -> Tensors:
        """The weights that a client's predictions use.

        ``private``: the client's private weights, empty before its first visit;
        ``client_id`` None stands for a client never seen.
        """
        return {**server.weights, **private}
