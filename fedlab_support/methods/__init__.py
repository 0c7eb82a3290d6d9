"""Federated methods: one file each, the difference from FedAvg."""

from .afl import AFL
from .ccst import CCST
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
from .fedrobust import FedRobust
from .fedsam import FedSAM
from .fedsr import FedSR
from .fisc import FISC
from .fpl import FPL
from .harmofl import HarmoFL
from .qffl import QFFL
from .term import TERM
from .vpt import VPT

__all__ = [
    "AFL",
    "CCST",
    "FISC",
    "FPL",
    "QFFL",
    "TERM",
    "VPT",
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
    "FedMix",
    "FedProx",
    "FedRobust",
    "FedSAM",
    "FedSR",
    "HarmoFL",
]
