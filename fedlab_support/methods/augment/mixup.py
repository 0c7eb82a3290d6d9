"""Mixup: learn from blends of two pictures and of their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

from ...core.checks import expect_fractions, expect_not_negative
from ...federation.samples import Batch
from ...models.layers.mixing import Pairs
from ...training.local import Augmentation, ClientContext
from .common import happens, mixed_labels


@dataclass(frozen=True)
class Mixup(Augmentation):
    """Blend each picture of a batch with another one, and the labels alike.

    One lambda ~ Beta(alpha, alpha) per batch and a permutation of it, as in the
    official code; the paper defines one lambda per pair. Masks are blended alike.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018; code at eaff31a.
    """

    alpha: float = 1.0  # of Beta, ≥ 0; large: halves; 0: no mixing. 256 pixels: 0.2
    p: float = 1.0  # share of the batches that are mixed, in 0…1; 0: no mixing

    def __post_init__(self) -> None:
        expect_not_negative(self, "alpha")
        expect_fractions(self, "p")

    @property
    def mixes_labels(self) -> bool:
        """Unless nothing is mixed at all."""
        return self.alpha > 0 and self.p > 0

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """x~_i = lambda x_i + (1 - lambda) x_pi(i), and y~ alike."""
        if not self.mixes_labels or not happens(self.p, rng):
            return batch
        share = rng.beta(self.alpha, self.alpha)
        pairs = Pairs.draw(batch.x, share, rng)
        return batch._replace(
            x=pairs.mix(batch.x), y=mixed_labels(batch, pairs, context)
        )
