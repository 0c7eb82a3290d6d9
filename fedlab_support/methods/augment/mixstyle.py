"""MixStyle: mix the channel statistics of two images and keep the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import setting
from ...federation.samples import Batch
from ...models.layers.mixing import Pairs, StyleMixing
from ...models.stages import STAGES, are_stages
from ...training.context import ClientContext
from ...training.settings import Augmentation
from .common import happens, pair, place


@dataclass(frozen=True)
class MixStyle(Augmentation):
    """Mix mean and deviation of each channel with those of another image.

    For each stage we draw whether it mixes, the pairs, and one lambda ~ Beta(alpha,
    alpha) per image; all passes of a step share the draw. Partners are random images of
    the same client, so there is no counterpart of the official code's cross-domain
    batches. Stage 1 of a ResNet is everything before its blocks, so the paper's stages
    are ``stages=(2, 3)``.

    Source: Zhou, Yang, Qiao, Xiang, ICLR 2021; code at 16f7cf1.
    """

    p: float = setting(0.5, at_least=0, at_most=1)  # chance that a stage mixes
    alpha: float = setting(0.1, at_least=0)  # of Beta; 0 mixes nothing
    stages: tuple[int, ...] = setting(  # after which features are mixed; U-Nets: 1…3
        (1, 2), holds=are_stages, allowed=STAGES
    )

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert a layer after each stage."""
        return place(model, self.stages, lambda _: StyleMixing())

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """Draw pairs for each stage; images and labels do not change."""
        for stage in self.stages:
            pairs = None
            if self.alpha > 0 and happens(self.p, rng):
                shares = rng.beta(self.alpha, self.alpha, len(batch.x))
                pairs = Pairs.draw(batch.x, shares, rng)
            pair(model, stage, pairs)
        return batch
