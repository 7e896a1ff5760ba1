"""What a step trains on, found without training: lanes are packed up to it, nothing is decoded.

Lanes don't depend on each other, so only those asked for are walked. The cost is that of measuring
their documents: text is read and tokenised from step 0, or from the step of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..backends import Backend
from ..batch import Batch
from ..sample import MeasuredDocument
from ..stages.materialise import MediaResult, MediaTask
from .lane import Lane
from .media_tasks import MediaTasks
from .restored import Restored
from .run import Run
from .steps import RankSteps

WINDOW = 4
"""Blocks measured ahead."""


def walk_lane(
    run: Run,
    backend: Backend,
    lane: int,
    step: int,
    *,
    restored: Restored | None = None,
    progress: Callable[[], None] = lambda: None,
) -> Lane:
    """A lane that stands where ``step`` begins.

    Args:
        run: the opened run.
        backend: where documents are measured.
        lane: its number.
        step: the step to stop before.
        restored: the state to start from, of a step no later; None: from step 0.
        progress: called for each step walked.

    Raises:
        StateError: the state lacks the lane, or doesn't fit the run.
    """
    walked = run.lane(lane, backend, window=WINDOW)
    first = 0
    if restored is not None:
        restored.put(walked)
        first = restored.state.step
    for number in range(first, step):
        for _ in range(run.config.global_batch_at(number) // run.config.lanes):
            walked.next(number)
        progress()
    return walked


def lane_rows(
    run: Run,
    backend: Backend,
    lane: Lane,
    step: int,
    *,
    decode: bool,
    on_damaged: Callable[[MeasuredDocument, str], None] = lambda document, reason: None,
) -> tuple[Batch, ...]:
    """A lane's rows of ``step``, each as a batch of its own; those past the lane's end are padding.

    Args:
        run: the opened run.
        backend: where media are decoded.
        lane: stands where ``step`` begins.
        step: the step.
        decode: decode the media; otherwise all patches are zeros and no media are read.
        on_damaged: called for each medium that can't be decoded.
    """
    columns = run.family.patches.columns

    def blank(tasks: Sequence[MediaTask]) -> list[MediaResult]:
        sizes = [(task.span.num_patches, columns) for task in tasks]
        return [MediaResult(np.zeros(size, np.uint8)) for size in sizes]

    # a lane's slots are those of rank number `lane` among as many ranks as lanes
    (made,) = RankSteps(
        config=run.config,
        dp_rank=lane.number,
        dp_size=run.config.lanes,
        lanes=[lane],
        media=run.media(backend) if decode else MediaTasks(backend, blank, lambda task: 0),
        collate=run.collate,
        on_damaged=on_damaged,
        micro_batch=1,
    ).run(step, step + 1)
    return made.batches
