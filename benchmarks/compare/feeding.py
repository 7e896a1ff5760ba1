"""What a training script writes around loaders that leave it to packing, order or state.

A row that travels between processes is `Flat`: few arrays, which a loader may hold as tensors.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.compare.protocol import Job, Meter, Seen
from benchmarks.compare.shards import samples
from benchmarks.compare.work import Document, Making, Packer, Row, decoded


@dataclass(frozen=True)
class Flat:
    """A row; its arrays are numpy's, or a peer's own.

    Attributes:
        tokens: Ids, int32 [at most the sequence length].
        lengths: Of the documents that begin the row, in tokens.
        media: Pixels of each of these documents, uint8.
    """

    tokens: Any
    lengths: Sequence[int]
    media: Sequence[Sequence[Any]]


def flat(row: Row, convert: Callable[[np.ndarray], Any] = lambda array: array) -> Flat:
    """A packed row, its arrays converted."""
    return Flat(
        convert(row.tokens),
        [len(document.tokens) for document in row.documents],
        [[convert(pixels) for pixels in document.media] for document in row.documents],
    )


def seen(job: Job, row: Flat) -> Seen:
    """What the row holds; of texts, which may be cut anywhere, what lies between two ends."""
    tokens = np.asarray(row.tokens).astype("<i4", copy=False)
    media = [np.asarray(pixels).tobytes() for document in row.media for pixels in document]
    if job.work == "text":
        stops = np.flatnonzero(tokens == job.end) + 1
    else:
        stops = np.cumsum([0, *row.lengths])
    whole = [tokens[a:b].tobytes() for a, b in itertools.pairwise(stops)]
    return Seen(tokens.tobytes() + b"".join(media), whole, media)


def deliver(job: Job, meter: Meter, rows: Sequence[Flat]) -> bool:
    """Hand a batch to the meter; True when no further one is wanted."""
    if job.workers == 0:
        meter.decoded = decoded
    return meter.batch(
        samples=sum(int(np.count_nonzero(np.asarray(row.tokens) == job.end)) for row in rows),
        tokens=sum(len(row.tokens) for row in rows),
        room=len(rows) * job.sequence_length,
        media=sum(len(document) for row in rows for document in row.media),
        look=lambda: (seen(job, row) for row in rows),
    )


def drive(
    job: Job, meter: Meter, batches: Iterable[Sequence[Flat]], save: Callable[[str], object]
) -> None:
    """Deliver batches until no further one is wanted.

    Args:
        job: what is done.
        meter: whom to tell.
        batches: without end.
        save: writes the state after the last delivered batch to a file.
    """
    for rows in batches:
        ended = deliver(job, meter, rows)
        meter.save(save)
        if ended:
            return
    raise RuntimeError("the loader has ended, though its data are repeated")


def stateless(path: str) -> None:
    """The ``save`` of those that have no state; they `skip` the jobs that want one."""
    raise RuntimeError(f"no state to write to {path}")


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


def steps(job: Job, rows: Iterator[Row]) -> Iterator[list[Flat]]:
    """Rows by the batch."""
    while True:
        yield [flat(next(rows)) for _ in range(job.batch // job.dp_size)]


def tensors(found: Sequence[Document]) -> dict[str, list[Any]]:
    """Documents as a worker process sends them: PyTorch's tensors go through shared memory.

    Columns of a dict, as Streaming counts the samples of a batch by the first one's length.
    """
    import torch

    return {
        "tokens": [torch.from_numpy(d.tokens) for d in found],
        "media": [[torch.from_numpy(np.array(m)) for m in d.media] for d in found],
    }


def arrays(found: dict[str, list[Any]]) -> list[Document]:
    """The documents again."""
    return [
        Document(tokens.numpy(), tuple(m.numpy() for m in media))
        for tokens, media in zip(found["tokens"], found["media"], strict=True)
    ]


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


def drive_loader(job: Job, meter: Meter, loader: Any) -> None:
    """Deliver the batches of a stateful loader of torchdata's, which packs in itself."""
    import torch

    if job.resumes:
        loader.load_state_dict(torch.load(str(job.state), weights_only=False))
    drive(job, meter, loader, lambda path: torch.save(loader.state_dict(), path))


def drive_documents(job: Job, meter: Meter, loader: Any) -> None:
    """Deliver rows of a stateful loader that gives lists of documents, as `tensors` makes them.

    Its state and that of the packing here are saved together.
    """
    import torch

    def lists() -> Iterator[list[Document]]:
        while True:
            yield from map(arrays, loader)

    rows = Rows(job, lists())
    if job.resumes:
        state = torch.load(str(job.state), weights_only=False)
        loader.load_state_dict(state["loader"])
        rows.load_state_dict(state["rows"])

    def save(path: str) -> None:
        torch.save({"loader": loader.state_dict(), "rows": rows.state_dict()}, path)

    drive(job, meter, steps(job, rows), save)


def snapshot_steps(job: Job) -> int:
    """Every how many steps torchdata's loader takes its workers' states.

    A snapshot carries the pixels that wait to the main process, so none is taken where none is
    saved; all the steps of ``job.saves`` are multiples.
    """
    return math.gcd(*job.saves) if job.kind == "save" else 1_000_000
