"""The attack on styles: rebuild images from what FISC and CCST upload."""

from . import metrics
from .attack import StyleInversion, public
from .network import StyleInverter, perceptual_distance, restyled, style_inverter
from .split import Split, split_by_owner
