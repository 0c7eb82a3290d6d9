"""Every method on every data set: protocols, runs, measures and ranks."""

from ..protocols import COMPARED, at_hand, protocol
from .entries import Board, Keeping, collect, entries, gap, gaps, run_of
from .measures import MEASURES, by_round, measured
from .ranking import beaten, blocks, pairs, ranks
