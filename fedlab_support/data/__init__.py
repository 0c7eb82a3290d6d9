"""Data sets: :func:`load` one by name, :func:`available` lists them."""

from .catalogue import available, load
from .domain_data import DomainData

__all__ = ["DomainData", "available", "load"]
