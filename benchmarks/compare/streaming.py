"""MosaicML Streaming 0.13: MDS shards, shuffled as it does by default; packed in the main process.

Its loader's state says how many samples were taken; the documents that wait are the script's.
"""

from __future__ import annotations

from typing import Any

from benchmarks.compare import shards
from benchmarks.compare.feeding import Maker, drive_documents, tensors
from benchmarks.compare.protocol import begin

NAME = "streaming"
DOCUMENTS = 16
"""Documents that a worker sends at once."""


def write(tars: list[str], target: str) -> None:
    """MDS; where fields differ from sample to sample, all in one."""
    from streaming import MDSWriter

    fields = shards.same_fields(tars[0])
    columns = dict.fromkeys(fields, "bytes") if fields else {"members": "pkl"}
    with MDSWriter(out=target, columns=columns) as writer:
        for tar in tars:
            for sample in shards.samples(tar):
                writer.write(sample if fields else {"members": sample})


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, write):
        return
    job, meter = begin()
    import streaming
    import torch
    from streaming.base.util import clean_stale_shared_memory

    version = streaming.__version__
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)
    if job.dp_size > 1:
        # It makes a process group of all ranks at once.
        meter.skip(
            "not measured: its ranks wait for each other, here each is alone", version=version
        )

    class Documents(streaming.StreamingDataset):  # type: ignore[misc]
        """Samples made documents where they are read."""

        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return maker(sample.get("members", sample))

    torch.set_num_threads(1)
    job = meter.imported()
    maker = Maker(job)
    clean_stale_shared_memory()
    data = Documents(
        local=str(shards.prepared(job.data, NAME) / job.work),
        shuffle=True,
        shuffle_seed=job.seed,
        batch_size=DOCUMENTS,
        num_canonical_nodes=job.lanes,
        allow_unsafe_types=True,  # members by name, which we have pickled ourselves
    )
    loader = streaming.StreamingDataLoader(
        data, batch_size=DOCUMENTS, num_workers=job.workers, collate_fn=tensors
    )
    drive_documents(job, meter, loader)
    meter.finish(version=version, prepared_s=shards.seconds(job, NAME))


if __name__ == "__main__":
    main()
