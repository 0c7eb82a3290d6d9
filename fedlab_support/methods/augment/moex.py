"""MoEx: exchange the moments of features, and give their owner a share of the label."""

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
    """Give the features of a picture the moments of another one's.

    The loss is ``label_share`` CE(y) + (1 - ``label_share``) CE of the other's label.
    With masks it is soft Dice against both, mixed, which is close to that and no more.
    The official CIFAR code has ``p=0.25, label_share=0.5``, and passes both pictures
    forward, which moves running statistics twice; here there is one pass.

    Source: Li, Wu, Lim, Belongie, Weinberger, CVPR 2021; code at 016571c.
    """

    p: float = setting(  # share of the batches with an exchange; 0: none
        0.5, at_least=0, at_most=1
    )
    label_share: float = setting(  # of the picture's own label; 1 keeps labels
        0.9, at_least=0, at_most=1
    )
    stage: int = setting(1, at_least=1)  # behind which moments are exchanged
    moments: str = setting(  # over channels; or "in": positions; "ln": both
        "pono", one_of=MOMENTS
    )
    positive_only: bool = False  # True: moments of what is above 0, biased

    @property
    def mixes_labels(self) -> bool:
        """Unless nothing is exchanged, or the other's label does not count."""
        return self.p > 0 and self.label_share < 1

    def adapt(self, model: nn.Module) -> nn.Module:
        """One layer behind the stage."""
        layer = MomentExchange(self.moments, self.positive_only)
        return place(model, (self.stage,), lambda _: layer)

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """h~_i = sigma_pi(i) (h_i - mu_i) / sigma_i + mu_pi(i), labels by share."""
        pairs = None
        if happens(self.p, rng):
            pairs = Pairs.draw(batch.x, self.label_share, rng)
        pair(model, self.stage, pairs)
        if pairs is None or not self.mixes_labels:
            return batch
        return batch._replace(y=mixed_labels(batch, pairs, context))
