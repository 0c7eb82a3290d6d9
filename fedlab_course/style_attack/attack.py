"""The attack on styles: a run whose only client, the attacker, holds public images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor, nn
from torch.nn import functional as F

from fedlab_support.core.checks import setting
from fedlab_support.core.messages import Tensors
from fedlab_support.data import DomainData
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.samples import Batch
from fedlab_support.methods import FedAvg
from fedlab_support.training.context import ClientContext

from .network import perceptual_distance


@dataclass(frozen=True)
class StyleInversion(FedAvg):
    """Learn to reconstruct images from their styles, on images that are public.

    Trains a ``StyleInverter`` on colours (see ``public``). The images under attack are
    not used for training.

    Source: Chen et al. (CCST), WACV 2023, supplement; Nguyen et al. (FISC), 2024,
    section "Security Analysis". The paper describes a GAN; its code trains a generator
    by regression, without a discriminator, and so do we.
    """

    distance: str = setting(  # or "perceptual", by the style network
        "mse", one_of=("mse", "perceptual")
    )
    jointly: bool = True  # styles are made white; False: each number scaled by itself

    stackable: ClassVar[bool] = False

    def before_training(self, model: nn.Module, context: ClientContext) -> Tensors:
        """Fit the whitening to all styles, once; they do not change."""
        model.look_at(self._styles(model, context), self.jointly)
        return {}

    def loss(self, model: nn.Module, batch: Batch, context: ClientContext) -> Tensor:
        """E d(R(S(x)), x)."""
        rebuilt = model.rebuild(self._styles(model, context, batch))
        if self.distance == "mse":
            return F.mse_loss(rebuilt, batch.x)
        return perceptual_distance(model.levels(rebuilt), model.levels(batch.x)).mean()

    def _styles(
        self, model: nn.Module, context: ClientContext, batch: Batch | None = None
    ):
        """Styles of a batch, or of all training images, (N, 2, C)."""
        return context.kept("styles", lambda each: model.styles(each.x), batch)


def public(data: DomainData, rows: np.ndarray | None = None) -> Federation:
    """One client with the images at ``rows``, by default all, as colours in [0, 1].

    No image is set aside for testing, since the attacker needs none.
    """
    data = data if rows is None else data.select(rows)
    nothing, plain = (0.0,) * len(data.mean), (1.0,) * len(data.std)
    none = np.zeros(len(data), dtype=bool)
    data = replace(data, mean=nothing, std=plain, is_test=none)
    return Federation.build(data, [np.arange(len(data))])
