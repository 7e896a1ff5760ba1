"""From plan to batches: a lane's documents, a rank's steps, and the length of a finite run."""

from .count import count_steps
from .lane import Lane, LaneSnapshot, Measure, arrival_capacity, block_of
from .length import no_documents, run_length
from .report import Report
from .restored import Restored
from .run import Run, open_run
from .stats import loader_stats
from .steps import Collate, RankSteps, Step, on_device
from .walk import lane_rows, walk_lane

__all__ = [
    "Collate",
    "Lane",
    "LaneSnapshot",
    "Measure",
    "RankSteps",
    "Report",
    "Restored",
    "Run",
    "Step",
    "arrival_capacity",
    "block_of",
    "count_steps",
    "lane_rows",
    "loader_stats",
    "no_documents",
    "on_device",
    "open_run",
    "run_length",
    "walk_lane",
]
