"""Shared by methods that weight clients by their loss under the received model."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ...core.messages import Message, Tensors, expect_nonnegative
from ...training.context import ClientContext


class ReceivedLoss:
    """Every client uploads its loss F_k(w) under the received weights, 8 bytes.

    A mix-in: list it before FedAvg among a method's bases. As in the papers, the loss
    is the mean over the client's training data, in evaluation mode, before the first
    step; FedGCR's AFL, q-FFL and TERM average over batches during training.
    """

    stackable: ClassVar[bool] = True

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """The loss of the model as received, a float64 scalar."""
        return {"loss": context.mean_loss(model, context.client.train)}

    def upload_spec(self, model: nn.Module) -> Tensors:
        """One number, a scalar in double precision."""
        value = next(model.parameters())
        return {"loss": value.new_zeros((), dtype=torch.float64)}

    def check_upload(self, tensors: Tensors, model: nn.Module) -> None:
        """Raise ValueError for a loss, or another single number, below 0."""
        for name, value in tensors.items():
            if value.ndim == 0:
                expect_nonnegative(repr(name), value)


def numbers(messages: list[Message], name: str) -> Tensor:
    """The number that each client uploaded as ``name``, float64 (m,)."""
    values = [float(message.upload[name]) for message in messages]
    return torch.tensor(values, dtype=torch.float64)
