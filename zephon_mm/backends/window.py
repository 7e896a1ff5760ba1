"""The reorder window: a lazy, ordered map over any backend.

Items are submitted in order, results are handed out in order, and at most ``window`` items are
ahead of the consumer (submitted and not handed out). Errors keep their place: whatever ``fn``
raised for item *k* is raised by the ``next()`` that would have returned result *k*, after all
results before it; the items after it follow. An error of the source comes after the results of
everything that was drawn before it; every later ``next()`` raises ``Cancelled``, so that a failure
never looks like the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from zephon_mm.backends.base import Backend, Cancelled, Ticket, describe, failed_before

T = TypeVar("T")
R = TypeVar("R")

__all__ = ["OrderedMap", "map_ordered"]


def _free(item: object) -> int:
    return 0


class OrderedMap(Generic[T, R]):
    """An iterator over ``fn(item)`` for ``item in items``, in order.

    Nothing is drawn from ``items`` before the first ``next()`` or ``prime()``. Driven by one
    thread; any number of maps may share a backend and a thread.

    Args:
        backend: where ``fn`` runs.
        fn: a function of the item alone.
        items: drawn lazily, in the thread that calls ``next()``.
        window: items ahead of the consumer, 1 or more.
        cost: bytes that an item needs until its result is handed out.
        label: the stage, for the note that is added to an error.
    """

    def __init__(
        self,
        backend: Backend,
        fn: Callable[[T], R],
        items: Iterable[T],
        *,
        window: int,
        cost: Callable[[T], int] = _free,
        label: str = "",
    ) -> None:
        if window < 1:
            raise ValueError(f"window={window}: at least one item must be in flight")
        self._backend = backend
        self._fn = fn
        self._items: Iterator[T] | None = iter(items)
        self._window = window
        self._cost = cost
        self._label = label
        self._pending: deque[Ticket[R]] = deque()
        self._taken = 0
        self._source_error: BaseException | None = None
        self._failure = ""
        self._closed = False

    def __iter__(self) -> OrderedMap[T, R]:
        """Itself."""
        return self

    def __next__(self) -> R:
        """The next result; afterwards the window is filled again.

        Raises:
            Cancelled: the map or its backend was closed.
            BaseException: what ``fn`` raised for this item, with a note naming label and item.
        """
        self.prime()
        if not self._pending:
            if self._source_error is not None:
                error, self._source_error = self._source_error, None
                try:
                    raise error
                finally:
                    del error
            if self._failure:
                raise failed_before(self._failure)
            raise StopIteration
        ticket = self._pending[0]
        try:
            value = ticket.result()
        except (Cancelled, KeyboardInterrupt):
            raise  # not handed out: the call may be repeated
        except BaseException as error:
            self._pending.popleft()
            self._annotate(error)
            self._taken += 1
            raise
        self._pending.popleft()
        self._taken += 1
        self.prime()
        return value

    def prime(self) -> None:
        """Fill the window without waiting for any result.

        A thread that drives many maps primes them all before it waits for the first.

        Raises:
            Cancelled: the map or its backend was closed.
        """
        if self._closed:
            raise Cancelled("the ordered map is closed")
        while self._items is not None and len(self._pending) < self._window:
            try:
                item = next(self._items)
                cost_bytes = self._cost(item)
            except StopIteration:
                self._items = None
                return
            except BaseException as error:
                self._items = None
                self._failure = describe(error)
                if not isinstance(error, Exception):
                    raise  # Ctrl-C does not wait for its turn
                self._source_error = error
                return
            self._pending.append(self._backend.submit(self._fn, item, cost_bytes=cost_bytes))

    @property
    def ahead(self) -> int:
        """Items submitted and not handed out."""
        return len(self._pending)

    def close(self) -> None:
        """Cancel what is ahead and draw nothing more; ``next()`` raises ``Cancelled``.

        The source is not closed: it belongs to whoever made it. May be called again.
        """
        self._closed = True
        self._items = None
        while self._pending:
            self._pending.popleft().cancel()

    def _annotate(self, error: BaseException) -> None:
        if self._label:
            note = f"{self._label}, item {self._taken}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


def map_ordered(
    backend: Backend,
    fn: Callable[[T], R],
    items: Iterable[T],
    *,
    window: int,
    cost: Callable[[T], int] = _free,
    label: str = "",
) -> OrderedMap[T, R]:
    """``OrderedMap`` with its arguments."""
    return OrderedMap(backend, fn, items, window=window, cost=cost, label=label)
