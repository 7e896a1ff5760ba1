"""SPDL 0.8: a pipeline whose stage of documents runs in threads, or in a pool of processes.

Order, packing and endless reading are the script's, as is usual with it; it has no state to save.
Processes are of a fork server: its own thread would fork them beside others, which can hang.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.compare.feeding import Maker, Rows, Samples, drive, stateless, steps
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
    if job.workers == 0:
        meter.skip("its stages always run beside the caller", version=version)
    job = meter.imported()
    if len(job.shards) < job.dp_size:
        meter.skip("each rank needs a shard", version=version)
    pool = None
    if job.mode == "processes":
        context = multiprocessing.get_context("forkserver")
        pool = ProcessPoolExecutor(job.workers, mp_context=context)
    source = Samples(job.shards[job.dp_rank :: job.dp_size], job.seed)
    pipeline: Any = (
        PipelineBuilder()
        .add_source(iter(source))
        .pipe(Maker(job), executor=pool, concurrency=job.workers, output_order="input")
        .add_sink(4 * job.workers)
        .build(num_threads=job.workers)
    )

    def lists() -> Iterator[list[Document]]:
        for document in pipeline:
            yield [document]

    with pipeline.auto_stop():
        drive(job, meter, steps(job, Rows(job, lists())), stateless)
    if pool is not None:
        pool.shutdown(cancel_futures=True)
    meter.finish(version=version)


if __name__ == "__main__":
    main()
