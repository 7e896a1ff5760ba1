"""The backend of worker threads in this process.

The media and tokeniser libraries release the GIL, so threads decode in parallel and share memory
for nothing. Items begin in the order in which they were admitted (``admission.Admission``), except
that an item somebody waits for goes first.

torch's intra-op parallelism in the workers is 1: parallelism is over items, and each worker with a
team of its own would oversubscribe the CPUs. ``torch.set_num_threads`` sets two things: the count
of the calling thread, and the count that threads which have not used torch yet will start with
(torch 2.x with OpenMP). The workers need the first and must not leave the second behind, or a
trainer that has not run an operator yet would lose its cores. So a short-lived thread reads the
second count, has every worker set its own to 1, and writes it back; the trainer's thread is never
touched. Between the two (under a millisecond, inside the constructor) another thread that uses
torch for the first time may start with 1.

Threads are daemons, so a worker that hangs in a dead disk cannot keep the interpreter alive; at
exit, and when the backend is garbage, ``close`` is run with a short wait. Workers refer to the
shared ``_Pool`` and never to the backend, so dropping the backend is enough to end them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import torch

from zephon_mm.backends.admission import Admission
from zephon_mm.backends.base import CLOSE_SECONDS, FINAL_SECONDS, Cancelled, check_process
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.outcome import call

T = TypeVar("T")
R = TypeVar("R")

__all__ = ["ThreadsBackend", "default_workers"]

_log = logging.getLogger(__name__)

_WAITING: Final = 0  # for the byte budget
_READY: Final = 1
_RUNNING: Final = 2
_DONE: Final = 3
_TAKEN: Final = 4
_CANCELLED: Final = 5

_torch_setting = threading.Lock()


def default_workers() -> int:
    """One worker a CPU that this process may run on, at most 8."""
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))
    return min(8, os.cpu_count() or 1)


class ThreadsBackend:
    """Runs items on worker threads.

    An item costs 10 to 20 µs over a plain call (two cores, through ``OrderedMap``).

    Args:
        workers: threads; None: ``default_workers()``.
        budget: bytes that admitted items may hold, shared with other users; None: no limit.
    """

    name = "threads"

    def __init__(self, workers: int | None = None, *, budget: ByteBudget | None = None) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: at least one thread is needed")
        self.workers = default_workers() if workers is None else workers
        self._pool = _Pool(budget)
        self._finalizer = weakref.finalize(self, self._pool.close, FINAL_SECONDS)
        self._pool.start(self.workers)

    def submit(self, fn: Callable[[T], R], item: T, *, cost_bytes: int = 0) -> _ThreadTicket[R]:
        """See ``Backend.submit``."""
        if cost_bytes < 0:
            raise ValueError(f"cost_bytes={cost_bytes}: a size is 0 or more")
        ticket = _ThreadTicket(self._pool, fn, item, cost_bytes)
        self._pool.submit(ticket)
        return ticket

    def close(self, join_seconds: float = CLOSE_SECONDS) -> None:
        """See ``Backend.close``."""
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


class _ThreadTicket(Generic[R]):
    """State, outcome and wake-up call of one item; every field is guarded by the pool's lock."""

    __slots__ = ("cost_bytes", "error", "event", "fn", "item", "pool", "state", "value")

    def __init__(self, pool: _Pool, fn: Callable[[Any], R], item: Any, cost_bytes: int) -> None:
        self.pool = pool
        self.fn: Callable[[Any], R] | None = fn
        self.item = item
        self.cost_bytes = cost_bytes
        self.state = _WAITING
        self.value: R | None = None
        self.error: BaseException | None = None
        self.event: threading.Event | None = None

    def result(self) -> R:
        event = self.pool.want(self)
        if event is not None:
            event.wait()
        value, error = self.pool.take(self)
        if error is None:
            return cast(R, value)
        try:
            raise error
        finally:
            del error  # else error -> traceback -> this frame -> error

    def cancel(self) -> None:
        self.pool.cancel(self)

    def __del__(self) -> None:
        # Dropped with its result in it. No lock here: the collector may run this anywhere, also in
        # a thread that holds the lock. The bytes are freed at the pool's next step.
        if self.state == _DONE:
            self.pool.dropped.append(self.cost_bytes)


