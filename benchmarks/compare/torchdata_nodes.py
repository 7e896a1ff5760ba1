"""The nodes of torchdata 0.11: documents made in parallel (threads, processes), then packed."""

from __future__ import annotations

from typing import Any

from benchmarks.compare.feeding import Maker, Rows, Samples, drive_loader, flat
from benchmarks.compare.protocol import begin


def main() -> None:
    """Do the job of the command line."""
    job, meter = begin()
    import torch
    import torchdata
    from torchdata.nodes import BaseNode, Batcher, Loader, ParallelMapper

    version = torchdata.__version__
    torch.set_num_threads(1)
    job = meter.imported()
    if len(job.shards) < job.dp_size:
        meter.skip("each rank needs a shard", version=version)

    class Source(BaseNode):  # type: ignore[misc]
        """The samples of this rank's shards."""

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            self._samples = Samples(job.shards[job.dp_rank :: job.dp_size], job.seed)
            if initial_state is not None:
                self._samples.place |= initial_state
            self._iterator = iter(self._samples)

        def next(self) -> dict[str, bytes]:
            return next(self._iterator)

        def get_state(self) -> dict[str, Any]:
            return dict(self._samples.place)

    class Packing(BaseNode):  # type: ignore[misc]
        """Rows of documents."""

        def __init__(self, source: Any) -> None:
            super().__init__()
            self._source = source

        def reset(self, initial_state: dict[str, Any] | None = None) -> None:
            super().reset(initial_state)
            self._rows = Rows(job, ([document] for document in self._source))
            if initial_state is None:
                self._source.reset()
                return
            self._source.reset(initial_state["source"])
            self._rows.load_state_dict(initial_state["rows"])

        def next(self) -> Any:
            return flat(next(self._rows))

        def get_state(self) -> dict[str, Any]:
            return {"source": self._source.state_dict(), "rows": self._rows.state_dict()}

    made = ParallelMapper(
        Source(),
        map_fn=Maker(job),
        num_workers=job.workers,
        method="process" if job.mode == "processes" else "thread",
    )
    loader: Any = Loader(Batcher(Packing(made), batch_size=job.batch // job.dp_size))
    drive_loader(job, meter, loader)
    meter.finish(version=version)


if __name__ == "__main__":
    main()
