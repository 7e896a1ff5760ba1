"""Which submitted tickets may begin: the byte gate that backends share.

Tickets enter in the order in which they were submitted. One that costs nothing enters at once. One
that costs bytes enters when the budget has room and no older one waits for it; until then it waits
here, where it is only a callable and an argument. ``force`` lets a ticket in that somebody waits
for: with it, a thread that waits for any ticket always gets it, whatever holds the budget.

Not locked: a backend calls it under its own lock. Every call is O(1).
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Generic, TypeVar

from zephon_mm.backends.budget import ByteBudget

K = TypeVar("K")

__all__ = ["Admission"]


class Admission(Generic[K]):
    """The waiting tickets of one backend, and what its admitted ones hold.

    Args:
        budget: shared with other users; None: no limit.
    """

    def __init__(self, budget: ByteBudget | None) -> None:
        self._budget = budget if budget is not None else ByteBudget(sys.maxsize)
        self._waiting: OrderedDict[K, int] = OrderedDict()
        self._closed = False
        self.in_flight_items = 0
        self.in_flight_bytes = 0
        self.peak_bytes = 0

    def offer(self, ticket: K, cost_bytes: int) -> bool:
        """True if the ticket may begin now; else it waits here for ``admit`` or ``force``."""
        if cost_bytes == 0 or (not self._waiting and self._budget.try_acquire(cost_bytes)):
            self._enter(cost_bytes)
            return True
        self._waiting[ticket] = cost_bytes
        return False

    def admit(self) -> K | None:
        """The oldest waiting ticket, if there is room for it now."""
        if not self._waiting:
            return None
        ticket, cost_bytes = next(iter(self._waiting.items()))
        if not self._budget.try_acquire(cost_bytes):
            return None
        del self._waiting[ticket]
        self._enter(cost_bytes)
        return ticket

    def force(self, ticket: K) -> None:
        """Let a waiting ticket in, room or not: somebody waits for its result."""
        cost_bytes = self._waiting.pop(ticket)
        self._budget.take(cost_bytes)
        self._enter(cost_bytes)

    def withdraw(self, ticket: K) -> None:
        """Forget a waiting ticket."""
        self._waiting.pop(ticket, None)

    def settle(self, cost_bytes: int) -> None:
        """An admitted ticket was taken, cancelled or dropped: its bytes are free."""
        if self._closed:
            return
        self.in_flight_items -= 1
        self.in_flight_bytes -= cost_bytes
        if cost_bytes:
            self._budget.release(cost_bytes)

    def close(self) -> list[K]:
        """Free all bytes for good; the tickets that were still waiting."""
        left = list(self._waiting)
        self._waiting.clear()
        if not self._closed:
            self._closed = True
            self._budget.release(self.in_flight_bytes)
            self.in_flight_items = self.in_flight_bytes = 0
        return left

    def _enter(self, cost_bytes: int) -> None:
        self.in_flight_items += 1
        self.in_flight_bytes += cost_bytes
        self.peak_bytes = max(self.peak_bytes, self.in_flight_bytes)
