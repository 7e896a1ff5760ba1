"""How one source's chunks are dealt over the lanes and shuffled inside them.

The chunk orders of epochs 0, 1, 2, … (each a keyed permutation of the ``C`` chunks) make one
endless row, dealt round-robin: chunk ``j`` of lane ``l`` is ``g = j·L + l`` of the row, that is
place ``g mod C`` of epoch ``g div C``. With ``E`` epochs the row ends at ``E·C``. So over all lanes
every sample comes exactly once an epoch, whatever the numbers; a source with fewer chunks than
lanes only reaches a lane less than once an epoch.

Within a lane, the chunks of an epoch are cut into **windows** of ``window_chunks`` (the epoch's
last window in the lane may hold fewer), and the samples of a window are permuted. A draw's
**position** in the lane is ``j0 · 256 + place``, ``j0`` being the window's first chunk and
``place`` the draw's place in the window: a chunk holds at most 256 samples, so positions are unique
and rise, with gaps, and a position alone finds its draw again, at the cost of one window (at most
4,096 samples).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np

from .. import rng
from ..errors import StateError
from ..sample import SampleRef
from .chunks import MAX_CHUNK, ChunkTable, Ints
from .permutation import Permutation

_RUN_SAMPLES = 2048  # windows are made together up to about so many samples
_COUNT_BLOCK = 1 << 16
_KEPT = 4


class Window(NamedTuple):
    """Chunks ``start … stop - 1`` of a lane, shuffled together: window ``number`` of ``epoch``."""

    epoch: int
    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Run:
    """The draws of some whole windows of a lane, in order: int64 arrays of one length."""

    epoch: int
    stop: int
    shards: Ints
    samples: Ints
    positions: Ints


class Dealing:
    """One source, dealt over the lanes.

    Args:
        source_id: the name that keys the source's randomness.
        table: the source's chunks; at least one.
        lanes: ``L``.
        seed: of the run.
        epochs: passes over the source; None: for ever.
        shuffle: false: chunks and their samples in the order of the shards.
    """

    def __init__(
        self,
        source_id: str,
        table: ChunkTable,
        lanes: int,
        seed: int,
        epochs: int | None,
        shuffle: bool = True,
    ) -> None:
        self.table = table
        self.lanes = lanes
        self.epochs = epochs
        # Small sources have small chunks: more of them make a window that is worth shuffling.
        self.window_chunks = max(16, min(128, 1024 // table.chunk_size))
        self._id = source_id
        self._seed = seed
        self._shuffle = shuffle
        self._orders: dict[int, Permutation] = {}
        self._kept: dict[tuple[int, int], Run] = {}

    def first_chunk(self, lane: int, epoch: int) -> int:
        """The lane's first chunk of an epoch: the number of its chunks in all epochs before."""
        return max(0, -((lane - epoch * self.table.num_chunks) // self.lanes))

    def end(self, lane: int) -> int | None:
        """Number of chunks that the lane ever gets; None: no end."""
        return None if self.epochs is None else self.first_chunk(lane, self.epochs)

    def window(self, lane: int, chunk: int) -> Window:
        """The window that holds a chunk of the lane."""
        epoch = (chunk * self.lanes + lane) // self.table.num_chunks
        first = self.first_chunk(lane, epoch)
        number = (chunk - first) // self.window_chunks
        start = first + number * self.window_chunks
        stop = min(start + self.window_chunks, self.first_chunk(lane, epoch + 1))
        return Window(epoch, number, start, stop)

    def run(self, lane: int, window: Window, *, single: bool = False) -> Run:
        """The draws of a window and, unless ``single``, of the next few windows of its epoch."""
        mean = max(1, self.table.num_samples // self.table.num_chunks)
        group = 1 if single else max(1, _RUN_SAMPLES // (mean * self.window_chunks))
        stop = window.stop
        if group > 1:
            next_epoch = self.first_chunk(lane, window.epoch + 1)
            stop = min(window.start + group * self.window_chunks, next_epoch)
        shards, first, counts = self._locate(lane, window.epoch, window.start, stop)
        ends = np.cumsum(counts)
        shards = np.repeat(shards, counts)
        samples = np.arange(len(shards)) + np.repeat(first - (ends - counts), counts)
        order = np.empty(len(shards), dtype=np.int64)
        positions = np.empty(len(shards), dtype=np.int64)
        low = 0
        for i in range(-(-(stop - window.start) // self.window_chunks)):
            start = window.start + i * self.window_chunks
            high = int(ends[min(start + self.window_chunks, stop) - window.start - 1])
            order[low] = low
            if not self._shuffle:
                order[low:high] = np.arange(low, high)
            elif high - low > 1:
                key = rng.key("window", self._seed, self._id, lane, window.epoch, window.number + i)
                order[low:high] = Permutation(key, high - low).all() + low
            positions[low:high] = np.arange(start * MAX_CHUNK, start * MAX_CHUNK + high - low)
            low = high
        return Run(window.epoch, stop, shards[order], samples[order], positions)

    def check(self, lane: int, position: int) -> None:
        """Raise StateError if a draw lies behind the last pass; reads no window."""
        chunk, end = position // MAX_CHUNK, self.end(lane)
        if end is not None and chunk >= end:
            epoch = (chunk * self.lanes + lane) // self.table.num_chunks
            raise StateError(
                f"source {self._id!r}, lane {lane}: a document of its pass {epoch + 1} waits to be "
                f"packed, and the config ends it after {self.epochs}: let it have as many passes "
                "(stop.epochs, or the source's epochs), or restore an earlier state"
            )

    def find(self, lane: int, position: int) -> tuple[int, int, int]:
        """Shard, sample and epoch of the draw at a position. Raises StateError if there is none."""
        chunk, end = position // MAX_CHUNK, self.end(lane)
        if position >= 0 and (end is None or chunk < end):
            window = self.window(lane, chunk)
            run = self._kept.get((lane, window.start))
            if run is None:
                if len(self._kept) >= _KEPT:
                    self._kept.clear()
                run = self._kept[lane, window.start] = self.run(lane, window, single=True)
            place = position - window.start * MAX_CHUNK
            if place < len(run.shards):
                return int(run.shards[place]), int(run.samples[place]), run.epoch
        raise StateError(
            f"source {self._id!r}, lane {lane}: there is no draw at position {position}; the state "
            "belongs to other shards, lanes or epochs than this config's"
        )

    def remaining(self, lane: int, position: int) -> int | None:
        """Samples of the lane from a position on; None: no end. Scans the lane's chunks."""
        end = self.end(lane)
        if end is None:
            return None
        chunk = position // MAX_CHUNK
        if chunk >= end:
            return 0
        window = self.window(lane, chunk)
        here = self.count(lane, window.start, window.stop)
        left = max(0, here - (position - window.start * MAX_CHUNK))
        return left + self.count(lane, window.stop, end)

    def count(self, lane: int, start: int, stop: int) -> int:
        """Samples in chunks ``start … stop - 1`` of the lane; scans just those chunks."""
        total = 0
        while start < stop:
            epoch = (start * self.lanes + lane) // self.table.num_chunks
            until = min(stop, start + _COUNT_BLOCK, self.first_chunk(lane, epoch + 1))
            total += int(self._locate(lane, epoch, start, until)[2].sum())
            start = until
        return total

    def _locate(self, lane: int, epoch: int, start: int, stop: int) -> tuple[Ints, Ints, Ints]:
        first = start * self.lanes + lane - epoch * self.table.num_chunks
        places = first + np.arange(stop - start, dtype=np.int64) * self.lanes
        return self.table.locate(self._order(epoch).take(places) if self._shuffle else places)

    def _order(self, epoch: int) -> Permutation:
        order = self._orders.get(epoch)
        if order is None:
            if len(self._orders) >= _KEPT:
                self._orders.clear()
            key = rng.key("order", self._seed, self._id, epoch)
            order = self._orders[epoch] = Permutation(key, self.table.num_chunks)
        return order


class LaneStream:
    """The draws of one source in one lane from a position on, made a few windows ahead."""

    def __init__(self, dealing: Dealing, source: int, lane: int, position: int) -> None:
        self._dealing = dealing
        self._source = source
        self._lane = lane
        self._end = dealing.end(lane)
        self._next = position // MAX_CHUNK  # a chunk of the next window to make
        self._from = position  # draws before it are past
        self._runs: list[Run] = []
        self._taken = 0  # of the first run
        self.ready = 0

    @property
    def exhausted(self) -> bool:
        """Whether no draw is left."""
        return self._end is not None and self.fill(1) == 0

    @property
    def complete(self) -> bool:
        """Whether what is ready is all that is left."""
        return self._end is not None and self._next >= self._end

    def fill(self, count: int) -> int:
        """Make draws until ``count`` are ready or none is left; the number that is ready."""
        while self.ready < count and not self.complete:
            run = self._dealing.run(self._lane, self._dealing.window(self._lane, self._next))
            self._next = run.stop
            past = int(np.searchsorted(run.positions, self._from))
            if not self._runs:
                self._taken = past
            if past < len(run.positions):
                self._runs.append(run)
                self.ready += len(run.positions) - past
        return self.ready

    def take(self, count: int) -> list[SampleRef]:
        """The next ``count`` of what is ready."""
        taken: list[SampleRef] = []
        while len(taken) < count:
            run, low = self._runs[0], self._taken
            high = min(low + count - len(taken), len(run.positions))
            taken += map(
                SampleRef,
                repeat(self._source),
                run.shards[low:high].tolist(),
                run.samples[low:high].tolist(),
                repeat(run.epoch),
                run.positions[low:high].tolist(),
            )
            self._taken = high
            if high == len(run.positions):
                del self._runs[0]
                self._taken = 0
        self.ready -= count
        return taken
