"""An executable tour of federated learning under domain shift: the support package.

The names below are all that notebooks use; nothing else is promised.
"""

from importlib import import_module

from . import methods, models
from .core import history, metrics
from .core.messages import weighted_mean
from .data import available, load, rotated
from .engines import Faults
from .engines.flower.one_machine import LocalFlower
from .federation.federation import Federation
from .federation.partition import (
    by_domain,
    by_owner,
    client_types,
    dirichlet,
    heterogeneous,
    iid,
    leave_out,
    shards,
)
from .federation.protocols import leave_one_domain_out, leave_two_domains_out, reported
from .federation.selection import (
    availability,
    by_size,
    everyone,
    poisson,
    power_of_choice,
    rehearse,
    uniform,
)
from .methods import (
    AFL,
    CCST,
    FISC,
    FPL,
    QFFL,
    TERM,
    VPT,
    FedAvg,
    FedAvgM,
    FedBN,
    FedDG,
    FedDGGA,
    FedFA,
    FedFAPlus,
    FedGCR,
    FedGMA,
    FedGR,
    FedMedian,
    FedMix,
    FedProx,
    FedRobust,
    FedSAM,
    FedSR,
    HarmoFL,
    TrimmedMean,
    augment,
)
from .methods.shared import clustering, grouping, styles
from .models import report_cnn, small_cnn
from .run.run import Run
from .run.study import study
from .run.tune import tune
from .training import schedules
from .training.privacy import Privacy
from .training.settings import LocalTraining

_WHEN_USED = {
    "plots": "plots",
    "save_figure": "plots",
    "save_table": "plots",
    "LiveTraining": "widgets",
    "explore": "widgets",
    "show_source": "widgets",
}
"""Names whose module is imported when they are: training needs no plots."""


def __getattr__(name: str):
    """A public name of a module that draws or shows."""
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f".{_WHEN_USED[name]}", __name__)
    return module if name == _WHEN_USED[name] else getattr(module, name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__


__all__ = [
    "AFL",
    "CCST",
    "FISC",
    "FPL",
    "QFFL",
    "TERM",
    "VPT",
    "Faults",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedDG",
    "FedDGGA",
    "FedFA",
    "FedFAPlus",
    "FedGCR",
    "FedGMA",
    "FedGR",
    "FedMedian",
    "FedMix",
    "FedProx",
    "FedRobust",
    "FedSAM",
    "FedSR",
    "Federation",
    "HarmoFL",
    "LiveTraining",
    "LocalFlower",
    "LocalTraining",
    "Privacy",
    "Run",
    "TrimmedMean",
    "augment",
    "availability",
    "available",
    "by_domain",
    "by_owner",
    "by_size",
    "client_types",
    "clustering",
    "dirichlet",
    "everyone",
    "explore",
    "grouping",
    "heterogeneous",
    "history",
    "iid",
    "leave_one_domain_out",
    "leave_out",
    "leave_two_domains_out",
    "load",
    "methods",
    "metrics",
    "models",
    "plots",
    "poisson",
    "power_of_choice",
    "rehearse",
    "report_cnn",
    "reported",
    "rotated",
    "save_figure",
    "save_table",
    "schedules",
    "shards",
    "show_source",
    "small_cnn",
    "study",
    "styles",
    "tune",
    "uniform",
    "weighted_mean",
]
