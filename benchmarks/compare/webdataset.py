"""webdataset 1.0: its own shards, shuffled by shard, packed in its workers, which are processes.

It keeps no place to go on from: its documentation starts a resumed run on other shards.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from benchmarks.compare.feeding import Flat, Maker, Rows, drive, flat, stateless
from benchmarks.compare.protocol import begin


def main() -> None:
    """Do the job of the command line."""
    job, meter = begin()
    import torch
    import webdataset as wds
    from torch.utils.data import IterableDataset

    version = wds.__version__
    if job.kind == "save" or job.state:
        meter.skip("it has no state to save", version=version)
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)
    torch.set_num_threads(1)
    job = meter.imported()
    if len(job.shards) < job.dp_size * max(1, job.workers):
        meter.skip("each worker of each rank needs a shard", version=version)
    maker = Maker(job)

    def make(sample: dict[str, Any]) -> Any:
        return maker({k: v for k, v in sample.items() if not k.startswith("__")})

    def of_rank(urls: Any) -> Any:
        return islice(urls, job.dp_rank, None, job.dp_size)

    made = wds.WebDataset(
        job.shards, shardshuffle=100, detshuffle=True, seed=job.seed, nodesplitter=of_rank
    ).map(make)

    class Packed(IterableDataset[Any]):
        """Batches of a worker's rows, packed over the ends of epochs, as its repeat() is not."""

        def __iter__(self) -> Iterator[list[Flat]]:
            rows = Rows(job, ([document] for _ in count() for document in made))
            while True:
                yield [flat(next(rows), torch.tensor) for _ in range(job.batch // job.dp_size)]

    loader = wds.WebLoader(Packed(), batch_size=None, num_workers=job.workers)
    drive(job, meter, loader, stateless)
    meter.finish(version=version)


if __name__ == "__main__":
    main()
