"""Grain 0.2: ArrayRecord files, shuffled globally, packed by its own operators.

Texts are joined and cut (``ConcatThenSplit``), others packed whole (``FirstFitPack``, a batch's
rows at a time; clips, which are of one length, a row). Threads are those of ``ReadOptions``,
processes those of ``mp_prefetch``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import shards
from benchmarks.compare.feeding import Flat, Maker, drive
from benchmarks.compare.protocol import Job, begin

NAME = "grain"
BINS = 8


def write(tars: list[str], target: str) -> None:
    """An ArrayRecord file a shard; a record is a pickled sample."""
    import pickle

    from array_record.python.array_record_module import ArrayRecordWriter

    Path(target).mkdir()
    for number, tar in enumerate(tars):
        writer = ArrayRecordWriter(
            f"{target}/{number:05d}.array_record", "group_size:1,uncompressed"
        )
        for sample in shards.samples(tar):
            writer.write(pickle.dumps(sample))
        writer.close()


class Make:
    """Of a record the features that Grain packs; pixels are a feature beside the tokens."""

    def __init__(self, job: Job) -> None:
        self._maker = Maker(job)
        self._text = job.work == "text"

    def __call__(self, record: bytes) -> dict[str, Any]:
        import pickle

        document = self._maker(pickle.loads(record))
        if self._text:
            return {"tokens": document.tokens}
        return {"tokens": document.tokens, "media": np.stack(document.media)}


def rows_of(job: Job, element: dict[str, Any]) -> Flat:
    """A packed element as a row."""
    if job.work == "text":
        return Flat(element["tokens"].astype(np.int32), [], [])
    used = int(np.count_nonzero(element["tokens_segment_ids"]))
    starts = np.flatnonzero(element["tokens_positions"][:used] == 0)
    lengths = np.diff([*starts, used]).tolist()
    return Flat(
        element["tokens"][:used].astype(np.int32), lengths, list(map(list, element["media"]))
    )


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, write):
        return
    job, meter = begin()
    import grain

    version = "0.2.18"
    job = meter.imported()
    folder = shards.prepared(job.data, NAME) / job.work
    source = grain.sources.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record"))))
    data = grain.MapDataset.source(source).seed(job.seed).shuffle()
    data = data[job.dp_rank :: job.dp_size].repeat().map(Make(job))
    threads = job.workers if job.mode == "threads" else 0
    stream = data.to_iter_dataset(
        grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    )
    if job.mode == "processes":
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=job.workers))
    length = {"tokens": job.sequence_length}
    if job.work == "text":
        stream = grain.experimental.ConcatThenSplitIterDataset(stream, length_struct=length)
    else:
        bins = 1 if job.work.startswith("video") else min(BINS, job.batch)
        stream = grain.experimental.FirstFitPackIterDataset(
            stream, length_struct=length, num_packing_bins=bins, meta_features=("media",)
        )
    iterator = iter(stream)
    if job.resumes:
        iterator.set_state(json.loads(Path(str(job.state)).read_text(encoding="utf-8")))
    size = job.batch // job.dp_size

    def batches() -> Iterator[list[Flat]]:
        while True:
            yield [rows_of(job, next(iterator)) for _ in range(size)]

    def save(path: str) -> None:
        Path(path).write_text(json.dumps(iterator.get_state()), encoding="utf-8")

    drive(job, meter, batches(), save)
    meter.finish(version=version, prepared_s=shards.seconds(job, NAME))


if __name__ == "__main__":
    main()
