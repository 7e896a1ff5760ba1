"""The backend of worker processes: an interpreter each, so no lock is shared with the trainer, and
a crash of a library ends an item's worker and not the run.

A thread a worker (``pool.Pool`` is their queue, as it is of the threads backend) sends it one item
at a time and waits. The parent never runs an item itself: one that crashes would take the trainer
with it.

Workers are forked from a template process (``template``), which is started when the backend is
made, without waiting, and loads what items need once for all: the modules of their callables, what
a callable's ``modules_of(item)`` names, and what its ``get_ready()`` loads. A worker that was
forked before something it needs was there is replaced by one that has it. A template that can't
fork (threads) is told of once; from then on each worker is an interpreter of its own.

A worker that dies is replaced, and its item given to the new one; the third death at one item is
that item's error (``WorkerDiedError``), in its place. If the template dies its workers do, and all
are replaced. Closing ends the workers at once, busy or not: nobody wants what they would give. When
the parent is killed, they end too.

Arrays come back through shared memory: of the worker that made them (``shared``), or of the parent,
which said where they are to be written (``targets``).
"""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zephon_mm.backends.base import brief
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.callables import Callables, Needs
from zephon_mm.backends.child import Setup, WorkerProcess
from zephon_mm.backends.pool import Pool, PoolBackend, count_workers
from zephon_mm.backends.shared import IdleRoom
from zephon_mm.backends.targets import Targets
from zephon_mm.backends.template import Template, ThreadsError
from zephon_mm.backends.worker import SIGNALS
from zephon_mm.errors import ConfigError, WorkerDiedError, WorkerError

__all__ = ["ProcessesBackend"]

_log = logging.getLogger(__name__)

_TRIES: Final = 3
_SUITS: Final = 8


class ProcessesBackend(PoolBackend):
    """Runs items in worker processes; Linux only. Closing ends them at once.

    Args:
        workers: processes; None: ``default_workers()``.
        budget: bytes that admitted items and idle buffers may hold, shared with other users; None:
            no limit.

    Raises:
        ConfigError: not on this system, or in a worker that imports the script that started it.
    """

    def __init__(self, workers: int | None = None, *, budget: ByteBudget | None = None) -> None:
        count = count_workers(workers)
        if sys.platform != "linux":
            raise ConfigError(
                f"backend='processes' needs Linux, not {sys.platform}: use backend='threads'"
            )
        crew = _Crew(Setup.here(), budget)
        self._targets = crew.targets
        pool = Pool("processes", budget, crew.hang_up, crew.targets.room.grow)
        super().__init__(count, pool, pool.close)
        self._start_threads(partial(_drive, pool, crew), "process")

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """See ``Backend.empty``."""
        return self._targets.empty(shape)


