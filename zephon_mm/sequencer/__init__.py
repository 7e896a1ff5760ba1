"""Packing in series: the only place where documents wait for each other."""

from .sequencer import HARD_CAP, LiveRef, Piece, Recipe, Sequencer, SequencerState, SourceCounts

__all__ = ["HARD_CAP", "LiveRef", "Piece", "Recipe", "Sequencer", "SequencerState", "SourceCounts"]
