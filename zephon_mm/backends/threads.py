"""The backend of worker threads in this process.

The media and tokeniser libraries release the GIL, so threads decode in parallel and share memory
for nothing.

torch's intra-op parallelism in the workers is 1: parallelism is over items, and each worker with a
team of its own would oversubscribe the CPUs. ``torch.set_num_threads`` sets two things: the count
of the calling thread, and the count that threads which have not used torch yet will start with
(torch 2.x with OpenMP). The workers need the first and must not leave the second behind, or a
trainer that has not run an operator yet would lose its cores. So a short-lived thread reads the
second count, has every worker set its own to 1, and writes it back; the trainer's thread is never
touched. Between the two (under a millisecond, inside the constructor) another thread that uses
torch for the first time may start with 1.

Threads are daemons, so a worker that hangs in a dead disk cannot keep the interpreter alive; at
exit, and when the backend is garbage, ``close`` is run with a short wait.

torch is imported where it is used: worker processes import this package and may never need it.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from zephon_mm.backends.base import FINAL_SECONDS
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.outcome import call
from zephon_mm.backends.pool import Pool, PoolBackend, count_workers

__all__ = ["ThreadsBackend"]

_torch_setting = threading.Lock()


class ThreadsBackend(PoolBackend):
    """Runs items on worker threads.

    An item costs 10 to 20 µs over a plain call (two cores, through ``OrderedMap``).

    Args:
        workers: threads; None: ``default_workers()``.
        budget: bytes that admitted items may hold, shared with other users; None: no limit.
    """

    def __init__(self, workers: int | None = None, *, budget: ByteBudget | None = None) -> None:
        pool = Pool("threads", budget)
        super().__init__(count_workers(workers), pool, pool.close)
        _start(pool, self.workers)

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """See ``Backend.empty``."""
        return np.empty(shape, np.uint8)


def _start(pool: Pool, workers: int) -> None:
    """Start the workers, each with one intra-op thread; see the module's docstring."""
    with _torch_setting:
        setter = threading.Thread(
            target=_start_workers, args=(pool, workers), name="zephon_mm-start", daemon=True
        )
        setter.start()
        setter.join()
    if len(pool.threads) < workers:
        pool.close(FINAL_SECONDS)
        raise RuntimeError(
            f"only {len(pool.threads)} of {workers} worker threads could be started: ask for"
            " fewer workers or raise the limit of threads (ulimit -u, the container's pids)"
        )


def _start_workers(pool: Pool, workers: int) -> None:
    """In a thread of its own: start the workers and put torch's default back."""
    import torch

    default = torch.get_num_threads()
    set_up = threading.Semaphore(0)
    for i in range(workers):
        thread = threading.Thread(
            target=_work, args=(pool, set_up), name=f"zephon_mm-worker-{i}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads: the caller counts them
            break
        pool.threads.append(thread)
    for _ in pool.threads:
        set_up.acquire()
    torch.set_num_threads(default)


def _work(pool: Pool, set_up: threading.Semaphore) -> None:
    import torch

    torch.get_num_threads()  # a thread's first use sets its count to the default: have it over with
    torch.set_num_threads(1)
    set_up.release()
    del set_up
    while (ticket := pool.next_ticket()) is not None:
        assert ticket.fn is not None
        ticket.value, ticket.error = call(ticket.fn, ticket.item, ticket.into)
        pool.finish(ticket)
        del ticket  # nothing is kept alive while this worker idles
