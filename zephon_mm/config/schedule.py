"""Values that change at given steps, and how ranks share a step's rows (C2)."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .checks import check, whole

Schedule = int | tuple[tuple[int, int], ...]
"""A whole number, or ``((first_step, value), …)`` with rising steps from 0."""


def freeze_schedule(name: str, value: Any) -> Schedule:
    """A schedule from a number or from lists of pairs. Raises ConfigError if it is neither."""
    shape = f"{name}={value!r}: must be a whole number or [[0, value], [step, value], …]"
    if not isinstance(value, list | tuple):
        check(isinstance(value, int) and not isinstance(value, bool), shape)
        whole(name, value)
        return int(value)
    for pair in value:
        check(isinstance(pair, list | tuple) and len(pair) == 2, shape)
        whole(f"{name}: a step of the schedule", pair[0], 0)
        whole(f"{name}: a value of the schedule", pair[1])
    pairs: tuple[tuple[int, int], ...] = tuple((step, v) for step, v in value)
    steps = [step for step, _ in pairs]
    check(
        bool(steps) and steps[0] == 0 and all(a < b for a, b in itertools.pairwise(steps)),
        f"{name}={value!r}: a schedule starts at step 0 and its steps rise",
    )
    return pairs


def schedule_steps(schedule: Schedule) -> tuple[tuple[int, int], ...]:
    """The schedule as ``((first_step, value), …)``."""
    return ((0, schedule),) if isinstance(schedule, int) else schedule


def schedule_at(schedule: Schedule, step: int) -> int:
    """The value in force at ``step``."""
    if isinstance(schedule, int):
        return schedule
    return schedule[bisect.bisect_right(schedule, step, key=lambda pair: pair[0]) - 1][1]


def schedule_min(schedule: Schedule, first: int, last: int) -> int:
    """The least value in force at any step of ``[first, last]``."""
    values = [v for step, v in schedule_steps(schedule) if first < step <= last]
    return min([schedule_at(schedule, first), *values])


def lane_range(lanes: int, dp_rank: int, dp_size: int) -> range:
    """The lanes that a rank runs: those that its slots touch (C2)."""
    return range(dp_rank * lanes // dp_size, -(-(dp_rank + 1) * lanes // dp_size))


def check_dp_size(global_batch: Schedule, dp_size: int, dp_rank: int) -> None:
    """Raise ConfigError unless ``dp_size`` divides every batch of the schedule."""
    whole("dp_size", dp_size)
    whole("dp_rank", dp_rank, 0, dp_size - 1)
    values = [value for _, value in schedule_steps(global_batch)]
    common = math.gcd(*values)
    if common % dp_size:
        what = f"global_batch={common}" if len(values) == 1 else f"every global_batch of {values}"
        valid: Sequence[int] = [d for d in range(1, common + 1) if common % d == 0]
        at = bisect.bisect_left(valid, dp_size)
        near = valid[max(0, at - 1) : at + 1]
        raise ConfigError(
            f"dp_size={dp_size} does not divide {what}; nearest that do: "
            f"{', '.join(map(str, near))} (a batch with many divisors, as 480, 720 or 960, "
            "leaves more choice)"
        )
