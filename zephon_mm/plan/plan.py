"""The plan (C3): an endless or finite row of sample references for each lane.

A lane's place in its row is a `LaneCursor`: a draw number and one position a source. Nothing else
is remembered, and starting at any cursor costs the same. The rows depend on the config and the
shards' sizes alone, never on ranks, workers or how far ahead somebody reads. A source's order is
keyed by its id: adding or removing another source changes when its samples come, not their order.

The end (C9). A source with a number of epochs is *exhausted in a lane* when the lane's share of it
is drawn, and then leaves the lane's mixture. With ``stop.when="all_exhausted"`` a lane ends when
nothing is left in its mixture; with ``first_exhausted`` right after the draw that exhausts any of
its sources. A source that is too small to give a lane anything (over all its epochs fewer chunks
than lanes), that is empty or that has weight 0 doesn't count for that lane: it ends no lane and is
never drawn there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from .. import rng
from ..config import DataConfig
from ..errors import ConfigError, StateError
from ..sample import SampleRef
from .chunks import ChunkTable, SourceShape
from .dealing import Dealing, LaneStream
from .mixture import choose, mixture_weights

_FIRST_BLOCK = 32  # draws made at once; doubles up to _BLOCK, so that starting costs little
_BLOCK = 1024


@dataclass(slots=True)
class LaneCursor:
    """Where a lane stands in its row.

    Attributes:
        lane: which lane.
        draw: number of draws made.
        positions: for each source of the config, one past the position of its last draw in the
            lane; 0 before the first.
    """

    lane: int
    draw: int
    positions: list[int]

    def copy(self) -> LaneCursor:
        """An independent copy."""
        return LaneCursor(self.lane, self.draw, list(self.positions))


class Plan:
    """The order of all samples of a run.

    Args:
        config: the run's config.
        shapes: for each of ``config.sources``, its shards' sizes.

    Raises:
        ConfigError: nothing to draw, or a run that could never end.

    Attributes:
        empty_sources: ids of sources without a sample; they are left out of the mixture.
    """

    def __init__(self, config: DataConfig, shapes: Sequence[SourceShape]) -> None:
        if len(shapes) != len(config.sources):
            raise ConfigError(
                f"{len(config.sources)} sources but {len(shapes)} manifests; expected one each"
            )
        self.lanes = config.lanes
        self._seed = config.seed
        self._shuffle = config.shuffle
        self._first_ends = config.stop.when == "first_exhausted"
        self._ids = [source.id for source in config.sources]
        self._weights = mixture_weights(config)
        self._tables = [
            ChunkTable(source.id, shape, config.lanes)
            for source, shape in zip(config.sources, shapes, strict=True)
        ]
        self._dealings: list[Dealing | None] = []
        for source, table in zip(config.sources, self._tables, strict=True):
            epochs = source.epochs or config.stop.epochs
            dealing = Dealing(source.id, table, config.lanes, config.seed, epochs, config.shuffle)
            self._dealings.append(dealing if table.num_samples else None)
        self.empty_sources = tuple(
            source.id
            for source, table in zip(config.sources, self._tables, strict=True)
            if not table.num_samples
        )
        self._drawn = {
            i: dealing
            for i, dealing in enumerate(self._dealings)
            if dealing is not None and self._weights[i] > 0
        }
        self._check(config)

    def _check(self, config: DataConfig) -> None:
        if not self._drawn:
            names = ", ".join(map(repr, self.empty_sources))
            raise ConfigError(
                f"nothing to draw: every source with a weight above 0 is empty ({names} have no "
                "samples); check their urls"
            )
        endless = [self._ids[i] for i, d in self._drawn.items() if d.epochs is None]
        finite = [self._ids[i] for i, d in self._drawn.items() if d.epochs is not None]
        if endless and len(self._drawn) > 1 and not self._shuffle:
            raise ConfigError(
                "shuffle=false draws one source after the other, and "
                f"{', '.join(map(repr, endless))} would never end: set stop.epochs"
            )
        idle = sum(not self._ends(lane) for lane in range(self.lanes)) if finite else 0
        if self._first_ends and endless and idle and config.stop.num_steps is None:
            raise ConfigError(
                f"stop.when='first_exhausted' would never end {idle} of {self.lanes} lanes: "
                f"{', '.join(map(repr, finite))} are too small to give them a sample, and "
                f"{', '.join(map(repr, endless))} repeat for ever; set stop.num_steps, fewer "
                "lanes, or epochs for every source"
            )

    def _ends(self, lane: int) -> bool:
        """Whether the lane's row ends."""
        ends = [dealing.end(lane) for dealing in self._drawn.values()]
        return (self._first_ends and any(ends)) or None not in ends

    @property
    def finite(self) -> bool:
        """Whether every lane's row ends."""
        return all(self._ends(lane) for lane in range(self.lanes))

    def num_samples(self, source: int) -> int:
        """Samples of a source, once."""
        return self._tables[source].num_samples

    def epochs(self, source: int) -> int | None:
        """Passes over a source; None: for ever. 0 for a source that is never drawn."""
        return self._drawn[source].epochs if source in self._drawn else 0

    def lane_samples(self, lane: int, source: int) -> int | None:
        """A source's samples, over all its epochs, in one lane; None: no end. O(lane's chunks)."""
        return self.remaining(self.cursor(lane))[source]

    def remaining(self, cursor: LaneCursor) -> list[int | None]:
        """What each source still has for the cursor's lane; None: no end. O(lane's chunks).

        With ``first_exhausted`` a lane ends before it has drawn all of it.
        """
        self._validate(cursor)
        return [
            self._drawn[i].remaining(cursor.lane, position) if i in self._drawn else 0
            for i, position in enumerate(cursor.positions)
        ]

    def cursor(self, lane: int) -> LaneCursor:
        """The start of a lane's row."""
        return LaneCursor(lane, 0, [0] * len(self._ids))

    def check(self, lane: int, source: int, position: int) -> None:
        """Raise StateError if a draw is surely none of this plan; costs nothing."""
        self._dealing(lane, source).check(lane, position)

    def ref(self, lane: int, source: int, position: int) -> SampleRef:
        """Find a draw again; costs one window. Raises StateError if there is no such draw."""
        return SampleRef(source, *self._dealing(lane, source).find(lane, position), position)

    def _dealing(self, lane: int, source: int) -> Dealing:
        dealing = self._dealings[source] if 0 <= source < len(self._dealings) else None
        if dealing is None or not 0 <= lane < self.lanes:
            raise StateError(
                f"no draw of source {source} in lane {lane}: the config has {len(self._ids)} "
                f"sources and {self.lanes} lanes, and empty sources have no draws"
            )
        return dealing

    def advance(self, cursor: LaneCursor, ref: SampleRef) -> None:
        """Move ``cursor`` past ``ref``, which must be its next draw."""
        if ref.position < cursor.positions[ref.source]:
            raise StateError(
                f"lane {cursor.lane}: the draw at position {ref.position} of source "
                f"{self._ids[ref.source]!r} was already made; the next is at "
                f"{cursor.positions[ref.source]} or later"
            )
        cursor.draw += 1
        cursor.positions[ref.source] = ref.position + 1

    def draws(self, cursor: LaneCursor) -> Iterator[SampleRef]:
        """The references from ``cursor`` on, for ever or to the lane's end.

        ``cursor`` is read once, at the call, and never moved: `advance` does that.
        """
        self._validate(cursor)
        streams = {
            i: LaneStream(dealing, i, cursor.lane, cursor.positions[i])
            for i, dealing in self._drawn.items()
        }
        return chain.from_iterable(self._blocks(cursor.lane, cursor.draw, streams))

    def _blocks(
        self, lane: int, draw: int, streams: dict[int, LaneStream]
    ) -> Iterator[Iterator[SampleRef]]:
        key = rng.key("draw", self._seed, lane)
        size = _FIRST_BLOCK
        counted = [i for i, stream in streams.items() if self._drawn[i].end(lane) != 0]
        while True:
            active = [i for i in counted if not streams[i].exhausted]
            if not active or (self._first_ends and len(active) < len(counted)):
                return
            if self._shuffle:
                weights = [self._weights[i] for i in active]
                places = choose(rng.uniforms(key, draw, size), weights)
            else:
                places = np.zeros(size, np.int64)  # the first source that has draws left
            # Cut the block after the draw that exhausts a source: the mixture changes there.
            for place, i in enumerate(active):
                hits = (places == place).nonzero()[0]
                if len(hits) and streams[i].fill(len(hits)) <= len(hits) and streams[i].complete:
                    places = places[: hits[streams[i].ready - 1] + 1]
            counts = [int((places == place).sum()) for place in range(len(active))]
            taken = [iter(streams[i].take(n)) for i, n in zip(active, counts, strict=True)]
            if len(taken) == 1:
                yield taken[0]
            else:
                yield map(next, map(taken.__getitem__, places.tolist()))
            draw += len(places)
            size = min(2 * size, _BLOCK)

    def _validate(self, cursor: LaneCursor) -> None:
        if not 0 <= cursor.lane < self.lanes or len(cursor.positions) != len(self._ids):
            raise StateError(
                f"a cursor of lane {cursor.lane} with {len(cursor.positions)} positions; the "
                f"config has {self.lanes} lanes and {len(self._ids)} sources"
            )
