"""What every execution backend is: ordered work on a callable and its items.

A backend runs ``fn(item)`` somewhere else (or here) and hands the result out through a ticket. It
knows nothing of samples, lanes or steps, so any backend can stand in for any other: order is made
by whoever holds the tickets (``window.OrderedMap``), never by which item finishes first.

Invariants that all backends keep:

- ``submit`` never blocks. A ticket that the byte budget has no room for waits inside the backend,
  and a ticket that somebody waits for begins at once (``admission.Admission``), so one thread may
  drive any number of streams over one backend without deadlock.
- a ticket holds its bytes from the moment it may begin until its result is taken, or until it is
  cancelled or dropped.
- the exception of ``fn`` is raised by ``result()`` of that ticket and of no other.
- after ``close()`` nothing new begins, no thread of the backend lives, and every ticket that was
  not taken raises ``Cancelled``.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from zephon_mm.errors import ZephonError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Into = Sequence[NDArray[np.uint8]] | None
    """What an item writes into: arrays of ``Backend.empty``, or parts of one; None: nothing."""

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

__all__ = [
    "CLOSE_SECONDS",
    "FINAL_SECONDS",
    "Backend",
    "Cancelled",
    "ForkedError",
    "Ticket",
    "brief",
    "check_process",
    "describe",
    "failed_before",
]


# How long closing waits for work that has begun: on request, and for garbage collection and exit.
CLOSE_SECONDS: Final = 30.0
FINAL_SECONDS: Final = 2.0


class Cancelled(ZephonError):
    """The work was given up: the backend or the stream was closed before its result was taken."""


def failed_before(error: str) -> Cancelled:
    """What a stream raises when it is asked for more after a failure: never a normal end.

    Args:
        error: the failure, as ``describe`` gives it. Not the exception itself, whose traceback
            would keep the stream and its workers alive.
    """
    return Cancelled(
        f"the stream failed before ({error}): open a new one, restored from the last state"
    )


def describe(error: BaseException) -> str:
    """``ValueError: what it says``."""
    return f"{type(error).__name__}: {error}"


_short = reprlib.Repr()
_short.maxother = _short.maxstring = 300


def brief(item: object) -> str:
    """Its ``repr``, cut for a message."""
    return _short.repr(item)


class ForkedError(ZephonError, RuntimeError):
    """A backend or stream was used in a forked child, where its threads do not exist."""


class Ticket(Protocol[R_co]):
    """One submitted item. Its result is taken once."""

    def result(self) -> R_co:
        """Wait for the item and return what ``fn`` returned; Ctrl-C and ``close()`` interrupt.

        After a Ctrl-C the ticket is as it was, and ``result()`` may be called again.

        Raises:
            Cancelled: the ticket or its backend was closed.
            RuntimeError: the result was taken before.
            BaseException: whatever ``fn`` raised, the same object with the worker's traceback.
        """
        ...

    def cancel(self) -> None:
        """Give the item up: it does not begin if it hasn't, and its result is dropped."""
        ...


class Backend(Protocol):
    """Runs a callable over items. Callable, item and result must be picklable for processes."""

    @property
    def name(self) -> str:
        """The name of the backend in ``ExecutionConfig``."""
        ...

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
        """An array that items may write into, its content whatever; None: they run elsewhere."""
        ...

    def submit(
        self, fn: Callable[..., R], item: Any, *, cost_bytes: int = 0, into: Into = None
    ) -> Ticket[R]:
        """Queue ``fn(item)``, or ``fn(item, into=into)``; never blocks.

        Args:
            fn: a function of the item, and of what it writes into, alone.
            item: its argument.
            cost_bytes: memory that the item needs from its beginning until its result is taken, in
                bytes. 0: not counted, and never held back by items that are.
            into: arrays of ``empty``, or parts of one, that ``fn`` writes into. It may return
                them: they come back as they were given.

        Raises:
            Cancelled: the backend is closed.
            ForkedError: this process is a fork of the one that made the backend.
        """
        ...

    def close(self, join_seconds: float = CLOSE_SECONDS) -> None:
        """Cancel what has not begun, wait for what has, end every worker. May be called again.

        Args:
            join_seconds: how long to wait; a worker that is still busy is logged and left to end
                with its item.
        """
        ...

    @property
    def in_flight_items(self) -> int:
        """Items that may run, run, or have run, and whose result was not taken."""
        ...

    @property
    def in_flight_bytes(self) -> int:
        """The sum of ``cost_bytes`` of these items."""
        ...

    @property
    def peak_bytes(self) -> int:
        """The highest ``in_flight_bytes`` so far."""
        ...


def check_process(pid: int, what: str) -> None:
    """Raise ``ForkedError`` unless this is the process ``pid``.

    Args:
        pid: the process that made the object.
        what: the object, for the message.
    """
    here = os.getpid()
    if here != pid:
        raise ForkedError(
            f"{what} was made in process {pid} and is used in process {here}, a fork of it, where"
            " its threads do not exist: make the loader in the process that iterates it (or start"
            " that process with spawn)"
        )
