"""What a training script writes around loaders that leave it to packing, order or state.

A row that travels between processes is `Flat`: few arrays, which a loader may hold as tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.compare.protocol import Job, Meter
from benchmarks.compare.shards import samples
from benchmarks.compare.work import Document, Making, Packer, Row


@dataclass(frozen=True)
class Flat:
    """A row; its arrays are numpy's, or a peer's own.

    Attributes:
        tokens: Ids, int32 [at most the sequence length].
        lengths: Of the documents that begin the row, in tokens.
        media: Pixels of each of these documents, uint8.
        samples: How many documents the row counts for; None: as many as these.
    """

    tokens: Any
    lengths: Sequence[int]
    media: Sequence[Sequence[Any]]
    samples: int | None = None


def flat(row: Row, convert: Callable[[np.ndarray], Any] = lambda array: array) -> Flat:
    """A packed row, its arrays converted."""
    return Flat(
        convert(row.tokens),
        [len(document.tokens) for document in row.documents],
        [[convert(pixels) for pixels in document.media] for document in row.documents],
    )


def unflat(row: Flat) -> Row:
    """The row again, of numpy arrays."""
    tokens = np.asarray(row.tokens)
    stops = np.cumsum([0, *row.lengths])
    documents = [
        Document(tokens[start:stop], tuple(np.asarray(pixels) for pixels in media))
        for start, stop, media in zip(stops, stops[1:], row.media, strict=False)
    ]
    return Row(tokens, documents)


def deliver(job: Job, meter: Meter, rows: Sequence[Flat]) -> bool:
    """Hand a batch to the meter; True when no further one is wanted."""
    known = [unflat(row) for row in rows] if meter.wants_rows else []
    return meter.batch(
        samples=sum(len(r.lengths) if r.samples is None else r.samples for r in rows),
        tokens=sum(len(row.tokens) for row in rows),
        room=len(rows) * job.sequence_length,
        rows=(row.row for row in known),
        documents=(document.row for row in known for document in row.documents),
    )


class Samples:
    """The samples of shards without end: each epoch the shards in another order."""

    def __init__(self, shards: Sequence[str], seed: int) -> None:
        self._shards = shards
        self._seed = seed
        self.place = {"epoch": 0, "shard": 0, "sample": 0}

    def __iter__(self) -> Iterator[dict[str, bytes]]:
        if not self._shards:
            raise ValueError("no shard is left for this worker: it needs one at least")
        place = self.place
        while True:
            order = list(self._shards)
            random.Random(f"{self._seed} {place['epoch']}").shuffle(order)
            while place["shard"] < len(order):
                for sample in samples(order[place["shard"]], skip=place["sample"]):
                    place["sample"] += 1
                    yield sample
                place |= {"shard": place["shard"] + 1, "sample": 0}
            place |= {"epoch": place["epoch"] + 1, "shard": 0}


class Rows:
    """Packed rows of a stream of lists of documents, and the state of their packing."""

    def __init__(self, job: Job, lists: Iterator[Sequence[Document]]) -> None:
        self._lists = lists
        self._packer = Packer(job.sequence_length, cut=job.work == "text")
        self._ready: list[Row] = []

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> Row:
        while not self._ready:
            for document in next(self._lists):
                self._ready += self._packer.add(document)
        return self._ready.pop(0)

    def state_dict(self) -> dict[str, Any]:
        """What waits: documents with their pixels."""
        return {"waiting": list(self._packer.waiting), "ready": list(self._ready)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._packer.waiting, self._ready = list(state["waiting"]), list(state["ready"])


def documents(job: Job, stream: Iterator[dict[str, bytes]]) -> Iterator[list[Document]]:
    """Those of samples, one after another."""
    making = Making(job.tokenizer)
    for sample in stream:
        yield [making.document(job.work, sample)]


def feed(job: Job, meter: Meter, rows: Rows) -> None:
    """Deliver batches of rows until no further one is wanted."""
    size = job.batch // job.dp_size
    while not deliver(job, meter, [flat(next(rows)) for _ in range(size)]):
        pass


def tensors(found: Sequence[Document]) -> list[tuple[Any, list[Any]]]:
    """Documents as a worker process sends them: PyTorch's tensors go through shared memory."""
    import torch

    return [
        (torch.from_numpy(d.tokens), [torch.from_numpy(np.array(m)) for m in d.media])
        for d in found
    ]


def arrays(found: Sequence[tuple[Any, list[Any]]]) -> list[Document]:
    """The documents again."""
    return [Document(tokens.numpy(), tuple(m.numpy() for m in media)) for tokens, media in found]


class Maker:
    """Makes the documents of a work; picklable, its tokenizer is loaded once a process."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._making: Making | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_making": None}

    def __call__(self, members: dict[str, bytes]) -> Document:
        if self._making is None:
            self._making = Making(self._job.tokenizer)
        return self._making.document(self._job.work, members)
