"""Federated methods: one file each, the difference from FedAvg."""

from .fedavg import FedAvg
from .fedavgm import FedAvgM
from .fedprox import FedProx

__all__ = ["FedAvg", "FedAvgM", "FedProx"]
