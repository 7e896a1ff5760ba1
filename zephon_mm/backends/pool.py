"""The queue of the backends that work through threads: tickets, and who begins next.

Items begin in the order in which they were admitted (``admission.Admission``), except that an item
somebody waits for goes first. A thread of the backend asks for the next ticket, does its work, in
this process or in another, and says that it is finished.

Threads refer to the pool and never to the backend, so dropping the backend is enough to end them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from zephon_mm.backends.admission import Admission
from zephon_mm.backends.base import CLOSE_SECONDS, FINAL_SECONDS, Cancelled, check_process
from zephon_mm.backends.budget import ByteBudget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from zephon_mm.backends.base import Into

R = TypeVar("R")

__all__ = ["Pool", "PoolBackend", "PoolTicket", "count_workers", "default_workers"]

_log = logging.getLogger(__name__)

_WAITING: Final = 0  # for the byte budget
_READY: Final = 1
_RUNNING: Final = 2
_DONE: Final = 3
_TAKEN: Final = 4
_CANCELLED: Final = 5


def default_workers() -> int:
    """One worker a CPU that this process may run on, at most 8."""
    if hasattr(os, "sched_getaffinity"):
        return min(8, len(os.sched_getaffinity(0)))
    return min(8, os.cpu_count() or 1)


def count_workers(asked: int | None) -> int:
    """As many workers as were asked for; None: ``default_workers()``.

    Raises:
        ValueError: less than one.
    """
    if asked is not None and asked < 1:
        raise ValueError(f"workers={asked}: at least one worker is needed")
    return default_workers() if asked is None else asked


class PoolTicket(Generic[R]):
    """State, outcome and wake-up call of one item; every field is guarded by the pool's lock."""

    __slots__ = (
        "__weakref__",
        "cost_bytes",
        "error",
        "event",
        "fn",
        "into",
        "item",
        "pool",
        "state",
        "value",
    )

    def __init__(
        self, pool: Pool, fn: Callable[..., R], item: Any, cost_bytes: int, into: Into
    ) -> None:
        self.pool = pool
        self.fn: Callable[..., R] | None = fn
        self.item = item
        self.into = into
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


