"""The backend of Ray actors: worker processes on any node of a cluster, or of a local one.

As in the processes backend a thread an actor gives it one item at a time (``pool.Pool`` is their
queue); results come back through Ray's object store, and their big arrays are read-only views of
it, not copies. What an item is, what crosses over and what its errors look like is the same
(``callables``, ``wire``).

An actor or node that is lost is replaced, and its item goes back to the head of the queue, so
whichever actor lives takes it; the third loss at one item is that item's error
(``WorkerDiedError``), in its place. An item that was lost before is only given to an actor that has
just answered, so idle actors of a lost node cost no item its tries.

Ray's own retries are off: they would count otherwise, and repeat an item beside ours.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import zephon_mm
from zephon_mm.backends.base import FINAL_SECONDS, brief
from zephon_mm.backends.budget import ByteBudget
from zephon_mm.backends.callables import Callables
from zephon_mm.backends.child import ONE_THREAD, Setup
from zephon_mm.backends.pool import Pool, PoolBackend, PoolTicket, count_workers
from zephon_mm.backends.ray_actor import LostError, RayActor
from zephon_mm.backends.ray_session import Session
from zephon_mm.backends.ray_worker import actor_class
from zephon_mm.errors import WorkerDiedError, WorkerError

__all__ = ["RayBackend"]

_log = logging.getLogger(__name__)

_TRIES: Final = 3
_STORE_BYTES: Final = 2 << 30
_LOOK_SECONDS: Final = 0.5
_TELL_SECONDS: Final = 30.0
_START_SECONDS: Final = 300.0


class RayBackend(PoolBackend):
    """Runs items in Ray actors. Closing ends them at once, and a local cluster of ours.

    An item costs a message to another process, perhaps on another node, and back: it is for media
    that take longer than that.

    Args:
        workers: actors, each of one CPU; None: ``default_workers()``.
        budget: bytes that admitted items may hold, shared with other users; None: no limit.
        address: see ``Session.hold``.

    Raises:
        MissingDependencyError: Ray is not installed.
        WorkerError: there is no cluster.
        ConfigError: in a worker that imports the script that started it.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        budget: ByteBudget | None = None,
        address: str | None = None,
    ) -> None:
        count = count_workers(workers)
        setup = Setup.here()
        store = _STORE_BYTES if budget is None else budget.limit_bytes
        session = Session.hold(address, count, store)
        try:
            crew = _Crew(session, setup)
        except BaseException:
            session.release()
            raise
        pool = Pool("ray", budget, crew.hang_up)
        ending = _Ending(pool, session)
        super().__init__(count, pool, ending)
        self._finalizer.atexit = False
        atexit.register(ending, FINAL_SECONDS)  # later than Ray's, so it runs earlier
        self._start_threads(partial(_drive, pool, crew), "ray")


class _Ending:
    """How a backend ends, whoever ends it: its actors and threads, then the connection, once."""

    def __init__(self, pool: Pool, session: Session) -> None:
        self._pool = pool
        self._session: Session | None = session
        self._lock = threading.RLock()  # a finaliser may close the backend under it

    def __call__(self, join_seconds: float) -> None:
        atexit.unregister(self)
        self._pool.close(join_seconds)
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.release()


class _Crew:
    """The actors of a backend, as its threads and its closing share them."""

    def __init__(self, session: Session, setup: Setup) -> None:
        self.session = session
        self._facts = {
            **setup.facts,
            "folder": setup.folder,
            "environment": ONE_THREAD,
            "version": zephon_mm.__version__,
        }
        # On a cluster of ours, which other loaders of this program may share, none waits for a CPU.
        self._kind = session.ray.remote(
            num_cpus=0 if session.local else 1,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )(actor_class())
        self._callables = Callables()
        self._lock = threading.RLock()  # a finaliser may close the backend under it
        self._actors: set[RayActor] = set()
        self._losses: WeakKeyDictionary[PoolTicket[Any], list[str]] = WeakKeyDictionary()
        self._ready = 0
        self.closed = False

    def start(self) -> RayActor:
        """A new actor, which is not ready yet.

        Raises:
            LostError: the backend is closed.
            WorkerError: Ray was shut down.
        """
        actor = RayActor(self.session, self._kind, self._facts, self._callables)
        with self._lock:
            self._actors.add(actor)
            if not self.closed:
                return actor
        self.end(actor)
        raise LostError("closed")

    def end(self, actor: RayActor) -> None:
        """End an actor that is done with or was lost."""
        with self._lock:
            self._actors.discard(actor)
        actor.kill()

    def hang_up(self) -> None:
        """End all actors, without waiting."""
        with self._lock:
            self.closed = True
            actors = list(self._actors)
        for actor in actors:
            actor.kill()

    def count_ready(self, change: int) -> int:
        """How many actors take items, after this change."""
        with self._lock:
            self._ready += change
            return self._ready

    def losses(self, ticket: PoolTicket[Any], *new: str) -> list[str]:
        """How the actors ended that were lost at an item."""
        with self._lock:
            if new:
                self.session.keep_logs()
                self._losses.setdefault(ticket, []).extend(new)
            return list(self._losses.get(ticket, ()))


