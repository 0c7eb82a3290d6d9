"""Figures that only chapters of this course need: tables in, figures out."""

from .acting import where_methods_act
from .attention import attention_picture
from .bottleneck import bound_picture, fedsr_network
from .drift import drift_picture
from .exploration import explored_picture, trade_off_picture
from .features import bins_picture, scatter_panels
from .frequency import gaussian_picture, restyle_picture
from .groups import accuracy_by_type, clusters_picture, weights_picture
from .heatmap import grid_heatmap
from .hooks import hook_table
from .landscape import loss_planes
from .leaks import leak_curves
from .methods import method_map
from .participation import accuracy_by_client, participation_picture
from .rounds import rounds_picture
from .scaling import budget_picture, cost_curves, price_of_privacy, seconds_by_engine
from .segmentation import (
    brightness_by_site,
    outline_sheet,
    score_by_amount,
    threshold_picture,
)
from .selection import absent_clients, falling_losses, shares_of_rounds
from .settings import accuracy_by_setting
from .standings import (
    rank_picture,
    tuning_picture,
    verdicts_picture,
)
from .tour import accuracy_and_luck, clients_seen, one_round, writers_sheet
from .triplets import triplet_microscope
