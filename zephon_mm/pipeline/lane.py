"""One lane: its draws, measured ahead in parallel, packed in series.

The lane's state is the plan's cursor after the last measurement that the sequencer took, and the
sequencer's own. What was drawn or measured further ahead is not state: it is dropped with the lane
and measured again by whoever goes on from here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat

from ..backends import Backend, OrderedMap, Ticket
from ..config import DataConfig, schedule_min
from ..errors import WorkerDiedError
from ..plan import LaneCursor, Plan
from ..sample import Measurement, Rejected, SampleRef
from ..sequencer import MAX_WAIT, Recipe, Sequencer, SequencerState
from ..sequencer.cutting import Relayout
from ..state import LaneState
from .revival import Revival

BLOCKS = (8, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4)
"""Draws measured by one task, for the first tasks: a lane's first sequence waits for few documents
that it does not need."""

BLOCK = 8
"""The same, of a rank with many lanes, and of what waited in a state."""

LONG_BLOCK = 32
"""The same, of a rank with few lanes, reached by way of a few tasks in between: the tokenizer finds
its tables in the CPU's caches for longer."""

_BETWEEN = (8, 8, 16, 16)

Measure = Callable[[Sequence[SampleRef]], Sequence[Measurement | Exception]]
"""Measures references in order; a failure of the world stands at its place as an exception."""


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """A lane between two sequences, with its live documents: cheap to take, cheap to go on from.

    It is encoded as it is taken, when its documents are in the CPU's caches and no trainer waits.
    """

    cursor: LaneCursor
    sequencer: SequencerState
    _encoded: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        state = self.sequencer
        encoded = LaneState(
            lane=self.cursor.lane,
            num_sequences=state.num_sequences,
            draw=self.cursor.draw,
            positions=tuple(self.cursor.positions),
            counts=state.counts,
            quarantined_in_row=state.quarantined_in_row,
            live=tuple([waiting.live for waiting in state.pool]),
            rest=state.rest.live if state.rest else None,
            digest=state.digest,
            ended=state.ended,
        ).encode()
        object.__setattr__(self, "_encoded", encoded)

    def encode(self) -> bytes:
        """The lane's state as a checkpoint holds it."""
        return self._encoded