class _Seat:
    """The place of one actor: the one that sits there now, replaced when it is lost."""

    def __init__(self, crew: _Crew, name: str) -> None:
        self._crew = crew
        self._name = name
        self._actor: RayActor | None = None

    def ready(self) -> RayActor:
        """An actor that takes items, the one there is or a new one.

        Raises:
            LostError: the backend is closed.
            WorkerError: none can be started.
        """
        if self._actor is not None:
            return self._actor
        ends: list[str] = []
        for _ in range(_TRIES):
            actor = self._crew.start()
            try:
                self._wait(actor)
            except LostError as error:
                self._crew.end(actor)
                if self._crew.closed:
                    raise
                ends.append(str(error))
                continue
            except BaseException:
                self._crew.end(actor)
                raise
            self._actor = actor
            self._crew.count_ready(1)
            return actor
        raise WorkerError(
            f"Ray workers can't be started ({'; '.join(ends)}): every node needs this package and "
            "what it was installed with; see also Ray's logs there"
        )

    def _wait(self, actor: RayActor) -> None:
        """Until it is ready; an error only if no other one works either."""
        begin = time.monotonic()
        told = False
        while not actor.wait_ready(_LOOK_SECONDS):
            if self._crew.closed:
                raise LostError("closed")
            waited = time.monotonic() - begin
            if waited > _TELL_SECONDS and not told:
                told = True
                _log.warning("%s waits for a free CPU of the Ray cluster", self._name)
            if waited > _START_SECONDS and self._crew.count_ready(0) == 0:
                raise WorkerError(
                    f"no Ray worker could start in {_START_SECONDS:.0f} s: the cluster has no free "
                    "CPU for one (see `ray status`). Ask for fewer workers, or end what holds them"
                )

    def run(self, ticket: PoolTicket[Any]) -> bool:
        """Put into the ticket what came of its item; False: another seat has to.

        Raises:
            LostError: the backend is closed.
        """
        ends = self._crew.losses(ticket)
        assert ticket.fn is not None
        try:
            actor = self.ready()
            if ends:
                try:
                    actor.check()
                except LostError:
                    self.vacate()
                    return False
            ticket.value, ticket.error = actor.call(ticket.fn, ticket.item)
            return True
        except WorkerError as error:
            ticket.error = error
            return True
        except LostError as error:
            if self._crew.closed:
                raise
            self.vacate()
            ends = self._crew.losses(ticket, str(error))
            item = brief(ticket.item)
            _log.warning(
                "%s was lost (%s) at %s, time %d of %d", self._name, error, item, len(ends), _TRIES
            )
        if len(ends) < _TRIES:
            return False
        ticket.error = WorkerDiedError(
            f"{_TRIES} Ray workers died of it, one after the other ({'; '.join(ends)}), at {item}. "
            "Ray's memory monitor and the kernel kill for want of memory: fewer workers or a "
            "smaller memory_budget; a crash in a library leaves its stack in Ray's logs "
            f"({self._crew.session.folder or '/tmp/ray/session_latest'}/logs on its node): "
            "repair or remove the sample"
        )
        return True

    def vacate(self) -> None:
        """End the actor that sits here."""
        if self._actor is not None:
            actor, self._actor = self._actor, None
            self._crew.count_ready(-1)
            self._crew.end(actor)


def _drive(pool: Pool, crew: _Crew, number: int) -> None:
    """In a thread: one actor's items, until the pool is closed."""
    seat = _Seat(crew, f"Ray worker {number}")
    try:
        while True:
            failed: Exception | None = None
            try:
                seat.ready()
            except LostError:
                raise
            except Exception as error:
                failed = error
            ticket = pool.next_ticket()
            if ticket is None:
                return
            if failed is not None and crew.count_ready(0):
                pool.put_back(ticket)
                _log.warning("worker %d: %s; the others go on without it", number, failed)
                return
            _do(pool, seat, ticket, failed)
            del ticket  # nothing is kept alive while this worker idles
    except LostError:
        pass  # closed
    finally:
        seat.vacate()


def _do(pool: Pool, seat: _Seat, ticket: PoolTicket[Any], failed: Exception | None) -> None:
    """One item; if no actor could be started that is its error, and the next one tries again."""
    done = True
    try:
        if failed is None:
            done = seat.run(ticket)
        else:
            ticket.error = failed
    except BaseException as error:
        ticket.error = error
        if isinstance(error, LostError):
            raise  # closed
    finally:
        if done:
            pool.finish(ticket)
        else:
            pool.put_back(ticket)
