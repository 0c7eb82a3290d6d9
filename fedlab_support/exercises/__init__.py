"""Exercises that check themselves and answer in words."""

from fedlab_support.exercises.catalogue import check
from fedlab_support.exercises.checking import Exercise, Result
from fedlab_support.exercises.leak import leaky_local_update
from fedlab_support.exercises.leaks import frechet_by_elements
from fedlab_support.exercises.lookahead import report_meta_step
from fedlab_support.exercises.noisy_means import shift_means
from fedlab_support.exercises.overlap import dice_of_a_batch
from fedlab_support.exercises.positions import select_by_position
from fedlab_support.exercises.relay import relay_round
from fedlab_support.exercises.representing import represent_client
from fedlab_support.exercises.resuming import cohorts_from_one_stream
from fedlab_support.exercises.standing import report_curves
from fedlab_support.exercises.styling import style_contrast

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
