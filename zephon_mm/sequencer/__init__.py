"""Packing in series: the only place where documents wait for each other."""

from .recipe import LiveRef, Piece, Recipe, SequencerState, SourceCounts
from .sequencer import HARD_CAP, MAX_WAIT, Sequencer

__all__ = [
    "HARD_CAP",
    "MAX_WAIT",
    "LiveRef",
    "Piece",
    "Recipe",
    "Sequencer",
    "SequencerState",
    "SourceCounts",
]
