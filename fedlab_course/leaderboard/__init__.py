"""Every method on every data set: protocols, runs, measures, ranks, and the papers'."""

from .entries import AUGMENTATIONS, Board, Keeping, collect, entries, gap, gaps, run_of
from .measures import MEASURES, by_round, measured
from .papers import orders, printed
from .ranking import beaten, blocks, pairs, ranks
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
    "beaten",
    "blocks",
    "by_round",
    "collect",
    "entries",
    "gap",
    "gaps",
    "measured",
    "orders",
    "pairs",
    "printed",
    "protocol",
    "ranks",
    "run_of",
]
