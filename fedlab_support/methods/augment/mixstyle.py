"""MixStyle: mix the channel statistics of two pictures, and keep the labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import expect, expect_fractions, expect_not_negative
from ...federation.samples import Batch
from ...models.layers.mixing import Pairs, StyleMixing
from ...training.local import Augmentation, ClientContext
from .common import are_stages, happens, pair, place


@dataclass(frozen=True)
class MixStyle(Augmentation):
    """Mix mean and deviation of each channel with those of another picture.

    Each stage draws whether it acts, its pairs, and one lambda ~ Beta(alpha, alpha) per
    picture; all passes of a step share the draw. Partners are random ones of the same
    client, so the official code's cross-domain batches have no meaning here. A ResNet's
    stage 1 is what comes before its blocks: ``stages=(2, 3)`` is the paper's.

    Source: Zhou, Yang, Qiao, Xiang, ICLR 2021; code at 16f7cf1.
    """

    p: float = 0.5  # chance that a stage acts on a batch, in 0…1; 0: never
    alpha: float = 0.1  # of Beta, ≥ 0; 0: no mixing
    stages: tuple[int, ...] = (1, 2)  # behind which features are mixed; U-Nets: 1…3

    def __post_init__(self) -> None:
        expect_fractions(self, "p")
        expect_not_negative(self, "alpha")
        allowed = "numbers of stages from 1, as in (1, 2)"
        expect(self, "stages", allowed, are_stages(self.stages))

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
