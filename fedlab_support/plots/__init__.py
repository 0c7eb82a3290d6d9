"""Tables in, figures out: one style for every chapter."""

from fedlab_support.plots.charts import compare_bars, grid_heatmap
from fedlab_support.plots.curves import learning_curves
from fedlab_support.plots.domains import accuracy_by_domain
from fedlab_support.plots.drift import drift_picture
from fedlab_support.plots.export import save_figure, save_table
from fedlab_support.plots.features import bins_picture, scatter_panels
from fedlab_support.plots.federation import clients_by_classes, contact_sheet
from fedlab_support.plots.frequency import gaussian_picture, restyle_picture
from fedlab_support.plots.groups import (
    accuracy_by_type,
    clusters_picture,
    weights_picture,
)
from fedlab_support.plots.landscape import loss_planes
from fedlab_support.plots.leaks import leak_curves
from fedlab_support.plots.methods import method_map
from fedlab_support.plots.participation import (
    accuracy_by_client,
    participation_picture,
)
from fedlab_support.plots.scaling import (
    budget_picture,
    cost_curves,
    price_of_privacy,
    seconds_by_engine,
)
from fedlab_support.plots.segmentation import (
    brightness_by_site,
    outline_sheet,
    score_by_amount,
    threshold_picture,
)
from fedlab_support.plots.settings import accuracy_by_setting
from fedlab_support.plots.standings import orders_picture, rank_picture
from fedlab_support.plots.style import (
    COLOURS,
    DOUBLE,
    SINGLE,
    SIZES,
    SLIDE,
    Picture,
    png,
    style,
)
from fedlab_support.plots.wire import wire_picture

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
