"""Networks that keep the contract ``stages``, ``encode``, ``head``."""

from .cnn import CNN, report_cnn, small_cnn
from .noise import Dropout

__all__ = ["CNN", "Dropout", "report_cnn", "small_cnn"]
