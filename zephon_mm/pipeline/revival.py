"""What waited in a lane when its state was saved, measured again as the sequencer comes to it.

A restored lane stands where it stood without a byte read: the state holds all that packing asks
about a waiting document. It is measured again when it is packed, and must then be what it was. So
the first batch costs what it holds, however many documents wait; those that have waited longest are
measured ahead of it, where there are workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..backends import Ticket
from ..errors import StateError, WorkerDiedError
from ..sample import LiveDocument, MeasuredDocument, Measurement, Rejected, SampleRef

Draw = tuple[int, int]
"""Source and position, see `SampleRef`."""


@dataclass(slots=True)
class _Block:
    """Some draws that were submitted together; their results, once they were taken."""

    refs: list[SampleRef]
    ticket: Ticket[Sequence[Measurement | Exception]]
    results: dict[Draw, Measurement | Exception] = field(default_factory=dict)


class Revival:
    """Measures a lane's waiting documents again, each once.

    Args:
        find: the reference of a source's draw at a position.
        submit: begins to measure some.
        alone: measures one, of a block that a worker process died of.
        window: tasks ahead; 0: none.
        block: documents that a task measures ahead.
    """

    def __init__(
        self,
        find: Callable[[int, int], SampleRef],
        submit: Callable[[list[SampleRef]], Ticket[Sequence[Measurement | Exception]]],
        alone: Callable[[SampleRef], Measurement | Exception],
        window: int,
        block: int,
    ) -> None:
        self._find = find
        self._submit = submit
        self._alone = alone
        self._window, self._size = window, block
        self._wanted: Counter[Draw] = Counter()  # by so many that wait, of a document that was cut
        self._later: deque[Draw] = deque()
        self._asked: dict[Draw, _Block] = {}

    def begin(self, live: Sequence[LiveDocument]) -> None:
        """These wait, the oldest first."""
        self._wanted = Counter((one.source, one.position) for one in live)
        self._later = deque(self._wanted)

    def prime(self) -> None:
        """Begin to measure ahead, without waiting."""
        if not self._later:
            return
        open_blocks = {id(block) for block in self._asked.values() if not block.results}
        for _ in range(self._window - len(open_blocks)):
            draws: list[Draw] = []
            while self._later and len(draws) < self._size:
                draw = self._later.popleft()
                if draw in self._wanted and draw not in self._asked:
                    draws.append(draw)
            if draws:
                self._ask(draws)

    def __call__(self, live: Sequence[LiveDocument]) -> list[MeasuredDocument]:
        """The documents of these, as measured now.

        Raises:
            StateError: one gives no document any more.
            ZephonError: a failure of the world; it is tried again when it is asked for again.
        """
        draws = [(one.source, one.position) for one in live]
        unasked = [draw for draw in dict.fromkeys(draws) if draw not in self._asked]
        if unasked:
            self._ask(unasked)
        found = [self._result(draw) for draw in draws]
        for draw in draws:  # not before all were found: it may be asked for again
            self._wanted[draw] -= 1
            if self._wanted[draw] <= 0:
                del self._wanted[draw]
                self._asked.pop(draw, None)
        return found

    def close(self) -> None:
        """Cancel what is measured ahead."""
        self._later.clear()
        for block in self._asked.values():
            block.ticket.cancel()
        self._asked.clear()

    def _ask(self, draws: Sequence[Draw]) -> None:
        refs = [self._find(*draw) for draw in draws]
        block = _Block(refs, self._submit(refs))
        self._asked.update(dict.fromkeys(draws, block))

    def _result(self, draw: Draw) -> MeasuredDocument:
        block = self._asked[draw]
        if not block.results:
            try:
                results = block.ticket.result()
            except WorkerDiedError:  # of one of them: which?
                results = [self._alone(ref) for ref in block.refs]
            except Exception:
                self._forget(block)
                raise
            places = [(ref.source, ref.position) for ref in block.refs]
            block.results = dict(zip(places, results, strict=True))
        found = block.results[draw]
        if isinstance(found, Exception):
            self._forget(block)
            raise found
        if isinstance(found, Rejected):
            raise StateError(
                f"{found.shard}, key {found.key!r}: waited to be packed when the state was saved "
                f"and is now {found.outcome} at stage {found.stage}: {found.reason}. Restore with "
                "the versions of the libraries and of your format function that it was saved with"
            )
        return found

    def _forget(self, block: _Block) -> None:
        """What of a block could not be measured is asked for again when it is wanted again."""
        for ref in block.refs:
            draw = ref.source, ref.position
            failed = isinstance(block.results.get(draw), Exception | None)
            if failed and self._asked.get(draw) is block:
                del self._asked[draw]
