"""LitData 0.2: its chunks, shuffled as it does; packed in the main process.

Its loader's state says how many batches were taken; the documents that wait are the script's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.compare import shards
from benchmarks.compare.feeding import Maker, drive_documents, tensors
from benchmarks.compare.protocol import begin
from benchmarks.compare.work import Document

NAME = "litdata"
DOCUMENTS = 16
"""Documents that a worker sends at once."""


def read(same: bool, tar: str) -> Iterator[Any]:
    """What `litdata.optimize` takes of a shard: members; pickled where their fields differ."""
    import pickle

    for sample in shards.samples(tar):
        yield sample if same else {"members": pickle.dumps(sample)}


def write(tars: list[str], target: str) -> None:
    """LitData's chunks."""
    from litdata import optimize

    same = shards.same_fields(tars[0]) is not None
    optimize(
        fn=partial(read, same),
        inputs=tars,
        output_dir=target,
        chunk_bytes="64MB",
        num_workers=1,
        start_method="fork",
        verbose=False,
    )


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, write):
        return
    job, meter = begin()
    import pickle

    import litdata
    import torch

    version = litdata.__version__
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)
    if job.dp_size > 1:
        # It knows of ranks by torch.distributed alone, which needs them all at once.
        meter.skip(
            "not measured: it learns of ranks from a process group, here each is alone",
            version=version,
        )

    def make(sample: dict[str, Any]) -> Document:
        if "members" in sample:
            return maker(pickle.loads(sample["members"]))
        return maker({field: bytes(data) for field, data in sample.items()})

    torch.set_num_threads(1)
    job = meter.imported()
    maker = Maker(job)
    data = litdata.StreamingDataset(
        str(shards.prepared(job.data, NAME) / job.work),
        shuffle=True,
        seed=job.seed,
        transform=make,
    )
    loader = litdata.StreamingDataLoader(
        data, batch_size=DOCUMENTS, num_workers=job.workers, collate_fn=tensors
    )
    drive_documents(job, meter, loader)
    meter.finish(version=version, prepared_s=shards.seconds(job, NAME))


if __name__ == "__main__":
    main()
