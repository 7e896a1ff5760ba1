"""Bytes of remote shards, fetched before they are asked for: fewer requests, and no waiting.

`Neighbours` is for measuring, which reads the small members of many samples. Chunks are runs of
neighbouring samples, so one request takes the small members of the samples around too, as far as
the gaps between them (pictures, say) are small. What is not small is read over and let go.
`background.Background` does that for blocks of samples that are not measured yet, so that workers
need not wait for it.

`Expected` is for decoding, which reads one large member after another. As a decoding task is
submitted, its bytes are put on a list; some threads fetch what is on it, in order and within a
bound, while earlier ones are decoded.

Neither raises a failure: what could not be fetched ahead is read again in its place, where faults
are retried and raised. Neither is used in a forked child.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .background import MAX_LISTED, MAX_THREADS, in_parallel, start
from .index import Data, Member
from .sidecar import ShardIndex

_log = logging.getLogger(__name__)

Shard = tuple[int, int]
Place = tuple[int, int, int]
"""Source, shard, and a member's position."""
Fetch = Callable[[Shard, int, int], Data]
"""``fetch(shard, start, length)``: one request."""

SMALL_BYTES: Final = 64 << 10
GAP_BYTES: Final = 64 << 10
SPAN_BYTES: Final = 2 << 20
GROUP_SAMPLES: Final = 64
_WASTE: Final = 256


@dataclass(frozen=True, slots=True)
class Span:
    """Neighbouring small members of a shard: what one request fetches."""

    shard: Shard
    members: tuple[tuple[int, Member], ...]

    @property
    def start(self) -> int:
        """Its first byte in the shard."""
        return self.members[0][1].offset

    @property
    def length(self) -> int:
        """Its bytes, gaps included."""
        last = self.members[-1][1]
        return last.offset + last.stored - self.start


class Neighbours:
    """Small members, fetched with those around them. Thread-safe.

    Args:
        fetch: one request.
        max_bytes: held at most; the oldest are let go. If many go unused (more lanes than fit),
            neighbours are no longer fetched, until fewer do.
    """

    def __init__(self, fetch: Fetch, max_bytes: int) -> None:
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._held: OrderedDict[Span, dict[int, bytes]] = OrderedDict()
        self._span_of: dict[Place, Span] = {}
        self._busy: set[Span] = set()
        self._bytes = self._used = self._unused = 0

    def gather(self, wanted: Sequence[tuple[ShardIndex, Shard, int]]) -> None:
        """Have the small members of these samples (index, shard, sample) here, where possible."""
        if os.getpid() != self._pid:
            return
        spans: dict[Span, None] = {}
        alone = self._unused > self._used + _WASTE
        for index, shard, sample in wanted:
            if not all((*shard, place) in self._span_of for place, _ in _small(index, sample)):
                spans.update(dict.fromkeys(span_around(index, shard, sample, alone)))
        mine: list[Span] = []
        try:
            with self._change:
                mine += [span for span in spans if span not in self._busy]
                self._busy.update(mine)
            in_parallel(self._get, mine)
        finally:  # also of a KeyboardInterrupt: nobody is to wait for what doesn't come
            with self._change:
                self._busy.difference_update(mine)
                self._change.notify_all()
        with self._change:
            while any(span in self._busy for span in spans):
                self._change.wait()  # as long as another's requests take

    def take(self, place: Place) -> bytes | None:
        """A member's stored bytes, if they are here; handed out once."""
        if os.getpid() != self._pid:
            return None
        with self._change:
            span = self._span_of.pop(place, None)
            if span is None:
                return None
            data = self._held[span].pop(place[2])
            if not self._held[span]:
                del self._held[span]
            self._bytes -= len(data)
            self._used += 1
            return data

    def clear(self) -> None:
        """Let go of everything."""
        if os.getpid() == self._pid:
            with self._change:
                self._held.clear()
                self._span_of.clear()
                self._bytes = 0

    def _get(self, span: Span) -> None:
        try:
            data = memoryview(self._fetch(span.shard, span.start, span.length))
            found = {
                place: bytes(data[member.offset - span.start :][: member.stored])
                for place, member in span.members
            }
        except Exception:  # whoever reads the member meets it again, and raises it
            found = {}
        with self._change:
            self._busy.discard(span)
            self._change.notify_all()
            if found:
                self._drop(span)
                self._held[span] = found
                self._span_of.update({(*span.shard, place): span for place in found})
                self._bytes += sum(map(len, found.values()))
            while self._bytes > self._max_bytes and len(self._held) > 1:
                self._unused += self._drop(next(iter(self._held)))
            if self._used + self._unused > 16 * _WASTE:  # what was long ago counts less
                self._used, self._unused = self._used // 2, self._unused // 2

    def _drop(self, span: Span) -> int:
        """Let go of a span; how many of its members nobody had asked for."""
        left = self._held.pop(span, {})
        for place in left:
            self._span_of.pop((*span.shard, place), None)
        self._bytes -= sum(map(len, left.values()))
        return len(left)


