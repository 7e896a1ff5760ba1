"""The count pass (C9): how many steps a finite run has, found without decoding anything.

Runs plan, measure and sequencer of each lane to its end. Lanes do not depend on each other, so the
pass is shared out over ranks, and the run's steps are the most that any lane needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..config import DataConfig
from .lane import Lane


def count_steps(
    config: DataConfig,
    make_lane: Callable[[int], Lane],
    lanes: Iterable[int],
    *,
    first_step: int = 0,
    progress: Callable[[int], None] = lambda lane: None,
) -> int:
    """Steps until the last of ``lanes`` has given its last sequence.

    Args:
        config: the data config; its sources are finite.
        make_lane: a lane of that number, standing where ``first_step`` begins.
        lanes: the lanes to count.
        first_step: the step to count from.
        progress: called with each lane that is done.

    Returns:
        The number of the first step that no lane has anything for.
    """
    end = first_step
    for number in lanes:
        lane = make_lane(number)
        try:
            end = max(end, _lane_end(config, lane, first_step))
        finally:
            lane.close()
        progress(number)
    return end


def _lane_end(config: DataConfig, lane: Lane, step: int) -> int:
    while True:
        for place in range(config.global_batch_at(step) // config.lanes):
            if lane.next(step) is None:
                return step + (place > 0)
        step += 1
