"""The backend without threads: an item runs in the caller's thread when its result is asked for.

It is the yardstick: every other backend must give what this one gives. At most one item is in
flight, and torch's intra-op threads are left as the caller set them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from zephon_mm.backends.base import CLOSE_SECONDS, Cancelled
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.outcome import call

if TYPE_CHECKING:
    from zephon_mm.backends.base import Into

R = TypeVar("R")

__all__ = ["SerialBackend"]


class SerialBackend:
    """Runs items one at a time, in the thread that calls ``result()``.

    Args:
        budget: charged while an item runs; an item that is asked for never waits.
    """

    name = "serial"

    def __init__(self, *, budget: ByteBudget | None = None) -> None:
        self._budget = budget
        self._closed = False
        self._items = 0
        self._bytes = 0
        self._peak = 0

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """See ``Backend.empty``."""
        return np.empty(shape, np.uint8)

    def submit(
        self, fn: Callable[..., R], item: Any, *, cost_bytes: int = 0, into: Into = None
    ) -> _SerialTicket[R]:
        """See ``Backend.submit``; nothing runs before ``result()``."""
        if cost_bytes < 0:
            raise ValueError(f"cost_bytes={cost_bytes}: a size is 0 or more")
        if self._closed:
            raise Cancelled("the serial backend is closed")
        work = fn if into is None else partial(fn, into=into)
        return _SerialTicket(self, work, item, cost_bytes)

    def close(self, join_seconds: float = CLOSE_SECONDS) -> None:
        """Every ticket not yet taken is cancelled; there is nothing to wait for."""
        self._closed = True

    @property
    def in_flight_items(self) -> int:
        """1 while an item runs."""
        return self._items

    @property
    def in_flight_bytes(self) -> int:
        """The cost of the item that runs."""
        return self._bytes

    @property
    def peak_bytes(self) -> int:
        """The highest cost so far."""
        return self._peak

    def _run(
        self, fn: Callable[[Any], Any], item: Any, cost_bytes: int
    ) -> tuple[Any, BaseException | None]:
        if self._budget is not None:
            self._budget.take(cost_bytes)
        self._items += 1
        self._bytes += cost_bytes
        self._peak = max(self._peak, self._bytes)
        try:
            return call(fn, item)
        finally:
            self._items -= 1
            self._bytes -= cost_bytes
            if self._budget is not None:
                self._budget.release(cost_bytes)


class _SerialTicket(Generic[R]):
    __slots__ = ("_backend", "_cancelled", "_cost_bytes", "_work")

    def __init__(
        self, backend: SerialBackend, fn: Callable[[Any], R], item: Any, cost_bytes: int
    ) -> None:
        self._backend = backend
        self._work: tuple[Callable[[Any], R], Any] | None = (fn, item)
        self._cost_bytes = cost_bytes
        self._cancelled = False

    def result(self) -> R:
        if self._cancelled or (self._work is not None and self._backend._closed):
            raise Cancelled("the item was cancelled, or its backend closed, before it ran")
        if self._work is None:
            raise RuntimeError("the result was taken already")
        value, error = self._backend._run(*self._work, self._cost_bytes)
        if isinstance(error, KeyboardInterrupt):
            raise error  # the work is kept: the call may be repeated
        self._work = None
        if error is None:
            return cast(R, value)
        try:
            raise error
        finally:
            del error

    def cancel(self) -> None:
        self._cancelled = True
        self._work = None
