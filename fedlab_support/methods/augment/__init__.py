"""Local augmentations, ``LocalTraining(augment=…)``, for any method: one file each.

Subclass ``Augmentation`` for a transform of your own.
"""

from ...training.settings import Augmentation
from .dacsc import DACSC
from .manifold_mixup import ManifoldMixup
from .mixstyle import MixStyle
from .mixup import Mixup
from .moex import MoEx

__all__ = ["DACSC", "Augmentation", "ManifoldMixup", "MixStyle", "Mixup", "MoEx"]
