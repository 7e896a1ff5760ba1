"""Run a generator ahead of its consumer, or in step with it.

``Prefetcher`` runs an iterator in one background thread and holds at most ``depth`` finished items;
``Direct`` has the same interface and no thread. Both hand items out in order, and raise what the
iterator raised at its place, after all items before it; every later ``next()`` raises
``Cancelled``, so that a failure never looks like the end. Both measure how long
the consumer waited.

The thread refers to a ``_Line`` and to the iterator, never to the ``Prefetcher``: dropping that
(``break``, then the end of the loop's scope) closes everything. The iterator must therefore not
refer to the ``Prefetcher`` or to what holds it.

Cost: two lock operations an item.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from zephon_mm.backends.base import (
    CLOSE_SECONDS,
    FINAL_SECONDS,
    Cancelled,
    check_process,
    describe,
    failed_before,
)
from zephon_mm.backends.budget import ByteBudget

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

__all__ = ["Direct", "Feed", "Prefetcher"]

_log = logging.getLogger(__name__)


class Feed(Protocol[T_co]):
    """What ``Prefetcher`` and ``Direct`` have in common."""

    def __iter__(self) -> Iterator[T_co]:
        """Itself."""
        ...

    def __next__(self) -> T_co:
        """The next item, in order."""
        ...

    def close(self) -> None:
        """Stop, close the iterator, end the thread. May be called again."""
        ...

    @property
    def waited_seconds(self) -> float:
        """Time that the consumer has spent in ``next()``, in seconds of the monotonic clock."""
        ...

    @property
    def held_items(self) -> int:
        """Finished items that wait for the consumer."""
        ...

    @property
    def held_bytes(self) -> int:
        """Their bytes."""
        ...


class Prefetcher(Generic[T]):
    """An iterator over ``iterator``, which runs ahead in a thread of its own.

    Args:
        iterator: run in the background thread only, and closed there if it has ``close()``.
        depth: finished items that may wait, 1 or more. The next one is begun when there is room.
        size_of: bytes of an item; None: not counted.
        budget: charged with ``size_of(item)`` while an item waits for the consumer. The thread
            waits for room only while an item is there to be consumed, so a budget that is shared
            with the backend can't deadlock.
        cancel: called first when closing, in the closing thread: whatever makes a blocked
            ``next(iterator)`` return or raise, as ``backend.close`` does. It is given the seconds
            that it may wait.
    """

    def __init__(
        self,
        iterator: Iterator[T],
        depth: int,
        *,
        size_of: Callable[[T], int] | None = None,
        budget: ByteBudget | None = None,
        cancel: Callable[[float], None] | None = None,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth={depth}: at least one item must be held")
        self._line: _Line[T] = _Line(depth, size_of, budget)
        self._thread = threading.Thread(
            target=_produce, args=(self._line, iterator), name="zephon_mm-producer", daemon=True
        )
        self._cancel = cancel
        self._finalizer = weakref.finalize(
            self, _shut_down, self._line, self._thread, cancel, FINAL_SECONDS
        )
        self._thread.start()

    def __iter__(self) -> Prefetcher[T]:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next item; waits for it.

        Raises:
            Cancelled: closed, here or from another thread, or failed before.
            ForkedError: this process is a fork of the one that made the prefetcher.
            BaseException: what the iterator raised, after the items before it.
        """
        try:
            return self._line.take()
        finally:
            if self._line.over:
                self._thread.join()  # it has done its last act

    def __enter__(self) -> Prefetcher[T]:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Stop the thread and join it; one that is still busy after 30 s is logged and left."""
        _shut_down(self._line, self._thread, self._cancel, CLOSE_SECONDS)
        self._finalizer.detach()

    @property
    def waited_seconds(self) -> float:
        """See ``Feed.waited_seconds``."""
        return self._line.waited_seconds

    @property
    def held_items(self) -> int:
        """See ``Feed.held_items``."""
        return len(self._line.items)

    @property
    def held_bytes(self) -> int:
        """See ``Feed.held_bytes``."""
        return self._line.held_bytes


class Direct(Generic[T]):
    """``iterator`` itself, in the caller's thread, with the interface of ``Prefetcher``.

    Args:
        iterator: what to hand out.
        cancel: called when closing, before the iterator is closed, with the seconds that it may
            wait.
    """

    def __init__(
        self, iterator: Iterator[T], *, cancel: Callable[[float], None] | None = None
    ) -> None:
        self._iterator = iterator
        self._cancel = cancel
        self._failure = ""
        self._closed = False
        self._waited = 0.0

    def __iter__(self) -> Direct[T]:
        """Itself."""
        return self

    def __next__(self) -> T:
        """The next item, made here and now.

        Raises:
            Cancelled: closed, or failed before.
            BaseException: what the iterator raised.
        """
        if self._closed:
            raise Cancelled("the stream is closed")
        if self._failure:
            raise failed_before(self._failure)
        begin = time.monotonic()
        try:
            return next(self._iterator)
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = describe(error)
            raise
        finally:
            self._waited += time.monotonic() - begin

    def __enter__(self) -> Direct[T]:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """See ``Feed.close``."""
        if self._closed:
            return
        self._closed = True
        if self._cancel is not None:
            self._cancel(CLOSE_SECONDS)
        _close_iterator(self._iterator)

    @property
    def waited_seconds(self) -> float:
        """All the time that making items took, in seconds."""
        return self._waited

    @property
    def held_items(self) -> int:
        """0: nothing is made ahead."""
        return 0

    @property
    def held_bytes(self) -> int:
        """0: nothing is made ahead."""
        return 0


class _Line(Generic[T]):
    """Finished items between the thread and the consumer."""

    def __init__(
        self, depth: int, size_of: Callable[[T], int] | None, budget: ByteBudget | None
    ) -> None:
        self.pid = os.getpid()
        self.depth = depth
        self.size_of = size_of
        self.budget = budget
        self.changed = threading.Condition()  # an RLock: a finaliser may run under it
        self.items: deque[tuple[T, int]] = deque()
        self.held_bytes = 0
        self.error: BaseException | None = None
        self.failure = ""
        self.finished = False
        self.over = False  # the consumer has seen the end or the error
        self.closed = False
        self.waited_seconds = 0.0

    def wait_for_room(self) -> bool:
        """In the thread, before an item is begun. False: closed."""
        with self.changed:
            while not self.closed and len(self.items) >= self.depth:
                self.changed.wait()
            return not self.closed

    def put(self, item: T) -> None:
        """In the thread: hand over an item, after waiting for its bytes."""
        num_bytes = 0 if self.size_of is None else self.size_of(item)
        if self.budget is not None:
            self.budget.acquire(num_bytes, force_when=lambda: self.closed or not self.items)
        with self.changed:
            if not self.closed:
                self.items.append((item, num_bytes))
                self.held_bytes += num_bytes
                self.changed.notify_all()
                return
        if self.budget is not None:
            self.budget.release(num_bytes)

    def finish(self, error: BaseException | None) -> None:
        """In the thread: no more items."""
        with self.changed:
            self.error = error
            self.finished = True
            self.changed.notify_all()

    def take(self) -> T:
        """In the consumer."""
        check_process(self.pid, "the prefetching stream")
        begin = time.monotonic()
        with self.changed:
            try:
                while not (self.items or self.finished or self.closed):
                    self.changed.wait()
            finally:
                self.waited_seconds += time.monotonic() - begin
            if self.closed:
                raise Cancelled("the stream is closed")
            if not self.items:
                self.over = True
                if self.error is not None:
                    error, self.error = self.error, None
                    self.failure = describe(error)
                    try:
                        raise error
                    finally:
                        del error  # else error -> traceback -> this frame -> error
                if self.failure:
                    raise failed_before(self.failure)
                raise StopIteration
            item, num_bytes = self.items.popleft()
            self.held_bytes -= num_bytes
            self.changed.notify_all()
        if self.budget is not None:
            self.budget.release(num_bytes)
        return item

    def close(self) -> None:
        with self.changed:
            self.closed = True
            freed, self.held_bytes = self.held_bytes, 0
            self.items.clear()
            self.changed.notify_all()
        if self.budget is not None:
            self.budget.release(freed)  # and wakes a put() that waits for bytes


def _produce(line: _Line[T], iterator: Iterator[T]) -> None:
    error: BaseException | None = None
    try:
        while line.wait_for_room():
            try:
                item = next(iterator)
            except StopIteration:
                break
            line.put(item)
            del item
    except BaseException as caught:
        error = caught
    finally:
        _close_iterator(iterator)
        line.finish(error)
        del error  # else error -> traceback -> this frame -> error


def _close_iterator(iterator: Iterator[object]) -> None:
    close = getattr(iterator, "close", None)
    if close is None:
        return
    try:
        close()
    except Cancelled:
        pass  # its clean-up asked for work of a backend that is closed
    except Exception:
        _log.exception("closing %r failed", iterator)


def _shut_down(
    line: _Line[T],
    thread: threading.Thread,
    cancel: Callable[[float], None] | None,
    join_seconds: float,
) -> None:
    if os.getpid() != line.pid:
        return
    deadline = time.monotonic() + join_seconds
    line.close()
    if cancel is not None:
        cancel(join_seconds)
    if thread is threading.current_thread():
        return
    thread.join(max(0.1, deadline - time.monotonic()))
    if thread.is_alive():
        _log.warning(
            "%s is still busy %.0f s after its stream was closed; it ends with its step",
            thread.name,
            join_seconds,
        )
