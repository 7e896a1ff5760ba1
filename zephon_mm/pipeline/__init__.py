"""From plan to batches: a lane's documents, a rank's steps, and the count of a finite run."""

from .count import count_steps
from .lane import Lane, LaneSnapshot, Measure
from .steps import RankSteps, Step

__all__ = ["Lane", "LaneSnapshot", "Measure", "RankSteps", "Step", "count_steps"]
