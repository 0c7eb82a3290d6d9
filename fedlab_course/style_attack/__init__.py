"""The attack on styles: rebuild images from what FISC and CCST upload."""

from . import metrics
from .attack import DISTANCES, StyleInversion, public
from .network import StyleInverter, perceptual_distance, style_inverter

__all__ = [
    "DISTANCES",
    "StyleInversion",
    "StyleInverter",
    "metrics",
    "perceptual_distance",
    "public",
    "style_inverter",
]
