"""Data sets: :func:`load` one by name, :func:`available` lists them."""

from .catalogue import available, load
from .domain_data import DomainData
from .folders import from_folders
from .rotation import rotated

__all__ = ["DomainData", "available", "from_folders", "load", "rotated"]
