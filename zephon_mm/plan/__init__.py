"""Which sample comes when (C3): permutations, chunks, lanes, mixture. Whole numbers only."""

from .chunks import ChunkTable, SourceShape
from .permutation import Permutation
from .plan import LaneCursor, Plan

__all__ = ["ChunkTable", "LaneCursor", "Permutation", "Plan", "SourceShape"]
