"""Local augmentations, ``LocalTraining(augment=…)``, for any method: one file each."""

from .dacsc import DACSC
from .manifold_mixup import ManifoldMixup
from .mixstyle import MixStyle
from .mixup import Mixup
from .moex import MoEx

__all__ = ["DACSC", "ManifoldMixup", "MixStyle", "Mixup", "MoEx"]
