"""Mixup: learn from blends of two pictures and of their labels."""

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
    """Blend each picture of a batch with another one, and the labels alike.

    One lambda ~ Beta(alpha, alpha) per batch and a permutation of it, as in the
    official code; the paper defines one lambda per pair. Masks are blended alike.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, ICLR 2018; code at eaff31a.
    """

    alpha: float = setting(  # of Beta; large: halves; 0: no mixing. 256 pixels: 0.2
        1.0, at_least=0
    )
    p: float = setting(  # share of the batches that are mixed; 0: no mixing
        1.0, at_least=0, at_most=1
    )

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
