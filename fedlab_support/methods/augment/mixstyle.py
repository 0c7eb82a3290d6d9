"""MixStyle: mix the channel statistics of two pictures, and keep the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import setting
from ...federation.samples import Batch
from ...models.layers.mixing import Pairs, StyleMixing
from ...training.context import ClientContext
from ...training.settings import Augmentation
from .common import STAGES, are_stages, happens, pair, place


@dataclass(frozen=True)
class MixStyle(Augmentation):
    """Mix mean and deviation of each channel with those of another picture.

    Each stage draws whether it acts, its pairs, and one lambda ~ Beta(alpha, alpha) per
    picture; all passes of a step share the draw. Partners are random ones of the same
    client, so the official code's cross-domain batches have no meaning here. A ResNet's
    stage 1 is what comes before its blocks: ``stages=(2, 3)`` is the paper's.

    Source: Zhou, Yang, Qiao, Xiang, ICLR 2021; code at 16f7cf1.
    """

    p: float = setting(  # chance that a stage acts on a batch; 0: never
        0.5, at_least=0, at_most=1
    )
    alpha: float = setting(0.1, at_least=0)  # of Beta; 0: no mixing
    stages: tuple[int, ...] = setting(  # behind which features are mixed; U-Nets: 1…3
        (1, 2), holds=are_stages, allowed=STAGES
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        """One layer behind each stage."""
        return place(model, self.stages, lambda _: StyleMixing())

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """Draw for each stage; pictures and labels stay."""
        for stage in self.stages:
            pairs = None
            if self.alpha > 0 and happens(self.p, rng):
                shares = rng.beta(self.alpha, self.alpha, len(batch.x))
                pairs = Pairs.draw(batch.x, shares, rng)
            pair(model, stage, pairs)
        return batch
