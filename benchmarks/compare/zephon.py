"""Zephon 0.2: of Parquet, as it reads no tar; packed by its own operators, as its guide advises.

Texts are wrapped (``pack_flat``), others packed whole (``pack_sequences``). Pictures and clips are
decoded after packing, so that resuming repeats no decoding: batches of threads do it after
``batch``, processes before it, since Zephon runs what follows ``batch`` in threads only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.compare import shards
from benchmarks.compare.feeding import Flat, drive, flat
from benchmarks.compare.protocol import Job, begin
from benchmarks.compare.work import Document, Making, Row, pixels

NAME = "zephon"
CHUNK = 256
"""Samples a chunk of work, of which a lane takes one after another. Zephon's default of 16,384 is
more than a data set of this bench has; a resumed run repeats up to eight of them a lane."""
BINS = 4


def write(tars: list[str], target: str) -> None:
    """Parquet files and Zephon's index of them."""
    from zephon.build_index import build_index

    shards.write_parquet(tars, target)
    build_index("parquet", target, progress=False)


class Measure:
    """Token ids of a sample, its media still in their bytes."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._making: Making | None = None

    def __call__(self, payload: dict[str, Any]) -> dict[str, Any]:
        if self._making is None:  # once a process
            self._making = Making(self._job.tokenizer, decode=False)
        members = {field: data for field, data in payload.items() if data is not None}
        document = self._making.document(self._job.work, members)
        if self._job.work == "text":
            return {"input_ids": document.tokens}
        return {"input_ids": document.tokens, "media": document.media}

    def __getstate__(self) -> dict[str, Any]:
        return {"_job": self._job, "_making": None}


def decode(payload: dict[str, Any]) -> dict[str, Any]:
    """A packed row with its pixels."""
    documents = [
        Document(part["input_ids"], tuple(pixels(data.tobytes()) for data in part["media"]))
        for part in payload["packed_samples"]
    ]
    tokens = np.concatenate([document.tokens for document in documents])
    return {"row": Row(tokens, documents)}


def decode_rows(records: list[Any]) -> list[Any]:
    """Before ``batch``: of records, of which some only say that a chunk is done."""
    for record in records:
        if not record.meta.tombstone:
            record.payload = decode(record.payload)
    return records


def decode_batches(batches: list[Any]) -> list[Any]:
    """After ``batch``."""
    for batch in batches:
        decode_rows(batch.records)
    return batches


def pipeline(job: Job) -> Any:
    """The pipeline of the job's rank: a lane's share of a step a batch."""
    from zephon import Dataset, MixtureSpec, Pipeline, StaticMixtureWorkSource

    dataset = Dataset.from_path(job.work, str(shards.prepared(job.data, NAME) / job.work))
    source = StaticMixtureWorkSource(
        datasets=[dataset],
        mixture=MixtureSpec({job.work: 1.0}),
        seed=job.seed,
        chunk_size=min(CHUNK, dataset.total()),
        exhausted_policy="repeat",
    )
    workers = max(1, job.workers)
    # map_batch() would wait for 64 batches before it makes the first one.
    traits: dict[str, Any] = {"parallelism": workers, "preserves_cursor_order": True}
    made = Pipeline(source).fetch(parallelism=1)
    made = made.map_transform(Measure(job), parallelism=workers)
    if job.work == "text":
        made = made.pack_flat(job.sequence_length, algorithm="wrap", tokens_field="input_ids")
    else:
        bins = 1 if job.work.startswith("video") else BINS  # clips are all of one length
        made = made.pack_sequences(
            job.sequence_length, num_bins=bins, algorithm="first_fit", tokens_field="input_ids"
        )
    if job.work != "text" and job.mode == "processes":
        made = made.add_op("decode", process_many=decode_rows, **traits)
    made = made.batch(job.batch // job.lanes)
    if job.work != "text" and job.mode != "processes":
        made = made.add_op("decode", process_many=decode_batches, **traits)
    runner = {"serial": "inline", "threads": "threads", "processes": "process"}[job.mode]
    return made.options(
        runner=runner,
        canonical_replicas=job.lanes,
        world_size=job.dp_size,
        global_rank=job.dp_rank,
        aggregate_dir=f"{job.reply}.aggregate" if job.dp_size > 1 else None,
        **({"prefetch_batches": 0} if job.workers == 0 else {}),
    )


def steps(job: Job, stream: Iterator[Any]) -> Iterator[list[Flat]]:
    """The rows of each step, of the rank's lanes in turn."""
    while True:
        batches = [next(stream) for _ in range(job.lanes // job.dp_size)]
        payloads = [record.payload for batch in batches for record in batch.records]
        yield [flat(p["row"]) if "row" in p else Flat(p["input_ids"], [], []) for p in payloads]


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, write):
        return
    job, meter = begin()
    import zephon

    if job.batch % job.lanes or job.lanes % job.dp_size:
        meter.skip("a step must take as much of each lane, a rank as many lanes", version="0.2.0")
    if job.dp_size > 1 and job.kind == "save":
        meter.skip("a checkpoint of several ranks needs them all at once", version="0.2.0")
    job = meter.imported()
    made = pipeline(job)
    if job.resumes:
        made.restore(json.loads(Path(str(job.state)).read_text(encoding="utf-8")))
    stream = iter(made)

    def save(path: str) -> None:
        Path(path).write_text(json.dumps(made.checkpoint()), encoding="utf-8")

    drive(job, meter, steps(job, stream), save)
    stream.close()
    meter.finish(version=zephon.__version__, prepared_s=shards.seconds(job, NAME))


if __name__ == "__main__":
    main()
