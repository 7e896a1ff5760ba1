"""torchdata 0.11's StatefulDataLoader over an IterableDataset that packs in its workers.

As its documentation advises, the data set keeps its own state: where it is in its share of the
shards, and the documents that wait for their row. Workers are processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.compare.feeding import (
    Flat,
    Rows,
    Samples,
    documents,
    drive_loader,
    flat,
    snapshot_steps,
)
from benchmarks.compare.protocol import Job, begin


def share(job: Job, worker: int) -> list[str]:
    """The shards of a worker of this rank."""
    workers = max(1, job.workers)
    return job.shards[job.dp_rank * workers + worker :: job.dp_size * workers]


def main() -> None:
    """Do the job of the command line."""
    job, meter = begin()
    import torch
    import torchdata
    from torch.utils.data import IterableDataset, get_worker_info
    from torchdata.stateful_dataloader import StatefulDataLoader

    version = torchdata.__version__
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)
    torch.set_num_threads(1)
    job = meter.imported()
    if len(job.shards) < job.dp_size * max(1, job.workers):
        meter.skip("each worker of each rank needs a shard", version=version)

    class Packed(IterableDataset[Any]):
        """Rows of a worker's share."""

        def __init__(self) -> None:
            self._state: dict[str, Any] | None = None
            self._samples: Samples | None = None
            self._rows: Rows | None = None

        def __iter__(self) -> Iterator[Flat]:
            info = get_worker_info()
            self._samples = Samples(share(job, info.id if info else 0), job.seed)
            if self._state is not None:
                self._samples.place |= self._state["place"]
            self._rows = Rows(job, documents(job, iter(self._samples)))
            if self._state is not None:
                self._rows.load_state_dict(self._state["rows"])
                self._state = None
            for row in self._rows:
                yield flat(row, torch.from_numpy)

        def state_dict(self) -> dict[str, Any]:
            if self._samples is None or self._rows is None:
                return self._state or {}
            return {"place": dict(self._samples.place), "rows": self._rows.state_dict()}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self._state = state or None

    loader: Any = StatefulDataLoader(
        Packed(),
        batch_size=job.batch // job.dp_size,
        collate_fn=list,
        num_workers=job.workers,
        snapshot_every_n_steps=snapshot_steps(job),
    )
    drive_loader(job, meter, loader)
    meter.finish(version=version)


if __name__ == "__main__":
    main()
