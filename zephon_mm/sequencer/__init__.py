"""Packing in series: the only place where documents wait for each other."""

from .recipe import Piece, Recipe, SequencerState, SourceCounts, Waiting
from .sequencer import HARD_CAP, MAX_WAIT, Sequencer

__all__ = [
    "HARD_CAP",
    "MAX_WAIT",
    "Piece",
    "Recipe",
    "Sequencer",
    "SequencerState",
    "SourceCounts",
    "Waiting",
]
