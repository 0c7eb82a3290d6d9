"""Federated methods: one file each, the difference from FedAvg."""

from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .feddg import FedDG
from .fedmix import FedMix
from .fedprox import FedProx
from .fedsr import FedSR
from .fpl import FPL

__all__ = ["FPL", "FedAvg", "FedAvgM", "FedDG", "FedMix", "FedProx", "FedSR"]
