"""Measures that chapters compare, beside those that every run records."""

from .clients import across_clients, as_participants, by_client, participation
from .features import alignment, cls_attention, drift, maps_over_rounds, uniformity
from .groups import cluster_accuracy, fairness
from .seconds import seconds_per_round
from .selections import rehearse, rehearse_falling