class Lane:
    """One lane of a run.

    Args:
        number: which lane.
        config: the data config.
        plan: the plan of the run.
        measure: measures a block of references; runs on the backend.
        backend: where it runs.
        relayout: the model family's rule for media that are too large.
        end_ids: token ids that end a document.
        on_rejected: called for every sample that gives no document, in order.
        name: a sample's shard and key, for errors.
        window: blocks measured ahead.
        block: draws that a task measures, once the lane has been going for a while.
        announce: told of each block as it is submitted.
    """

    def __init__(
        self,
        number: int,
        *,
        config: DataConfig,
        plan: Plan,
        measure: Measure,
        backend: Backend,
        relayout: Relayout,
        end_ids: frozenset[int] = frozenset(),
        on_rejected: Callable[[Rejected], None] = lambda rejected: None,
        name: Callable[[SampleRef], tuple[str, str]] = lambda ref: ("a sample", str(ref)),
        window: int = 1,
        block: int = BLOCK,
        announce: Callable[[Sequence[SampleRef]], None] = lambda refs: None,
    ) -> None:
        self._name = name
        self._announce = announce
        self.number = number
        self._config = config
        self._plan = plan
        self._measure = measure
        self._backend = backend
        self._window = window
        self._sizes = (*BLOCKS, *(min(size, block) for size in _BETWEEN)), block
        self._cursor = plan.cursor(number)
        self._stream: OrderedMap[list[SampleRef], Sequence[Measurement | Exception]] | None = None
        self._asked: deque[list[SampleRef]] = deque()
        self._block: deque[Measurement | Exception] = deque()
        self._revival = Revival(
            find=lambda source, position: plan.ref(number, source, position),
            submit=self._submit,
            alone=self._alone,
            window=0 if backend.name == "serial" else window,
            block=BLOCK,
        )
        self._sequencer = Sequencer(
            lane=number,
            num_sources=len(config.sources),
            packing=config.packing,
            pull=self._pull,
            relayout=relayout,
            again=self._revival,
            end_ids=end_ids,
            max_quarantined_in_row=config.max_consecutive_quarantined,
            on_bad_sample=config.on_bad_sample,
            on_rejected=on_rejected,
        )

    def prime(self) -> None:
        """Start measuring ahead, without waiting."""
        self._revival.prime()
        if self._stream is None and not self._sequencer.ended:
            refs = self._plan.draws(self._cursor.copy())
            self._stream = OrderedMap(
                self._backend,
                self._measure,
                self._noted(_blocks(refs, *self._sizes)),
                window=self._window,
                label="measure",
            )
        if self._stream is not None:
            self._stream.prime()

    def next(self, step: int) -> Recipe | None:
        """The lane's next sequence, which belongs to ``step``; None at the lane's end."""
        return self._sequencer.next(
            self._config.sequence_length_at(step), arrival_capacity(self._config, step)
        )

    def snapshot(self) -> LaneSnapshot:
        """Where the lane stands after its last sequence."""
        return LaneSnapshot(self._cursor.copy(), self._sequencer.state())

    def resume(self, snapshot: LaneSnapshot) -> None:
        """Go on from a snapshot of this process; only before the first ``next``."""
        self._cursor = snapshot.cursor.copy()
        self._sequencer.restore(snapshot.sequencer)
        self._revival.begin(self._sequencer.unmeasured)
        if snapshot.sequencer.pool:  # enough for a sequence, but for a few
            sizes, last = self._sizes
            self._sizes = sizes[1:], last

    def restore(self, state: LaneState, capacity: int | None = None) -> None:
        """Go on from a checkpoint; only before the first ``next``. Nothing is read.

        Args:
            state: where it is to stand.
            capacity: tokens of the shortest sequence ahead, if the config has changed that: then
                what waits and is too long is measured now, and cut again.

        Raises:
            StateError: what waits does not fit any more, or does not measure as it did.
        """
        sequencer = SequencerState(
            num_sequences=state.num_sequences,
            pool=state.live,
            rest=state.rest,
            quarantined_in_row=state.quarantined_in_row,
            counts=state.counts,
            digest=state.digest,
            ended=state.ended,
        )
        for one in (*state.live, *([state.rest] if state.rest else [])):
            self._plan.check(self.number, one.source, one.position)
        cursor = LaneCursor(self.number, state.draw, list(state.positions))
        self.resume(LaneSnapshot(cursor, sequencer))
        if capacity is not None:
            self._sequencer.shrink(capacity)

    def close(self) -> None:
        """Cancel what is measured ahead."""
        self._revival.close()
        if self._stream is not None:
            self._stream.close()

    def _pull(self) -> Measurement | None:
        while not self._block:
            self.prime()
            block = self._next_block()
            if block is None:
                return None
            self._block.extend(block)
        found = self._block[0]
        if isinstance(found, Exception):
            raise found  # it stays in its place: asking again gives it again
        self._block.popleft()
        self._plan.advance(self._cursor, found.ref)
        return found

    def _next_block(self) -> Sequence[Measurement | Exception] | None:
        if self._stream is None:
            return None
        try:
            block = next(self._stream, None)
        except WorkerDiedError:  # of one sample of the block: which?
            return [self._alone(ref) for ref in self._asked.popleft()]
        if block is not None:
            self._asked.popleft()
        return block

    def _submit(self, refs: list[SampleRef]) -> Ticket[Sequence[Measurement | Exception]]:
        self._announce(refs)
        return self._backend.submit(self._measure, refs)

    def _alone(self, ref: SampleRef) -> Measurement | Exception:
        try:
            return self._backend.submit(self._measure, [ref]).result()[0]
        except WorkerDiedError as error:
            return error.of_sample(*self._name(ref))

    def _noted(self, blocks: Iterator[list[SampleRef]]) -> Iterator[list[SampleRef]]:
        for block in blocks:
            self._asked.append(block)
            self._announce(block)
            yield block


def arrival_capacity(config: DataConfig, step: int) -> int:
    """The shortest sequence that a document arriving in ``step`` may still be packed in.

    Some sequences start with the oldest document, so none waits longer than `MAX_WAIT` sequences.
    """
    per_step = schedule_min(config.global_batch, step, 1 << 62) // config.lanes
    return schedule_min(config.sequence_length, step, step + -(-MAX_WAIT // per_step))


def block_of(num_lanes: int) -> int:
    """Draws that a task measures, of a rank with so many lanes."""
    return max(BLOCK, min(LONG_BLOCK, 128 // num_lanes))


def _blocks(
    refs: Iterator[SampleRef], first: Sequence[int] = (), size: int = BLOCK
) -> Iterator[list[SampleRef]]:
    for length in chain(first, repeat(size)):
        block = list(islice(refs, length))
        if not block:
            return
        yield block
