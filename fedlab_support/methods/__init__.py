"""Federated methods: one file each, the difference from FedAvg."""

from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .feddg import FedDG
from .fedfa import FedFA
from .fedfa_plus import FedFAPlus
from .fedprox import FedProx
from .fedsr import FedSR

__all__ = ["FedAvg", "FedAvgM", "FedDG", "FedFA", "FedFAPlus", "FedProx", "FedSR"]
