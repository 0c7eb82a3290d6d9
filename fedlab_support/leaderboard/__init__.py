"""Every method on every data set: protocols, runs, measures, ranks, and the papers'."""

from .entries import AUGMENTATIONS, Board, Keeping, collect, entries, gap, gaps, run_of
from .measures import MEASURES, measured
from .settings import MAKERS, Own, Protocol, at_hand, protocol

__all__ = [
    "AUGMENTATIONS",
    "MAKERS",
    "MEASURES",
    "Board",
    "Keeping",
    "Own",
    "Protocol",
    "at_hand",
    "collect",
    "entries",
    "gap",
    "gaps",
    "measured",
    "protocol",
    "run_of",
]
