"""Exercises that check themselves and answer in words."""

from fedlab_support.exercises.catalogue import check
from fedlab_support.exercises.checking import Exercise, Result
from fedlab_support.exercises.leak import leaky_local_update

__all__ = ["Exercise", "Result", "check", "leaky_local_update"]
