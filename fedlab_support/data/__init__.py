"""Data sets: ``load`` one by name, ``available`` lists them."""

from .arrays import from_arrays, from_dataset
from .catalogue import available, load
from .domain_data import DomainData
from .folders import from_folders
from .rotation import rotated