class Pool:
    """What a backend's threads, its tickets and itself share.

    One lock guards all of it: an RLock, since a finaliser may run in a thread that holds it.

    Args:
        name: of the backend, for messages.
        budget: bytes that admitted items may hold, shared with other users; None: no limit.
        interrupt: called once when the pool closes, after every open ticket is cancelled: what
            makes threads give up the work that they are at.
        released: called when bytes were given back, before items that wait are offered them.
    """

    def __init__(
        self,
        name: str,
        budget: ByteBudget | None,
        interrupt: Callable[[], None] = lambda: None,
        released: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.interrupt = interrupt
        self.released = released
        self.pid = os.getpid()
        self.lock = threading.RLock()
        self.work = threading.Condition(self.lock)
        self.admission: Admission[PoolTicket[Any]] = Admission(budget)
        self.ready: deque[PoolTicket[Any]] = deque()
        self.running: set[PoolTicket[Any]] = set()
        self.dropped: deque[int] = deque()
        self.idle = 0
        self.closed = False
        self.threads: list[threading.Thread] = []

    def submit(self, ticket: PoolTicket[Any]) -> None:
        check_process(self.pid, f"the {self.name} backend")
        with self.lock:
            if self.closed:
                ticket.state = _CANCELLED
                raise Cancelled(f"the {self.name} backend is closed")
            if self.admission.offer(ticket, ticket.cost_bytes):
                self._begin(ticket)
            self._admit()

    def want(self, ticket: PoolTicket[Any]) -> threading.Event | None:
        """Somebody waits for this ticket: it goes first. None if it is finished."""
        check_process(self.pid, f"the {self.name} backend")
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

    def take(self, ticket: PoolTicket[Any]) -> tuple[Any, BaseException | None]:
        with self.lock:
            if ticket.state == _TAKEN:
                raise RuntimeError("the result was taken already")
            if ticket.state == _CANCELLED or self.closed:
                raise Cancelled("the item was cancelled, or its backend closed")
            ticket.state = _TAKEN
            self.admission.settle(ticket.cost_bytes)
            self.released()
            self._admit()
            value, error = ticket.value, ticket.error
            ticket.value = ticket.error = None
            return value, error

    def cancel(self, ticket: PoolTicket[Any]) -> None:
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

    def next_ticket(self) -> PoolTicket[Any] | None:
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

    def finish(self, ticket: PoolTicket[Any]) -> None:
        """In a worker: value and error are in the ticket."""
        with self.lock:
            self.running.discard(ticket)
            ticket.fn = ticket.item = ticket.into = None
            if ticket.state == _RUNNING:
                ticket.state = _DONE
                if ticket.event is not None:
                    ticket.event.set()
            else:
                ticket.value = ticket.error = None
                self.admission.settle(ticket.cost_bytes)

    def put_back(self, ticket: PoolTicket[Any]) -> None:
        """In a worker: the item can't be done here; the next one that is free takes it first."""
        with self.lock:
            if ticket.state == _RUNNING:
                self.running.discard(ticket)
                self._begin(ticket, first=True)
            else:
                self.finish(ticket)

    def close(self, join_seconds: float) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            first = not self.closed
            if first:
                self.closed = True
                open_tickets = [*self.admission.close(), *self.ready, *self.running]
                for ticket in open_tickets:
                    if ticket.state < _DONE:
                        ticket.state = _CANCELLED
                        self._clear(ticket)
                self.ready.clear()
                self.work.notify_all()
        if first:
            self.interrupt()
        _join(self.threads, join_seconds)

    def _begin(self, ticket: PoolTicket[Any], *, first: bool = False) -> None:
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

    def _clear(self, ticket: PoolTicket[Any]) -> None:
        ticket.value = ticket.error = None
        if ticket not in self.running:
            ticket.fn = ticket.item = ticket.into = None
        if ticket.event is not None:
            ticket.event.set()


class PoolBackend:
    """What the backends over a pool share: see ``Backend``.

    Args:
        workers: how many.
        pool: their queue.
        end: closes the pool and whatever is the backend's, waiting at most so many seconds; may be
            called again. It is also called when the backend is garbage, and at exit, so it must
            not refer to the backend.
    """

    def __init__(self, workers: int, pool: Pool, end: Callable[[float], None]) -> None:
        self.workers = workers
        self._pool = pool
        self._end = end
        self._finalizer = weakref.finalize(self, end, FINAL_SECONDS)

    @property
    def name(self) -> str:
        """See ``Backend.name``."""
        return self._pool.name

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """See ``Backend.empty``: none, but where a backend says otherwise."""
        return None

    def submit(
        self, fn: Callable[..., R], item: Any, *, cost_bytes: int = 0, into: Into = None
    ) -> PoolTicket[R]:
        """See ``Backend.submit``."""
        if cost_bytes < 0:
            raise ValueError(f"cost_bytes={cost_bytes}: a size is 0 or more")
        ticket = PoolTicket(self._pool, fn, item, cost_bytes, into)
        self._pool.submit(ticket)
        return ticket

    def close(self, join_seconds: float = CLOSE_SECONDS) -> None:
        """See ``Backend.close``; workers that are processes end at once, busy or not."""
        self._end(join_seconds)
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

    def _start_threads(self, drive: Callable[[int], None], label: str) -> None:
        """A thread for each worker.

        Args:
            drive: what it runs, given the worker's number; it must not refer to the backend.
            label: of the threads' names.

        Raises:
            RuntimeError: there can't be as many; the backend is closed.
        """
        try:
            for number in range(self.workers):
                thread = threading.Thread(
                    target=drive, args=(number,), name=f"zephon_mm-{label}-{number}", daemon=True
                )
                thread.start()
                self._pool.threads.append(thread)
        except BaseException:
            self.close(FINAL_SECONDS)
            raise


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
