"""MoEx: exchange moments of features between images, and mix the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import setting
from ...federation.samples import Batch
from ...models.layers.mixing import MOMENTS, MomentExchange, Pairs
from ...training.context import ClientContext
from ...training.settings import Augmentation
from .common import happens, mixed_labels, pair, place


@dataclass(frozen=True)
class MoEx(Augmentation):
    """Replace the moments of an image's features by those of another image.

    The loss is ``label_share`` CE(y) + (1 - ``label_share``) CE of the other's label.
    For masks it is the soft Dice against the mixed masks, which is only close to that.
    The official CIFAR code has ``p=0.25, label_share=0.5`` and passes both images
    forward, which updates running statistics twice; here there is one pass.

    Source: Li, Wu, Lim, Belongie, Weinberger, CVPR 2021; code at 016571c.
    """

    p: float = setting(0.5, at_least=0, at_most=1)  # share of the batches
    label_share: float = setting(0.9, at_least=0, at_most=1)  # of its own label
    stage: int = setting(1, at_least=1)  # after which moments are exchanged
    moments: str = setting("pono", one_of=MOMENTS)  # "pono": channels, "in": positions

    @property
    def mixes_labels(self) -> bool:
        """Whether labels become probabilities."""
        return self.p > 0 and self.label_share < 1

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert a layer after the stage."""
        layer = MomentExchange(self.moments)
        return place(model, (self.stage,), lambda _: layer)

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """h~_i = sigma_pi(i) (h_i - mu_i) / sigma_i + mu_pi(i), and mix labels."""
        pairs = None
        if happens(self.p, rng):
            pairs = Pairs.draw(batch.x, self.label_share, rng)
        pair(model, self.stage, pairs)
        if pairs is None or not self.mixes_labels:
            return batch
        return batch._replace(y=mixed_labels(batch, pairs, context))
