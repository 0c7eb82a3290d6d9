"""What methods share that weigh clients by how badly the received model serves them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...core.messages import Message, Tensors
from ...training.context import ClientContext


class ReceivedLoss:
    """Every client says its loss F_k(w) under the weights that it received, 8 bytes.

    Stands before FedAvg among a method's bases. The loss is the mean over all training
    data of the client, in evaluation mode, before the first step. FedGCR's branches of
    AFL, q-FFL and TERM take the mean over batches while the model moves; the papers
    take the received model, and so do we.
    """

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The loss of the model as received, a float64 scalar."""
        return {"loss": context.mean_loss(model, context.client.train)}

    def upload_spec(self, model: nn.Module) -> Tensors:
        """One number, a scalar in double precision."""
        value = next(model.parameters())
        return {"loss": value.new_zeros((), dtype=torch.float64)}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """All that is said are single numbers, finite and ≥ 0; ValueError if not."""
        for name, value in tensors.items():
            if value.numel() != 1 or not 0 <= value < math.inf:
                raise ValueError(
                    f"{name!r} must be one number, finite and ≥ 0, found {value}; a "
                    "loss below 0 has no place in weights that must not be negative"
                )


def numbers(messages: Sequence[Message], name: str) -> Tensor:
    """What each client reported as ``name``, float64 (m,)."""
    said = [float(message.upload[name]) for message in messages]
    return torch.tensor(said, dtype=torch.float64)
