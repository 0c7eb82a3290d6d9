"""Federated methods: one file each, the difference from FedAvg."""

from .afl import AFL
from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .fedbn import FedBN
from .feddg import FedDG
from .fedfa import FedFA
from .fedfa_plus import FedFAPlus
from .fedmix import FedMix
from .fedprox import FedProx
from .fedrobust import FedRobust
from .fedsam import FedSAM
from .fedsr import FedSR
from .fpl import FPL
from .harmofl import HarmoFL
from .qffl import QFFL
from .term import TERM

__all__ = [
    "AFL",
    "FPL",
    "QFFL",
    "TERM",
    "FedAvg",
    "FedAvgM",
    "FedBN",
    "FedDG",
    "FedFA",
    "FedFAPlus",
    "FedMix",
    "FedProx",
    "FedRobust",
    "FedSAM",
    "FedSR",
    "HarmoFL",
]
