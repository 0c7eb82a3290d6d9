"""Manifold mixup: mix features after a stage that is drawn for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from ...core.checks import expect, setting
from ...federation.samples import Batch
from ...models.layers.mixing import FeatureMixing, Pairs
from ...models.stages import are_stages
from ...training.context import ClientContext
from ...training.settings import Augmentation
from .common import NAME, mixed_labels, pair, place


@dataclass(frozen=True)
class ManifoldMixup(Augmentation):
    """Mix the output of one stage, drawn for each batch, and the labels.

    Features that bypass the stage, as a U-Net's skip connections, are mixed as well.
    Stage 1 of a ResNet is everything before its blocks, so the paper's stages are
    ``stages=(0, 2, 3)``.

    The official code trains with binary cross-entropy on the softmax; here it is the
    task's loss on mixed labels, as in the paper.

    Source: Verma et al., ICML 2019; code at 870ef77.
    """

    alpha: float = setting(1.0, at_least=0)  # of Beta; 0 mixes nothing; official: 2
    stages: tuple[int, ...] = setting(  # to draw from; 0 stands for the images
        (0, 1, 2),
        holds=partial(are_stages, first=0),
        allowed="numbers of stages, 0 for the images, as in (0, 1)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_even = len(set(self.stages)) == len(self.stages)
        expect(self, "stages", "numbers that are drawn equally often", is_even)

    @property
    def mixes_labels(self) -> bool:
        """Whether labels become probabilities."""
        return self.alpha > 0

    @property
    def hidden(self) -> list[int]:
        """The stages that are followed by a layer."""
        return [stage for stage in self.stages if stage > 0]

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert a layer after each stage that may be drawn, and on each bypass."""
        for bypass in self._bypasses(model):
            bypass.add_module(NAME, FeatureMixing())
        return place(model, self.hidden, lambda _: FeatureMixing())

    def apply(
        self,
        model: nn.Module,
        batch: Batch,
        context: ClientContext,
        rng: np.random.Generator,
    ) -> Batch:
        """h~_i = lambda h_i + (1 - lambda) h_pi(i) at stage k, and y~ alike."""
        if not self.mixes_labels:
            return batch
        share = rng.beta(self.alpha, self.alpha)
        pairs = Pairs.draw(batch.x, share, rng)
        k = self.stages[rng.integers(len(self.stages))]
        for stage in self.hidden:
            pair(model, stage, pairs if stage == k else None)
        for number, bypass in enumerate(self._bypasses(model), 1):
            bypass.get_submodule(NAME).pairs = pairs if number <= k else None
        x = pairs.mix(batch.x) if k == 0 else batch.x
        return batch._replace(x=x, y=mixed_labels(batch, pairs, context))

    def _bypasses(self, model: nn.Module) -> Sequence[nn.Sequential]:
        """The model's skip connections up to the deepest stage that may be drawn."""
        return getattr(model, "bypasses", ())[: max(self.stages)]
