"""Federated methods: one file each, the difference from FedAvg."""

from importlib import import_module
from pkgutil import iter_modules

from .afl import AFL
from .ccst import CCST
from .fedadam import FedAdam
from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .fedbn import FedBN
from .feddg import FedDG
from .feddg_ga import FedDGGA
from .fedfa import FedFA
from .fedfa_plus import FedFAPlus
from .fedgcr import FedGCR
from .fedgma import FedGMA
from .fedgr import FedGR
from .fedmix import FedMix
from .fedprox import FedProx
from .fedrep import FedRep
from .fedrobust import FedRobust
from .fedsam import FedSAM
from .fedsr import FedSR
from .fisc import FISC
from .fpl import FPL
from .harmofl import HarmoFL
from .qffl import QFFL
from .scaffold import SCAFFOLD
from .term import TERM
from .trimmed_mean import FedMedian, TrimmedMean
from .vpt import VPT

HOOKS = (
    "adapt",
    "private_names",
    "client_setup",
    "server_setup",
    "setup_reply",
    "client_broadcast",
    "before_training",
    "optimiser",
    "loss",
    "after_training",
    "aggregation_weights",
    "aggregate",
    "predict",
    "evaluation_state",
)
"""The steps of a round that a method may override, in the order of the calls.

A method may also override ``check_federation``, ``check_training``, ``upload_spec``,
``check_upload``, ``check_setup`` and ``server_metrics``, which declare, check or record
something and change no step.
"""


def changed_hooks(method: type[FedAvg]) -> tuple[str, ...]:
    """The hooks that a method overrides."""
    return tuple(hook for hook in HOOKS if method.overrides(hook))


def catalogue() -> dict[str, type[FedAvg]]:
    """Every method that has a file in this folder, by its label, in order of files."""
    found = {}
    for file in iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        for kind in vars(module).values():
            is_own = getattr(kind, "__module__", "") == module.__name__
            if is_own and isinstance(kind, type) and issubclass(kind, FedAvg):
                found[kind().label] = kind
    return found
