"""Mixup: train on convex combinations of images and of their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import setting
from ...federation.samples import Batch
from ...models.layers.mixing import Pairs
from ...training.context import ClientContext
from ...training.settings import Augmentation
from .common import happens, mixed_labels


@dataclass(frozen=True)
class Mixup(Augmentation):
    """Mix each image of a batch with another one, and their labels or masks.

    Each batch draws one lambda ~ Beta(alpha, alpha) and a permutation, as in the
    official code; the paper defines one lambda per pair.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018; code at eaff31a.
    """

    alpha: float = setting(1.0, at_least=0)  # of Beta; 0 mixes nothing
    p: float = setting(1.0, at_least=0, at_most=1)  # share of the batches

    @property
    def mixes_labels(self) -> bool:
        """Whether labels become probabilities."""
        return self.alpha > 0 and self.p > 0

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """x~_i = lambda x_i + (1 - lambda) x_pi(i), and the same for y."""
        if not self.mixes_labels or not happens(self.p, rng):
            return batch
        share = rng.beta(self.alpha, self.alpha)
        pairs = Pairs.draw(batch.x, share, rng)
        return batch._replace(
            x=pairs.mix(batch.x), y=mixed_labels(batch, pairs, context)
        )
