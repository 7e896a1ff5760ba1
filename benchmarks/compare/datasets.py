"""Hugging Face datasets 5.2, streaming Parquet; packed where it is read, by the script.

Parquet rather than its WebDataset reader, since that guesses columns from the first samples, and
interleaved samples have as many as they have pictures. Its documentation gives it to PyTorch's
DataLoader for workers, which are processes; state is that of its ``state_dict``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.compare import shards
from benchmarks.compare.feeding import Flat, Maker, Rows, drive_loader, flat, snapshot_steps
from benchmarks.compare.protocol import begin
from benchmarks.compare.work import Document

NAME = "datasets"
BUFFER = {"text": 1_000}
"""Samples that are shuffled in memory: its default for texts, for others a tenth."""


def main() -> None:
    """Do the job of the command line."""
    if shards.prepare(NAME, shards.write_parquet):
        return
    job, meter = begin()
    import datasets
    import torch
    from datasets.distributed import split_dataset_by_node
    from torch.utils.data import IterableDataset
    from torchdata.stateful_dataloader import StatefulDataLoader

    version = datasets.__version__
    if job.workers and job.mode == "threads":
        meter.skip("its workers are processes", version=version)
    torch.set_num_threads(1)
    job = meter.imported()
    if len(job.shards) < job.dp_size * max(1, job.workers):
        meter.skip("each worker of each rank needs a shard", version=version)
    maker = Maker(job)
    folder = shards.prepared(job.data, NAME) / job.work
    data: Any = datasets.load_dataset(
        "parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True
    )
    data = data.shuffle(seed=job.seed, buffer_size=BUFFER.get(job.work, 100)).repeat(None)
    data = split_dataset_by_node(data, rank=job.dp_rank, world_size=job.dp_size)

    class Packed(IterableDataset[Any]):
        """Rows of a worker's share of the data set."""

        def __init__(self) -> None:
            self._rows: Rows | None = None
            self._state: dict[str, Any] | None = None

        def _documents(self) -> Iterator[list[Document]]:
            for sample in data:
                yield [maker({k: v for k, v in sample.items() if v is not None})]

        def __iter__(self) -> Iterator[Flat]:
            self._rows = Rows(job, self._documents())
            if self._state is not None:
                data.load_state_dict(self._state["data"])
                self._rows.load_state_dict(self._state["rows"])
            return (flat(row, torch.tensor) for row in self._rows)

        def state_dict(self) -> dict[str, Any]:
            if self._rows is None:
                return self._state or {}
            return {"data": data.state_dict(), "rows": self._rows.state_dict()}

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
    note = "what waits in its shuffle buffer is lost when it resumes, as its documentation says"
    meter.finish(version=version, prepared_s=shards.seconds(job, NAME), note=note)


if __name__ == "__main__":
    main()
