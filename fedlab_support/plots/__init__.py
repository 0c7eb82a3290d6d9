"""Tables in, figures out: one style for every chapter."""

from fedlab_course.figures.drift import drift_picture
from fedlab_course.figures.features import bins_picture, scatter_panels
from fedlab_course.figures.frequency import gaussian_picture, restyle_picture
from fedlab_course.figures.groups import (
    accuracy_by_type,
    clusters_picture,
    weights_picture,
)
from fedlab_course.figures.landscape import loss_planes
from fedlab_course.figures.leaks import leak_curves
from fedlab_course.figures.methods import method_map
from fedlab_course.figures.participation import (
    accuracy_by_client,
    participation_picture,
)
from fedlab_course.figures.scaling import (
    budget_picture,
    cost_curves,
    price_of_privacy,
    seconds_by_engine,
)
from fedlab_course.figures.segmentation import (
    brightness_by_site,
    outline_sheet,
    score_by_amount,
    threshold_picture,
)
from fedlab_course.figures.settings import accuracy_by_setting
from fedlab_course.figures.standings import orders_picture, rank_picture

from .charts import compare_bars, grid_heatmap
from .curves import learning_curves
from .domains import accuracy_by_domain
from .export import save_figure, save_table
from .federation import clients_by_classes, contact_sheet
from .style import COLOURS, DOUBLE, SINGLE, SIZES, SLIDE, Picture, png, style
from .wire import wire_picture

__all__ = [
    "COLOURS",
    "DOUBLE",
    "SINGLE",
    "SIZES",
    "SLIDE",
    "Picture",
    "accuracy_by_client",
    "accuracy_by_domain",
    "accuracy_by_setting",
    "accuracy_by_type",
    "bins_picture",
    "brightness_by_site",
    "budget_picture",
    "clients_by_classes",
    "clusters_picture",
    "compare_bars",
    "contact_sheet",
    "cost_curves",
    "drift_picture",
    "gaussian_picture",
    "grid_heatmap",
    "leak_curves",
    "learning_curves",
    "loss_planes",
    "method_map",
    "orders_picture",
    "outline_sheet",
    "participation_picture",
    "png",
    "price_of_privacy",
    "rank_picture",
    "restyle_picture",
    "save_figure",
    "save_table",
    "scatter_panels",
    "score_by_amount",
    "seconds_by_engine",
    "style",
    "threshold_picture",
    "weights_picture",
    "wire_picture",
]
