"""The parent's side of one Ray actor: start it, call it, end it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from zephon_mm.backends.callables import Callables, unpack
from zephon_mm.backends.ray_session import Session
from zephon_mm.errors import WorkerError

__all__ = ["LostError", "RayActor"]

_WHERE: Final = "a Ray worker"
_ADVICE: Final = re.compile("There are some potential root causes|Some common causes include")


class LostError(Exception):
    """An actor, its node, or a result on it is gone; says how."""


class RayActor:
    """One actor, used by one thread, but for ``kill``.

    Args:
        session: the connection.
        kind: the actors' class, as ``ray.remote`` made it.
        facts: what each is started with, see ``ray_worker.RayWorker``.
        callables: what was pickled for the actors of the backend.

    Raises:
        WorkerError: Ray was shut down.
    """

    def __init__(
        self, session: Session, kind: Any, facts: Mapping[str, Any], callables: Callables
    ) -> None:
        self._session = session
        self._callables = callables
        self._known: set[int] = set()
        self._check_alive()  # Ray would start a cluster instead
        self._handle = kind.remote(dict(facts))
        self._ready = self._handle.ready.remote()

    def wait_ready(self, seconds: float) -> bool:
        """Whether it takes items within so many seconds.

        Raises:
            LostError: it died, or its start failed.
            WorkerError: Ray was shut down.
        """
        self._check_alive()
        done, _ = self._session.ray.wait([self._ready], timeout=seconds)
        if done:
            self._get(self._ready)
        return bool(done)

    def check(self) -> None:
        """Wait for a sign of life.

        Raises:
            LostError: there is none.
            WorkerError: Ray was shut down.
        """
        self._check_alive()
        self._get(self._handle.ready.remote())

    def call(self, fn: Callable[[Any], Any], item: Any) -> tuple[Any, BaseException | None]:
        """What ``fn(item)`` returned or raised there.

        Raises:
            LostError: the actor died, or the result was lost with its node.
            WorkerError: callable or item can't be pickled, or Ray was shut down.
        """
        self._check_alive()
        message = self._callables.message(fn, item, self._known, _WHERE)
        body, arrays, counts = self._get(self._handle.call.remote(*message))
        return unpack(fn, body, arrays, counts, _WHERE)

    def kill(self) -> None:
        """From any thread: the actor ends at once, and ``call`` raises LostError."""
        if self._session.alive():
            with contextlib.suppress(Exception):  # it is gone, or Ray is
                self._session.ray.kill(self._handle)

    def _get(self, ref: Any) -> Any:
        errors = self._session.ray.exceptions
        try:
            return self._session.ray.get(ref)
        except errors.RayTaskError as error:
            raise WorkerError(f"a Ray worker failed beside its item ({error})") from error
        except Exception as error:
            self._check_alive()
            raise LostError(_how(error)) from None

    def _check_alive(self) -> None:
        if not self._session.alive():
            raise WorkerError(
                "Ray was shut down (ray.shutdown()) while a loader ran on it: close the loader "
                "before, or call ray.init() yourself before the loader starts"
            )


def _how(error: BaseException) -> str:
    """The sentence of Ray's long message that says how an actor ended."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if "creation task" in lines[0]:
        return lines[-1]  # its start failed: the last line of a traceback
    told = [line for line in lines if line.startswith("The actor ") and " because " in line]
    sentence = told[0].partition(" because ")[2] if told else lines[0]
    sentence = _ADVICE.split(sentence)[0]
    sentence = sentence.replace("Worker exit type: ", "").replace(" Worker exit detail:", ":")
    return sentence.strip().rstrip(".")[:300]
