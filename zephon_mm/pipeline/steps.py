"""A rank's steps: recipes of its lanes, media of its slots, batches (C2).

Lane ``ℓ`` fills slots ``ℓ·Q … ℓ·Q + Q − 1`` of a step, and the rank trains on a run of slots. It
runs every lane that its slots touch to the end of the step, and decodes only what its slots hold.
Media of a few steps ahead are submitted before the oldest step is put together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..batch import Batch
from ..collate import PackedPiece, PackedRow
from ..config import DataConfig
from ..device import Arrival, DeviceStage
from ..sample import MeasuredDocument, MediaSpan
from ..sequencer import Piece, Recipe
from ..stages.materialise import MediaResult, MediaTask
from .lane import Lane, LaneSnapshot
from .media_tasks import Bundle, MediaTasks

if TYPE_CHECKING:
    from ..patches import Patches

Collate = Callable[[Sequence[PackedRow], int, Sequence[int], int], Batch]
"""``(rows, step, slots, sequence_length)`` → a batch."""


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step of a rank: its batches (micro-batches, in order) and the state after it.

    ``arrival``: what its reader waits for where the batches lie on a device.
    """

    number: int
    batches: tuple[Batch, ...]
    lanes: tuple[LaneSnapshot, ...]
    arrival: Arrival | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches' tensors."""
        return sum(batch.size_bytes for batch in self.batches)


@dataclass(frozen=True, slots=True)
class _Pending:
    number: int
    slots: tuple[int, ...]
    recipes: tuple[Recipe | None, ...]
    media: tuple[Bundle, ...]
    lanes: tuple[LaneSnapshot, ...]


@dataclass(frozen=True, slots=True)
class RankSteps:
    """Makes the steps of one rank.

    Args:
        config: the data config.
        dp_rank: this rank.
        dp_size: ranks that share a global batch.
        lanes: the lanes that the rank's slots touch, in order.
        media: decodes the media.
        collate: rows to a batch.
        on_damaged: called for every medium that can't be decoded.
        ahead: steps whose media are submitted before the oldest is put together.
        micro_batch: rows a batch; None: all of the rank's rows in one.
    """

    config: DataConfig
    dp_rank: int
    dp_size: int
    lanes: Sequence[Lane]
    media: MediaTasks
    collate: Collate
    on_damaged: Callable[[MeasuredDocument, str], None]
    ahead: int = 0
    micro_batch: int | None = None

    def run(
        self, first_step: int, end_step: int | None, *, until_empty: bool = False
    ) -> Iterator[Step]:
        """Steps ``[first_step, end_step)``; None: for ever.

        With ``until_empty`` also no further than a step for which no lane has anything left.

        An error of a step that was begun ahead is raised in that step's place.
        """
        pending: deque[_Pending] = deque()
        step = first_step
        failure: Exception | None = None
        try:
            while end_step is None or step < end_step:
                try:
                    begun = self._begin(step)
                except Exception as error:
                    failure = error
                    break
                if until_empty and all(recipe is None for recipe in begun.recipes):
                    break
                pending.append(begun)
                del begun
                step += 1
                while pending and len(pending) > self._ahead_of(pending[0], first_step):
                    yield self._finish(pending.popleft())
            while pending:
                yield self._finish(pending.popleft())
            if failure is not None:
                raise failure
        finally:  # an error holds this frame, and what it holds: rows of pixels
            failure = None
            pending.clear()

    def _ahead_of(self, oldest: _Pending, first_step: int) -> int:
        """Steps to begin before ``oldest`` is put together: none if nothing of it is awaited, and
        few at first, so that the first batch waits for no other's work.
        """
        return min(self.ahead, oldest.number - first_step) if oldest.media else 0

    def _begin(self, step: int) -> _Pending:
        batch = self.config.global_batch_at(step)
        per_lane = batch // self.config.lanes
        mine = range(
            self.dp_rank * batch // self.dp_size, (self.dp_rank + 1) * batch // self.dp_size
        )
        for lane in self.lanes:
            lane.prime()
        recipes = [
            recipe
            for lane in self.lanes
            for slot in range(lane.number * per_lane, (lane.number + 1) * per_lane)
            for recipe in [lane.next(step)]
            if slot in mine
        ]
        bundles = self.media.begin(
            [
                (MediaTask(piece.document.ref, span), piece.document)
                for recipe in recipes
                if recipe is not None
                for piece in recipe.pieces
                for span in _spans(piece)
            ]
        )
        snapshots = tuple(lane.snapshot() for lane in self.lanes)
        return _Pending(step, tuple(mine), tuple(recipes), bundles, snapshots)

    def _finish(self, pending: _Pending) -> Step:
        media = self.media.results(pending.media)
        rows = [self._row(recipe, media) for recipe in pending.recipes]
        length = self.config.sequence_length_at(pending.number)
        size = self.micro_batch or len(rows)
        batches = tuple(
            self.collate(
                rows[at : at + size], pending.number, pending.slots[at : at + size], length
            )
            for at in range(0, len(rows), size)
        )
        return Step(pending.number, batches, pending.lanes)

    def _row(self, recipe: Recipe | None, media: Iterator[MediaResult]) -> PackedRow:
        """The row of a recipe; without one, a row of padding."""
        pieces = []
        patches: dict[str, list[Patches]] = {"image": [], "video": []}
        for piece in recipe.pieces if recipe is not None else ():
            damaged = None
            for span in _spans(piece):
                result = next(media)
                patches[span.kind].append(result.patches)
                damaged = damaged or result.damaged
            if damaged is not None:
                self.on_damaged(piece.document, damaged)
            pieces.append(PackedPiece(piece.document, piece.start, piece.stop, damaged is not None))
        return PackedRow(tuple(pieces), patches["image"], patches["video"])


def on_device(steps: Iterator[Step], stage: DeviceStage | None) -> Iterator[Step]:
    """The steps, whatever is done to make them queued on the device's stream; as they are without.

    Closing it closes ``steps``.
    """
    if stage is None:
        yield from steps
        return
    try:
        while True:
            with stage.on_stream():  # not held while the reader has the step
                step = next(steps, None)
                if step is None:
                    return
                step = replace(step, arrival=stage.arrival(step.batches))
            yield step
            del step
    finally:
        close = getattr(steps, "close", None)
        if close is not None:
            close()


def _spans(piece: Piece) -> list[MediaSpan]:
    return [
        span
        for span in piece.document.media
        if piece.start <= span.start and span.stop <= piece.stop
    ]
