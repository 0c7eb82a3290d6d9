"""Figures that only chapters of this course need: tables in, figures out."""

from .drift import drift_picture
from .features import bins_picture, scatter_panels
from .frequency import gaussian_picture, restyle_picture
from .groups import accuracy_by_type, clusters_picture, weights_picture
from .landscape import loss_planes
from .leaks import leak_curves
from .methods import method_map
from .participation import accuracy_by_client, participation_picture
from .scaling import budget_picture, cost_curves, price_of_privacy, seconds_by_engine
from .segmentation import (
    brightness_by_site,
    outline_sheet,
    score_by_amount,
    threshold_picture,
)
from .selection import absent_clients, shares_of_rounds
from .settings import accuracy_by_setting
from .standings import orders_picture, rank_picture

__all__ = [
    "absent_clients",
    "accuracy_by_client",
    "accuracy_by_setting",
    "accuracy_by_type",
    "bins_picture",
    "brightness_by_site",
    "budget_picture",
    "clusters_picture",
    "cost_curves",
    "drift_picture",
    "gaussian_picture",
    "leak_curves",
    "loss_planes",
    "method_map",
    "orders_picture",
    "outline_sheet",
    "participation_picture",
    "price_of_privacy",
    "rank_picture",
    "restyle_picture",
    "scatter_panels",
    "score_by_amount",
    "seconds_by_engine",
    "shares_of_rounds",
    "threshold_picture",
    "weights_picture",
]
