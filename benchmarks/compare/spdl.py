"""SPDL 0.8: a pipeline whose stage of documents runs in threads.

Order, packing and endless reading are the script's, as is usual with it; it has no state to save.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.compare.feeding import Maker, Rows, Samples, feed
from benchmarks.compare.protocol import begin
from benchmarks.compare.work import Document


def main() -> None:
    """Do the job of the command line."""
    job, meter = begin()
    import spdl
    from spdl.pipeline import PipelineBuilder

    version = getattr(spdl, "__version__", "0.8.0")
    if job.kind == "save" or job.state:
        meter.skip("it has no state to save", version=version)
    if job.mode == "processes":
        meter.skip("not measured: this script hangs with a pool of processes", version=version)
    if job.workers == 0:
        meter.skip("its stages always run beside the caller", version=version)
    if len(job.shards) < job.dp_size:
        meter.skip("each rank needs a shard", version=version)
    meter.imported()
    source = Samples(job.shards[job.dp_rank :: job.dp_size], job.seed)
    pipeline: Any = (
        PipelineBuilder()
        .add_source(iter(source))
        .pipe(Maker(job), concurrency=job.workers, output_order="input")
        .add_sink(4 * job.workers)
        .build(num_threads=job.workers)
    )

    def lists() -> Iterator[list[Document]]:
        for document in pipeline:
            yield [document]

    with pipeline.auto_stop():
        feed(job, meter, Rows(job, lists()))
    meter.finish(version=version)


if __name__ == "__main__":
    main()
