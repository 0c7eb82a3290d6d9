"""VPT: train only a few input tokens and the head of a frozen transformer."""

from __future__ import annotations

from dataclasses import dataclass

from .fedavg import FedAvg
from .shared.prompting import Prompted


@dataclass(frozen=True)
class VPT(Prompted, FedAvg):
    """FedAvg of prompts and head on a frozen vision transformer.

    To compare other methods on the same network, give them a model factory with
    prompts, as in ``partial(tiny_vit, prompts=4)``. Apart from the network VPT is
    FedAvg; ``num_prompts=0`` is linear probing.

    The paper tunes SGD's learning rate; FedGCR's baselines train with
    ``LocalTraining(optimiser="adamw", lr=1e-3, weight_decay=0.01)``.

    Source: Jia et al., ECCV 2022.
    """
