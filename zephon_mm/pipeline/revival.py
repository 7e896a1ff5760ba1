"""Lanes from a checkpoint: the documents that waited to be packed are measured again.

Nothing else is read, at most `HARD_CAP` documents a lane however far the run had come; and the
measurements must be those of the time when the state was saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..config import DataConfig
from ..errors import StateError
from ..plan import LaneCursor
from ..sample import MeasuredDocument, Measurement, Rejected
from ..sequencer import LiveRef, SequencerState
from ..state import Change, LaneState, LoaderState
from .lane import Lane, LaneSnapshot, arrival_capacity, live_checksum


@dataclass(frozen=True, slots=True)
class Restored:
    """A state to go on from.

    Attributes:
        state: the lanes, adapted to the config if that has changed.
        capacity: tokens of the shortest sequence ahead, if the config has changed that; else None.
    """

    state: LoaderState
    capacity: int | None = None

    @classmethod
    def of(cls, state: LoaderState, config: DataConfig, changes: Sequence[Change]) -> Restored:
        """The state as ``config`` goes on from it, which differs from the state's by ``changes``.

        Raises:
            StateError: a source that was removed still has documents waiting to be packed.
        """
        if not changes:
            return cls(state)
        shorter = any(change.field == "sequence_length" for change in changes)
        return cls(
            state.adapted([source.id for source in config.sources]),
            arrival_capacity(config, state.step) if shorter else None,
        )

    def begin(self, lane: Lane) -> Revival:
        """Begin to measure what waited in ``lane``; StateError if the state lacks the lane."""
        return Revival(lane, self.state.lane(lane.number), self.capacity)


class Revival:
    """A lane being restored; `finish` waits for its live documents.

    Args:
        lane: a lane at its start.
        state: where it is to stand.
        capacity: see `Restored`.
    """

    def __init__(self, lane: Lane, state: LaneState, capacity: int | None = None) -> None:
        self._lane = lane
        self._state = state
        self._capacity = capacity
        self._live = [*state.live, *([state.rest] if state.rest else [])]
        self._draws = list(dict.fromkeys((live.source, live.position) for live in self._live))
        self._refs, self._tickets = lane.measure_again(self._draws)

    def finish(self) -> None:
        """Put the lane where the checkpoint was.

        Raises:
            StateError: a live document no longer measures as it did, or does not fit any more.
        """
        state, lane = self._state, self._lane
        live = self._measured()
        pieces = [lane.sequencer.revive(*pair) for pair in live]
        rest = pieces.pop() if state.rest else None
        if live_checksum(pieces, rest) != state.checksum:
            raise StateError(
                f"lane {lane.number}: the {len(live)} documents that waited to be packed do not "
                "measure as they did when the state was saved (another version of the tokenizer, "
                "of a library or of a user's format function?)"
            )
        sequencer = SequencerState(
            num_sequences=state.num_sequences,
            pool=tuple(pieces),
            rest=rest,
            quarantined_in_row=state.quarantined_in_row,
            counts=state.counts,
            digest=state.digest,
            ended=state.ended,
        )
        cursor = LaneCursor(lane.number, state.draw, list(state.positions))
        lane.resume(LaneSnapshot(cursor, sequencer))
        if self._capacity is not None:
            lane.sequencer.shrink(live, self._capacity)

    def _measured(self) -> list[tuple[LiveRef, MeasuredDocument]]:
        """Each waiting piece with its document, as measured now."""
        results: Sequence[Measurement | Exception] = [
            item for ticket in self._tickets for item in ticket.result()
        ]
        found = dict(zip(self._draws, zip(self._refs, results, strict=True), strict=True))
        pairs = []
        for live in self._live:
            ref, item = found[live.source, live.position]
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Rejected):
                raise StateError(
                    f"{item.shard}, key {item.key!r}: waited to be packed when the state was saved "
                    f"and is now {item.outcome} at stage {item.stage}: {item.reason}"
                )
            stop = live.stop or len(item.tokens)
            pairs.append((LiveRef(ref, live.start, stop, live.fitted), item))
        return pairs
