"""Federated learning under domain shift: the package behind the course."""

from . import methods, models
from .core import history, metrics, torchvision_compat
from .core.messages import weighted_mean
from .data import available, from_arrays, from_dataset, from_folders, load, rotated
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
    uniform,
)
from .methods import (
    AFL,
    CCST,
    FISC,
    FPL,
    QFFL,
    SCAFFOLD,
    TERM,
    VPT,
    FedAdam,
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
    FedRep,
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

__all__ = [
    "AFL",
    "CCST",
    "FISC",
    "FPL",
    "QFFL",
    "SCAFFOLD",
    "TERM",
    "VPT",
    "Faults",
    "FedAdam",
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
    "FedRep",
    "FedRobust",
    "FedSAM",
    "FedSR",
    "Federation",
    "HarmoFL",
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
    "from_arrays",
    "from_dataset",
    "from_folders",
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
    "poisson",
    "power_of_choice",
    "report_cnn",
    "reported",
    "rotated",
    "schedules",
    "shards",
    "small_cnn",
    "study",
    "styles",
    "tune",
    "uniform",
    "weighted_mean",
]

torchvision_compat.install()
