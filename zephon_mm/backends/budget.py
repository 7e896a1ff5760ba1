"""A byte budget that several users share.

The rule: a request of ``n`` bytes is admitted when ``held + n <= limit``, and a request that is
above the limit is admitted alone, when nothing is held. Requests that wait are served in the order
in which they came: a small one never passes a big one, so none starves.

A semaphore deadlocks when whoever could release waits to acquire. The two users in this package
never do, by construction:

- a backend does not wait: what does not fit stays queued (``try_acquire``), and an item that
  somebody waits for is admitted at once (``take``);
- a prefetcher waits only while it holds a finished item that its consumer can take, which releases
  (``acquire(force_when=…)``).

So the bytes held may pass the limit only by the items that are waited for: one a waiting thread.
Items that are taken in the order in which they were submitted never need that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["ByteBudget"]


class ByteBudget:
    """A counting semaphore in bytes; thread-safe.

    Args:
        limit_bytes: what may be held at a time, 1 or more.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"limit_bytes={limit_bytes}: a byte budget is 1 or more")
        self.limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._held = 0
        self._peak = 0
        self._queue: deque[object] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes held now."""
        return self._held

    @property
    def peak_bytes(self) -> int:
        """The most that was held at a time."""
        return self._peak

    def try_acquire(self, num_bytes: int) -> bool:
        """Take the bytes if the rule admits them now and nobody waits; never blocks."""
        _check_size(num_bytes)
        with self._changed:
            if self._queue or not self._fits(num_bytes):
                return False
            self._add(num_bytes)
            return True

    def acquire(
        self,
        num_bytes: int,
        *,
        admit_alone: bool = True,
        force_when: Callable[[], bool] | None = None,
    ) -> None:
        """Take the bytes, waiting for room.

        Args:
            num_bytes: 0 or more.
            admit_alone: admit a request above the limit when nothing is held; False: refuse it.
            force_when: looked at whenever something changes; once true, the bytes are taken at
                once, room or not. Called with the budget locked: it must not block. Whoever
                changes what it looks at calls ``wake()``.

        Raises:
            ValueError: the request is above the limit and ``admit_alone`` is False.
        """
        _check_size(num_bytes)
        if not admit_alone and num_bytes > self.limit_bytes:
            raise ValueError(
                f"{num_bytes} bytes asked of a budget of {self.limit_bytes}: raise the budget"
            )
        me = object()
        with self._changed:
            self._queue.append(me)
            try:
                while not (
                    (self._queue[0] is me and self._fits(num_bytes))
                    or (force_when is not None and force_when())
                ):
                    self._changed.wait()
                self._add(num_bytes)
            finally:
                self._queue.remove(me)
                self._changed.notify_all()

    def take(self, num_bytes: int) -> None:
        """Take the bytes, room or not: for an item that somebody waits for."""
        _check_size(num_bytes)
        with self._changed:
            self._add(num_bytes)

    def release(self, num_bytes: int) -> None:
        """Give bytes back.

        Raises:
            ValueError: more than is held.
        """
        _check_size(num_bytes)
        with self._changed:
            if num_bytes > self._held:
                raise ValueError(f"{num_bytes} bytes released and only {self._held} are held")
            self._held -= num_bytes
            self._changed.notify_all()

    def wake(self) -> None:
        """Have every waiting ``acquire`` look at its ``force_when`` again."""
        with self._changed:
            self._changed.notify_all()

    def _fits(self, num_bytes: int) -> bool:
        return self._held == 0 or self._held + num_bytes <= self.limit_bytes

    def _add(self, num_bytes: int) -> None:
        self._held += num_bytes
        self._peak = max(self._peak, self._held)


def _check_size(num_bytes: int) -> None:
    if num_bytes < 0:
        raise ValueError(f"{num_bytes} bytes: a size is 0 or more")
