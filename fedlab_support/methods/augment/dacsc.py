"""DAC-SC: normalise the style of features by their Fourier amplitude."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from ...core.checks import setting
from ...models.layers.frequency import CCNorm, SCNorm
from ...models.stages import STAGES, are_stages, stage_numbers, widths_of
from ...training.learner import batch_norms
from ...training.settings import Augmentation
from .common import place


@dataclass(frozen=True)
class DACSC(Augmentation):
    """Add SCNorm after the first stages; optionally replace BatchNorm by CCNorm.

    The layers are part of the network, also in evaluation; their parameters are
    averaged as all others, 4 (2C + 2) bytes per SCNorm and 8 per CCNorm each way. The
    paper has CCNorm in the shortcuts of residual networks; here it replaces the
    BatchNorm of stages 2 and 3. Stage 1 of a ResNet is everything before its blocks, so
    the paper's stages are ``stages=(2, 3, 4)``.

    Source: Lee, Bae, Kim, CVPR 2023; code known from copies only.
    """

    stages: tuple[int, ...] | None = setting(  # with SCNorm; None: the first three
        None, holds=are_stages, allowed=STAGES
    )
    adjust_content: bool = False  # True: CCNorm for BatchNorm in stages 2 and 3

    def adapt(self, model: nn.Module) -> nn.Module:
        """Insert the layers; the names of other weights do not change."""
        known = stage_numbers(model, None)
        stages = self.stages or known[:3]
        if self.adjust_content:
            blocks = getattr(model, "blocks", ())  # a U-Net's stages are its poolings
            _replace_batch_norms([*model.stages[1:3], *blocks[1:3]])
        widths = widths_of(model)
        return place(model, stages, lambda n: SCNorm(widths[n - 1]))


def _replace_batch_norms(stages: Sequence[nn.Module]) -> None:
    """Replace every trained BatchNorm2d of the stages by CCNorm, in place."""
    found = [
        (stage, name, norm)
        for stage in stages
        for name, norm in batch_norms(stage).items()
        if type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats
    ]
    if not found:
        raise ValueError(
            "adjust_content replaces trained BatchNorm in stages 2 and 3, found none "
            "there; take a network with norm='batch', or leave adjust_content out"
        )
    for stage, name, norm in found:
        stage.set_submodule(name, CCNorm(norm))