class _Crew:
    """The worker processes of a backend, as its threads and its closing share them."""

    def __init__(self, setup: Setup, budget: ByteBudget | None) -> None:
        self._setup = setup
        self._callables = Callables()
        self.targets = Targets(IdleRoom(budget))
        self._lock = threading.RLock()  # a finaliser may close the backend under it
        self._alive: set[WorkerProcess] = set()
        self._template: Template | None = None
        self._apart = False  # each worker from a template of its own
        self.closed = False

    def template(self) -> Template:
        """The template process, a new one if there is none.

        Raises:
            EOFError: the backend is closed.
            OSError: it can't be started.
        """
        with self._lock:
            if self.closed:
                raise EOFError("closed")
            if self._template is not None and self._template.gone:
                self._template.end()  # its socket, and its place in the table of processes
                self._template = None
            if self._template is None:
                self._template = Template(self._setup)
            return self._template

    def needed(self, fn: Any, item: Any) -> Needs:
        """What a worker needs for an item; nothing if it can't be told."""
        try:
            more = tuple(fn.modules_of(item)) if hasattr(fn, "modules_of") else ()
            return self._callables.needs(fn, more)
        except Exception:  # ``WorkerProcess.call`` says why it can't be sent
            return Needs()

    def suits(self, worker: WorkerProcess, needed: Needs) -> bool:
        """Whether a worker need not be replaced to have what is needed."""
        template = worker.template
        if self._apart or template.covers(worker.generation, needed):
            return True
        try:
            template.load(needed)
        except OSError:
            return False  # the worker has died with it
        return template.covers(worker.generation, needed)

    def start(self, name: str, needed: Needs) -> WorkerProcess:
        """A new worker that has what is needed, and is not ready yet.

        Raises:
            EOFError: the backend is closed.
            OSError: it can't be started.
        """
        worker = self._apart_from_others(name) if self._apart else self._forked(name, needed)
        with self._lock:
            self._alive.add(worker)
            if not self.closed:
                return worker
        self.end(worker)
        raise EOFError("closed")

    def _forked(self, name: str, needed: Needs) -> WorkerProcess:
        template = self.template()
        template.load(needed)
        try:
            return WorkerProcess(template, name, self._callables, self.targets, fork=True)
        except ThreadsError as threads:
            with self._lock:
                first, self._apart = not self._apart, True
            if first:
                _log.warning(
                    "a module that workers import starts threads (%s), beside which no process is "
                    "forked: each worker imports everything for itself, which takes longer and "
                    "more memory. Start threads when they are first needed, not at import",
                    threads,
                )
            return self._apart_from_others(name)

    def _apart_from_others(self, name: str) -> WorkerProcess:
        template = Template(self._setup)
        return WorkerProcess(template, name, self._callables, self.targets, fork=False)

    def end(self, worker: WorkerProcess) -> str:
        """End a worker that is done with or has died; how it ended."""
        with self._lock:
            self._alive.discard(worker)
        return worker.end()

    def hang_up(self) -> None:
        """End all workers, without waiting."""
        with self._lock:
            self.closed = True
            for worker in self._alive:
                worker.hang_up()
            if self._template is not None:
                self._template.hang_up()
        self.targets.close()
        self.targets.room.close()

    def end_template(self) -> None:
        """After ``hang_up``, in each thread before it ends: the template is gone."""
        if self._template is not None:
            self._template.end()


class _Seat:
    """The place of one worker: the process that sits there now, replaced when it dies."""

    def __init__(self, crew: _Crew, name: str) -> None:
        self._crew = crew
        self._name = name
        self._worker: WorkerProcess | None = None
        self._suits: deque[Needs] = deque(maxlen=_SUITS)  # what it was found to have

    def ready(self, needed: Needs) -> WorkerProcess:
        """A live worker that has what is needed, the one there is or a new one.

        Raises:
            EOFError: the backend is closed.
            WorkerError: none can be started.
        """
        if self._worker is not None:
            if self._worker.gone():
                ended = self.vacate()
                if self._crew.closed:
                    raise EOFError("closed")
                _log.warning("%s died while idle (%s)", self._name, ended)
            elif any(needed is known for known in self._suits):
                return self._worker
            elif self._crew.suits(self._worker, needed):
                self._suits.append(needed)
                return self._worker
            else:
                self.vacate()
        ends: list[str] = []
        for _ in range(_TRIES):
            try:
                self._worker = self._crew.start(self._name, needed)
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

    def run(
        self, fn: Callable[..., Any], item: Any, into: Sequence[Any] | None
    ) -> tuple[Any, BaseException | None]:
        """What ``fn(item)`` gave, or with ``into``; EOFError: the backend is closed."""
        needed = self._crew.needed(fn, item)
        ends: list[str] = []
        while len(ends) < _TRIES:
            try:
                worker = self.ready(needed)
            except WorkerError as error:
                return None, error
            try:
                return worker.call(fn, item, into)
            except EOFError:
                ends.append(self.vacate())
            except BaseException as error:  # in the middle of a message, perhaps
                self.vacate()
                return None, error
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
        self._suits.clear()
        return self._crew.end(worker)


def _drive(pool: Pool, crew: _Crew, number: int) -> None:
    """In a thread: one worker's items, until the pool is closed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # inherited by the worker
    seat = _Seat(crew, f"zephon_mm-worker-{number}")
    try:
        with contextlib.suppress(OSError):  # the first item tries again, and says so
            crew.template()
        while (ticket := pool.next_ticket()) is not None:
            assert ticket.fn is not None
            try:
                ticket.value, ticket.error = seat.run(ticket.fn, ticket.item, ticket.into)
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
        if pool.closed:  # which is before `crew.closed`
            crew.end_template()
