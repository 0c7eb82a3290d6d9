"""An executable tour of federated learning under domain shift: the support package.

The names below are all that notebooks use; nothing else is promised.
"""

from . import exercises, history, metrics, plots
from .data import available, load
from .federation import Federation
from .messages import weighted_mean
from .methods import FedAvg, FedAvgM, FedProx
from .models import report_cnn, small_cnn
from .partition import by_domain, by_owner, dirichlet, iid, leave_out, shards
from .plots import save_figure, save_table
from .run import Run
from .selection import by_size, everyone, uniform
from .study import study
from .training import LocalTraining
from .widgets import LiveTraining, explore, show_source

__all__ = [
    "FedAvg",
    "FedAvgM",
    "FedProx",
    "Federation",
    "LiveTraining",
    "LocalTraining",
    "Run",
    "available",
    "by_domain",
    "by_owner",
    "by_size",
    "dirichlet",
    "everyone",
    "exercises",
    "explore",
    "history",
    "iid",
    "leave_out",
    "load",
    "metrics",
    "plots",
    "report_cnn",
    "save_figure",
    "save_table",
    "shards",
    "show_source",
    "small_cnn",
    "study",
    "uniform",
    "weighted_mean",
]