def span_around(index: ShardIndex, shard: Shard, sample: int, alone: bool) -> list[Span]:
    """The spans that hold the sample's small members, with neighbours unless ``alone``.

    Every sample of a span has the same span: it is cut where a gap is too large, or it is too long,
    counted from the first sample of a fixed group on.
    """
    first = sample - sample % GROUP_SAMPLES
    last = min(first + GROUP_SAMPLES, index.num_samples)
    group = range(sample, sample + 1) if alone else range(first, last)
    own = {place for place, _ in _small(index, sample)}
    if not own:
        return []
    if not alone:
        group = _reach(index, sample, group)
    members = sorted(
        (found for number in group for found in _small(index, number)),
        key=lambda found: found[1].offset,
    )
    runs: list[list[tuple[int, Member]]] = []
    for place, member in members:
        if runs and _joins(runs[-1][0][1], runs[-1][-1][1], member):
            runs[-1].append((place, member))
        else:
            runs.append([(place, member)])
    return [Span(shard, tuple(run)) for run in runs if any(place in own for place, _ in run)]


def _reach(index: ShardIndex, sample: int, group: range) -> range:
    """The samples around, as far as one's small members come soon after the other's."""

    def near(one: int, other: int) -> bool:
        a, b = _small(index, one), _small(index, other)
        if not a or not b:
            return False
        gap = b[0][1].offset - (a[-1][1].offset + a[-1][1].stored)
        return 0 <= gap <= GAP_BYTES

    first, last = sample, sample + 1
    while first > group.start and near(first - 1, first):
        first -= 1
    while last < group.stop and near(last - 1, last):
        last += 1
    return range(first, last)


def _joins(first: Member, last: Member, member: Member) -> bool:
    gap = member.offset - (last.offset + last.stored)
    return 0 <= gap <= GAP_BYTES and member.offset + member.stored - first.offset <= SPAN_BYTES


def _small(index: ShardIndex, sample: int) -> list[tuple[int, Member]]:
    """Small members that are no media, by offset."""
    found = [(place, index.member(place)) for place in index.members(sample).values()]
    small = [pair for pair in found if pair[1].probe is None and pair[1].stored <= SMALL_BYTES]
    return sorted(small, key=lambda pair: pair[1].offset)


@dataclass(slots=True)
class _Coming:
    size: int
    done: threading.Event = field(default_factory=threading.Event)
    data: Data | None = None


class Expected:
    """Large members that will be asked for soon, in order. Thread-safe.

    Threads live while there is something to fetch. After a failure what is listed is left to
    whoever reads it, who pauses between tries: a store in trouble isn't asked without pause.

    Args:
        fetch: one request.
        max_bytes: fetched and not taken; one that is larger is left to whoever reads it.
    """

    def __init__(self, fetch: Fetch, max_bytes: int) -> None:
        self._fetch = fetch
        self._max_bytes = max_bytes
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._listed: OrderedDict[Place, Member] = OrderedDict()
        self._coming: OrderedDict[Place, _Coming] = OrderedDict()
        self._bytes = self._threads = 0
        self._warned = False

    def expect(self, place: Place, member: Member) -> None:
        """This member will be read soon."""
        if os.getpid() != self._pid or member.stored > self._max_bytes:
            return
        with self._lock:
            if place in self._coming or place in self._listed or len(self._listed) >= MAX_LISTED:
                return
            self._listed[place] = member
        self._begin()

    def take(self, place: Place) -> Data | None:
        """A member's stored bytes, if they are here or on their way; handed out once."""
        if os.getpid() != self._pid:
            return None
        with self._lock:
            if self._listed.pop(place, None) is not None:
                self._forget_oldest()
                return None
            coming = self._coming.get(place)
        if coming is None:
            return None
        coming.done.wait()  # as long as a request takes: that has a time-out
        with self._lock:
            if self._coming.get(place) is coming:
                del self._coming[place]
                self._bytes -= coming.size
        self._begin()
        return coming.data

    def clear(self) -> None:
        """Forget everything; what is on its way is dropped when it comes."""
        if os.getpid() == self._pid:
            with self._lock:
                self._listed.clear()
                self._coming.clear()
                self._bytes = 0

    def _forget_oldest(self) -> None:
        """Room is lacking for what is asked for: what came long ago may not be asked for at all."""
        oldest = next(iter(self._coming), None)
        if oldest is not None and self._coming[oldest].done.is_set():
            self._bytes -= self._coming.pop(oldest).size

    def _begin(self) -> None:
        with self._lock:
            if not self._listed or self._threads >= MAX_THREADS or not self._room():
                return
            self._threads += 1
        thread = threading.Thread(target=self._run, name="zephon_mm-ahead", daemon=True)
        if not start(thread):
            with self._lock:
                self._threads -= 1

    def _room(self) -> bool:
        following = next(iter(self._listed.values()), None)
        return following is not None and (
            not self._bytes or self._bytes + following.stored <= self._max_bytes
        )

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._room():
                    self._threads -= 1
                    return
                place, member = self._listed.popitem(last=False)
                coming = self._coming[place] = _Coming(member.stored)
                self._bytes += member.stored
            try:
                coming.data = self._fetch(place[:2], member.offset, member.stored)
            except Exception as error:  # whoever reads the member meets it again, and raises it
                self._give_up(error)
            except BaseException:
                with self._lock:
                    self._threads -= 1
                raise
            finally:
                coming.done.set()

    def _give_up(self, error: Exception) -> None:
        """Fetch nothing more of what is listed; the first failure is told."""
        with self._lock:
            self._listed.clear()
            first, self._warned = not self._warned, True
        if first:
            _log.warning("fetching ahead failed, members are read as they are needed: %s", error)
