"""Exercises that check themselves and answer in words."""

from .catalogue import check
from .checking import Exercise, Result
from .leak import leaky_local_update
from .leaks import frechet_by_elements
from .lookahead import report_meta_step
from .noisy_means import shift_means
from .overlap import dice_of_a_batch
from .positions import select_by_position
from .relay import relay_round
from .representing import represent_client
from .resuming import cohorts_from_one_stream
from .standing import report_curves
from .styling import style_contrast

__all__ = [
    "Exercise",
    "Result",
    "check",
    "cohorts_from_one_stream",
    "dice_of_a_batch",
    "frechet_by_elements",
    "leaky_local_update",
    "relay_round",
    "report_curves",
    "report_meta_step",
    "represent_client",
    "select_by_position",
    "shift_means",
    "style_contrast",
]