class _Pool:
    """What workers, tickets and backend share.

    One lock guards all of it: an RLock, since a finaliser may run in a thread that holds it.
    """

    def __init__(self, budget: ByteBudget | None) -> None:
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)
        self.admission: Admission[_ThreadTicket[Any]] = Admission(budget)
        self.ready: deque[_ThreadTicket[Any]] = deque()
        self.running: set[_ThreadTicket[Any]] = set()
        self.dropped: deque[int] = deque()
        self.idle = 0
        self.closed = False
        self.threads: list[threading.Thread] = []

    def start(self, workers: int) -> None:
        """Start the workers, each with one intra-op thread; see the module's docstring."""
        with _torch_setting:
            setter = threading.Thread(
                target=_start_workers, args=(self, workers), name="zephon_mm-start", daemon=True
            )
            setter.start()
            setter.join()
        if len(self.threads) < workers:
            self.close(FINAL_SECONDS)
            raise RuntimeError(
                f"only {len(self.threads)} of {workers} worker threads could be started: ask for"
                " fewer workers or raise the limit of threads (ulimit -u, the container's pids)"
            )

    def submit(self, ticket: _ThreadTicket[Any]) -> None:
        check_process(self.pid, "the threads backend")
        with self.lock:
            if self.closed:
                ticket.state = _CANCELLED
                raise Cancelled("the threads backend is closed")
            if self.admission.offer(ticket, ticket.cost_bytes):
                self._begin(ticket)
            self._admit()

    def want(self, ticket: _ThreadTicket[Any]) -> threading.Event | None:
        """Somebody waits for this ticket: it goes first. None if it is finished."""
        check_process(self.pid, "the threads backend")
        with self.lock:
            if ticket.state == _WAITING and not self.closed:
                self.admission.force(ticket)
                self._begin(ticket, first=True)
            elif ticket.state == _READY:
                self.ready.appendleft(ticket)  # the copy behind is skipped when it comes up
            if ticket.state >= _DONE:
                return None
            if ticket.event is None:
                ticket.event = threading.Event()
            return ticket.event

    def take(self, ticket: _ThreadTicket[Any]) -> tuple[Any, BaseException | None]:
        with self.lock:
            if ticket.state == _TAKEN:
                raise RuntimeError("the result was taken already")
            if ticket.state == _CANCELLED or self.closed:
                raise Cancelled("the item was cancelled, or its backend closed")
            ticket.state = _TAKEN
            self.admission.settle(ticket.cost_bytes)
            self._admit()
            value, error = ticket.value, ticket.error
            ticket.value = ticket.error = None
            return value, error

    def cancel(self, ticket: _ThreadTicket[Any]) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            before = ticket.state
            if before in (_TAKEN, _CANCELLED):
                return
            ticket.state = _CANCELLED
            if before == _WAITING:
                self.admission.withdraw(ticket)
            elif before != _RUNNING:  # what runs still uses its memory: settled when it ends
                self.admission.settle(ticket.cost_bytes)
            self._clear(ticket)
            self._admit()

    def next_ticket(self) -> _ThreadTicket[Any] | None:
        """In a worker: what to run next; None: the worker ends."""
        with self.lock:
            while not self.closed:
                self._admit()
                if self.ready:
                    ticket = self.ready.popleft()
                    if ticket.state != _READY:
                        continue
                    ticket.state = _RUNNING
                    self.running.add(ticket)
                    return ticket
                self.idle += 1
                try:
                    self.work.wait()
                finally:
                    self.idle -= 1
            return None

    def finish(self, ticket: _ThreadTicket[Any]) -> None:
        """In a worker: value and error are in the ticket."""
        with self.lock:
            self.running.discard(ticket)
            ticket.fn = ticket.item = None
            if ticket.state == _RUNNING:
                ticket.state = _DONE
                if ticket.event is not None:
                    ticket.event.set()
            else:
                ticket.value = ticket.error = None
                self.admission.settle(ticket.cost_bytes)

    def close(self, join_seconds: float) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            if not self.closed:
                self.closed = True
                open_tickets = [*self.admission.close(), *self.ready, *self.running]
                for ticket in open_tickets:
                    if ticket.state < _DONE:
                        ticket.state = _CANCELLED
                        self._clear(ticket)
                self.ready.clear()
                self.work.notify_all()
        _join(self.threads, join_seconds)

    def _begin(self, ticket: _ThreadTicket[Any], *, first: bool = False) -> None:
        ticket.state = _READY
        if first:
            self.ready.appendleft(ticket)
        else:
            self.ready.append(ticket)
        if self.idle:
            self.work.notify()

    def _admit(self) -> None:
        while self.dropped:
            self.admission.settle(self.dropped.popleft())
        while (ticket := self.admission.admit()) is not None:
            self._begin(ticket)

    def _clear(self, ticket: _ThreadTicket[Any]) -> None:
        ticket.value = ticket.error = None
        if ticket not in self.running:
            ticket.fn = ticket.item = None
        if ticket.event is not None:
            ticket.event.set()


def _start_workers(pool: _Pool, workers: int) -> None:
    """In a thread of its own: start the workers and put torch's default back."""
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


def _work(pool: _Pool, set_up: threading.Semaphore) -> None:
    torch.get_num_threads()  # a thread's first use sets its count to the default: have it over with
    torch.set_num_threads(1)
    set_up.release()
    del set_up
    while (ticket := pool.next_ticket()) is not None:
        assert ticket.fn is not None
        ticket.value, ticket.error = call(ticket.fn, ticket.item)
        pool.finish(ticket)
        del ticket  # nothing is kept alive while this worker idles


def _join(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        if thread is threading.current_thread():
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            _log.warning(
                "%s is still busy %.0f s after its backend was closed; it ends with its item",
                thread.name,
                seconds,
            )
