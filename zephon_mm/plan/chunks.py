"""Chunks: runs of neighbouring samples of one shard, the unit that is dealt to the lanes.

A chunk of shard ``s`` holds ``min(max_chunk[s], clamp(N // (64·L), 1, 256))`` samples, the shard's
last one fewer: small enough that its bytes stay near 64 MiB (``max_chunk``, from the manifest) and
that each of the ``L`` lanes has many. Chunks are numbered in shard order. Nothing is stored for a
chunk, only three whole numbers for a shard, and a chunk is found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

MAX_CHUNK = 256
CHUNKS_A_LANE = 64

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SourceShape:
    """How many samples a source has, and where; from its manifest.

    Attributes:
        num_samples: int64 [shards], samples of each shard; 0 is allowed.
        max_chunk: int64 [shards], most samples that a chunk of the shard may hold, 1 … 256.
    """

    num_samples: Ints
    max_chunk: Ints


class ChunkTable:
    """The chunks of one source.

    Args:
        source_id: for messages.
        shape: the source's shards.
        lanes: ``L``; with the number of samples it decides the chunk size.

    Raises:
        ConfigError: the arrays do not belong together.
    """

    def __init__(self, source_id: str, shape: SourceShape, lanes: int) -> None:
        samples = np.ascontiguousarray(shape.num_samples, dtype=np.int64)
        largest = np.ascontiguousarray(shape.max_chunk, dtype=np.int64)
        if samples.ndim != 1 or samples.shape != largest.shape:
            raise ConfigError(
                f"source {source_id!r}: num_samples has shape {samples.shape} and max_chunk "
                f"{largest.shape}; expected one number a shard in each: rebuild its index"
            )
        if len(samples) and (samples.min() < 0 or largest.min() < 1 or largest.max() > MAX_CHUNK):
            raise ConfigError(
                f"source {source_id!r}: samples of a shard must be 0 or more and max_chunk in "
                f"[1, {MAX_CHUNK}]; got at least {samples.min()} and {largest.min()} … "
                f"{largest.max()}: rebuild its index"
            )
        self.num_samples = int(samples.sum())
        self.chunk_size = max(1, min(MAX_CHUNK, self.num_samples // (CHUNKS_A_LANE * lanes)))
        self._samples = samples
        self._sizes = np.minimum(largest, self.chunk_size)
        self._starts = np.zeros(len(samples) + 1, dtype=np.int64)
        np.cumsum(-(-samples // self._sizes), out=self._starts[1:])
        self.num_chunks = int(self._starts[-1])

    def locate(self, chunks: Ints) -> tuple[Ints, Ints, Ints]:
        """Shard, first sample and number of samples of each chunk: three int64 arrays."""
        shards = np.searchsorted(self._starts, chunks, side="right") - 1
        sizes = self._sizes[shards]
        first = (chunks - self._starts[shards]) * sizes
        return shards, first, np.minimum(sizes, self._samples[shards] - first)
