"""How many steps a run has (C9)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..backends import Backend
from ..config import ExecutionConfig, lane_range
from ..errors import ConfigError, ZephonError
from ..sample import Rejected
from ..shards import cache_path
from ..state import fingerprint
from .count import count_steps
from .lane import Lane
from .progress import Bar
from .restored import Restored
from .run import Run

if TYPE_CHECKING:
    import torch.distributed as dist


def run_length(
    run: Run,
    execution: ExecutionConfig,
    backend: Backend,
    *,
    dp_rank: int,
    dp_size: int,
    group: dist.ProcessGroup | None = None,
    restored: Restored | None = None,
) -> int | None:
    """The number of the step at which the run ends; None: it has no end, or it is not counted.

    A finite run is counted once and the count cached under the run's fingerprint. Where ``group``,
    or else torch's default group, is of ``dp_size`` ranks they share the lanes: then this is a
    collective.

    Args:
        run: the opened run.
        execution: where the cache is.
        backend: where documents are measured.
        dp_rank: this rank.
        dp_size: ranks that share the lanes to count.
        group: their process group.
        restored: the state that a changed config went on from: the count starts there, and is not
            cached. It must hold the lanes of its rank, or every lane where no group shares the
            count.
    """
    stop = run.config.stop
    if not run.plan.finite or stop.count == "never":
        if run.plan.finite and stop.num_steps is None and dp_size > 1:
            raise ConfigError(
                f"stop.count='never' leaves the end of these epochs unknown, and {dp_size} ranks "
                "would reach it at different steps: set stop.num_steps, or stop.count='exact'"
            )
        return stop.num_steps
    cache = Path(cache_path(fingerprint(run.identity), "steps.json", execution.cache_dir))
    ranks = _Group(dp_rank, dp_size, group)
    known = ranks.smallest(-1 if restored is not None else _read(cache))
    if known < 0:
        lanes = lane_range(run.config.lanes, ranks.rank, ranks.size)
        first: list[Rejected] = []
        known = ranks.largest(_count(run, backend, lanes, restored, first.append))
        if restored is None and known == 0:
            raise no_documents(first)
        if restored is None:
            _write(cache, known)
    return known if stop.num_steps is None else min(known, stop.num_steps)


def no_documents(rejected: Iterable[Rejected]) -> ZephonError:
    """The error of a run in which no sample gives a document, with what became of some."""
    lines = "".join(
        f"\n  {r.outcome}: {r.shard}, key {r.key!r}, stage {r.stage}: {r.reason}"
        for r in islice(rejected, 5)
    )
    return ZephonError(
        "no sample of this run gives a document to train on: check the sources' format and "
        f"options, and packing. Some of them:{lines}"
    )


def _count(
    run: Run,
    backend: Backend,
    lanes: Iterable[int],
    restored: Restored | None,
    on_rejected: Callable[[Rejected], None],
) -> int:
    def make_lane(number: int) -> Lane:
        lane = run.lane(number, backend, window=4, on_rejected=on_rejected)
        if restored is not None:
            restored.put(lane)
        return lane

    numbers = list(lanes)
    with Bar("counting steps", len(numbers)) as bar:
        return count_steps(
            run.config,
            make_lane,
            numbers,
            first_step=restored.state.step if restored is not None else 0,
            progress=lambda lane: bar.advance(),
        )


class _Group:
    """The ranks that share a count: a group, or torch's default one if it is all data-parallel."""

    def __init__(self, dp_rank: int, dp_size: int, group: dist.ProcessGroup | None) -> None:
        import torch.distributed as dist

        self._group = group
        self._shared = (
            dp_size > 1
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size(group) == dp_size
        )
        self.rank, self.size = (dp_rank, dp_size) if self._shared else (0, 1)

    def largest(self, value: int) -> int:
        return self._reduce(value, "MAX")

    def smallest(self, value: int) -> int:
        return self._reduce(value, "MIN")

    def _reduce(self, value: int, operation: Literal["MAX", "MIN"]) -> int:
        if not self._shared:
            return value
        import torch
        import torch.distributed as dist

        number = torch.tensor(value, dtype=torch.int64)
        if dist.get_backend(self._group) == "nccl":
            number = number.cuda()
        dist.all_reduce(number, op=getattr(dist.ReduceOp, operation), group=self._group)
        return int(number)


def _read(cache: Path) -> int:
    try:
        return int(json.loads(cache.read_text(encoding="utf-8"))["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1  # not counted yet, or a damaged cache: count again


def _write(cache: Path, steps: int) -> None:
    part = cache.with_name(f"{cache.name}.{os.getpid()}.part")
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"steps": steps}), encoding="utf-8")
        part.replace(cache)
    except OSError:  # no cache: the next start counts again
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
