"""The backend of worker processes: an interpreter each, so no lock is shared with the trainer, and
a crash of a library ends an item's worker and not the run.

A thread a worker (``pool.Pool`` is their queue, as it is of the threads backend) sends it one item
at a time and waits. Processes are started when the backend is made, without waiting: whichever is
ready first takes the oldest item. The parent never runs an item itself, however long that takes:
an item that crashes would take the trainer with it.

A worker that dies is replaced, and its item given to the new one; the third death at one item is
that item's error (``WorkerDiedError``), in its place. Closing ends the workers at once, busy or
not: nobody wants what they would give. When the parent is killed, they end too (``worker``).

An item costs about 0.2 ms over a plain call; arrays come back through shared memory (``shared``).
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeVar

from zephon_mm.backends.base import CLOSE_SECONDS, FINAL_SECONDS, brief
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.callables import Callables
from zephon_mm.backends.child import Setup, WorkerProcess, describe_exit
from zephon_mm.backends.pool import Pool, PoolTicket
from zephon_mm.backends.shared import IdleRoom
from zephon_mm.backends.threads import default_workers
from zephon_mm.backends.worker import SIGNALS
from zephon_mm.errors import ConfigError, WorkerDiedError, WorkerError

T = TypeVar("T")
R = TypeVar("R")

__all__ = ["ProcessesBackend"]

_log = logging.getLogger(__name__)

_TRIES: Final = 3


class ProcessesBackend:
    """Runs items in worker processes; Linux only.

    Args:
        workers: processes; None: ``default_workers()``.
        budget: bytes that admitted items and idle buffers may hold, shared with other users; None:
            no limit.

    Raises:
        ConfigError: not on this system, or in a worker that imports the script that started it.
    """

    name = "processes"

    def __init__(self, workers: int | None = None, *, budget: ByteBudget | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: at least one process is needed")
        if sys.platform != "linux":
            raise ConfigError(
                f"backend='processes' needs Linux, not {sys.platform}: use backend='threads'"
            )
        self.workers = default_workers() if workers is None else workers
        crew = _Crew(Setup.here(), budget)
        self._pool = Pool(self.name, budget, crew.hang_up)
        self._finalizer = weakref.finalize(self, self._pool.close, FINAL_SECONDS)
        try:
            for number in range(self.workers):
                thread = threading.Thread(
                    target=_drive,
                    args=(self._pool, crew, f"zephon_mm-worker-{number}"),
                    name=f"zephon_mm-process-{number}",
                    daemon=True,
                )
                thread.start()
                self._pool.threads.append(thread)
        except RuntimeError:
            self.close(FINAL_SECONDS)
            raise

    def submit(self, fn: Callable[[T], R], item: T, *, cost_bytes: int = 0) -> PoolTicket[R]:
        """See ``Backend.submit``."""
        if cost_bytes < 0:
            raise ValueError(f"cost_bytes={cost_bytes}: a size is 0 or more")
        ticket = PoolTicket(self._pool, fn, item, cost_bytes)
        self._pool.submit(ticket)
        return ticket

    def close(self, join_seconds: float = CLOSE_SECONDS) -> None:
        """End every worker process at once; see ``Backend.close``."""
        self._pool.close(join_seconds)
        self._finalizer.detach()

    @property
    def in_flight_items(self) -> int:
        """See ``Backend.in_flight_items``."""
        return self._pool.admission.in_flight_items

    @property
    def in_flight_bytes(self) -> int:
        """See ``Backend.in_flight_bytes``."""
        return self._pool.admission.in_flight_bytes

    @property
    def peak_bytes(self) -> int:
        """See ``Backend.peak_bytes``."""
        return self._pool.admission.peak_bytes


class _Crew:
    """The worker processes of a backend, as its threads and its closing share them."""

    def __init__(self, setup: Setup, budget: ByteBudget | None) -> None:
        self._setup = setup
        self._callables = Callables()
        self._room = IdleRoom(budget)
        self._lock = threading.Lock()
        self._alive: set[WorkerProcess] = set()
        self.closed = False

    def start(self, name: str) -> WorkerProcess:
        """A new worker, which is not ready yet.

        Raises:
            EOFError: the backend is closed.
            OSError: it can't be started.
        """
        worker = WorkerProcess(self._setup, name, self._callables, self._room)
        with self._lock:
            self._alive.add(worker)
            if not self.closed:
                return worker
        self.end(worker)
        raise EOFError("closed")

    def end(self, worker: WorkerProcess) -> str:
        """End a worker that is done with or has died; how it ended."""
        with self._lock:
            self._alive.discard(worker)
        return describe_exit(worker.end())

    def hang_up(self) -> None:
        """End all workers, without waiting."""
        with self._lock:
            self.closed = True
            for worker in self._alive:
                worker.hang_up()


class _Seat:
    """The place of one worker: the process that sits there now, replaced when it dies."""

    def __init__(self, crew: _Crew, name: str) -> None:
        self._crew = crew
        self._name = name
        self._worker: WorkerProcess | None = None

    def ready(self) -> WorkerProcess:
        """A live worker that takes items, the one there is or a new one.

        Raises:
            EOFError: the backend is closed.
            WorkerError: none can be started.
        """
        if self._worker is not None:
            if not self._worker.gone():
                return self._worker
            _log.warning("%s died while idle (%s)", self._name, self.vacate())
        ends: list[str] = []
        for _ in range(_TRIES):
            try:
                self._worker = self._crew.start(self._name)
                self._worker.wait_ready()
                return self._worker
            except EOFError:
                ends.append(self.vacate())
            except OSError as error:
                ends.append(str(error))
            if self._crew.closed:
                raise EOFError("closed")
        raise WorkerError(
            f"worker processes can't be started ({'; '.join(ends)}): see what they wrote to stderr."
            " Where memory or processes are short (ulimit -u, the container's limits) ask for"
            " fewer workers, or use backend='threads'"
        )

    def run(self, fn: Callable[[Any], Any], item: Any) -> tuple[Any, BaseException | None]:
        """What ``fn(item)`` gave; EOFError: the backend is closed."""
        ends: list[str] = []
        while len(ends) < _TRIES:
            try:
                worker = self.ready()
            except WorkerError as error:
                return None, error
            try:
                return worker.call(fn, item)
            except EOFError:
                ends.append(self.vacate())
            if self._crew.closed:
                raise EOFError("closed")
            _log.warning(
                "%s died (%s) at %s, time %d of %d",
                self._name,
                ends[-1],
                brief(item),
                len(ends),
                _TRIES,
            )
        return None, WorkerDiedError(
            f"{_TRIES} worker processes died of it, one after the other ({'; '.join(ends)}), at "
            f"{brief(item)}. SIGKILL is mostly the kernel for want of memory: fewer workers "
            "or a smaller memory_budget; SIGSEGV or SIGABRT is a crash in a library, whose stack "
            "is on stderr: repair or remove the sample"
        )

    def vacate(self) -> str:
        """End the worker that sits here; how it ended."""
        if self._worker is None:
            return "not started"
        worker, self._worker = self._worker, None
        return self._crew.end(worker)


def _drive(pool: Pool, crew: _Crew, name: str) -> None:
    """In a thread: one worker's items, until the pool is closed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by the worker
    seat = _Seat(crew, name)
    try:
        try:
            seat.ready()
        except WorkerError as error:
            _log.warning("%s: %s", name, error)  # the next item tries again, and says so
        while (ticket := pool.next_ticket()) is not None:
            assert ticket.fn is not None
            try:
                ticket.value, ticket.error = seat.run(ticket.fn, ticket.item)
            except BaseException as error:
                ticket.error = error
                if isinstance(error, EOFError):
                    return  # closed
            finally:
                pool.finish(ticket)
            del ticket  # nothing is kept alive while this worker idles
    except EOFError:
        pass  # closed
    finally:
        seat.vacate()
