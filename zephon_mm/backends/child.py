"""The parent's side of one worker process: start it, call it, end it.

The parent's main module is imported in it only if a callable comes from there, so a script that is
not guarded by ``if __name__ == "__main__"`` is not run again.
"""

from __future__ import annotations

import json
import multiprocessing.process
import os
import select
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zephon_mm.backends import wire
from zephon_mm.backends.callables import Callables, unpack
from zephon_mm.backends.shared import Leases
from zephon_mm.backends.targets import Targets
from zephon_mm.errors import ConfigError, WorkerError

if TYPE_CHECKING:
    from zephon_mm.backends.template import Template

__all__ = ["ONE_THREAD", "Setup", "WorkerProcess"]

SHARED_FROM_BYTES: Final = 128 << 10
"""Arrays of at least so many bytes come through shared memory, smaller ones through the socket."""

ONE_THREAD: Final = {
    name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
} | {"TOKENIZERS_PARALLELISM": "false"}
"""For the libraries in a worker, before they are loaded: parallelism is over items."""

_WHERE: Final = "a worker process"


@dataclass(frozen=True)
class Setup:
    """What every worker of a backend is started with.

    Attributes:
        folder: this process's working folder; None: it was removed.
        facts: what ``worker.main`` is given, as JSON carries it.
    """

    folder: str | None
    facts: Mapping[str, Any]

    @property
    def message(self) -> bytes:
        """The facts on the wire, after their length."""
        message = json.dumps(self.facts).encode()
        return len(message).to_bytes(8, "little") + message

    @classmethod
    def here(cls) -> Setup:
        """As this process stands now.

        Raises:
            ConfigError: this is a worker that imports its parent's main module.
        """
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise ConfigError(
                "this script starts a loader with worker processes whenever it is imported, and a "
                "worker had to import it for a function of its own. Put what starts the "
                'loader under `if __name__ == "__main__":`, or the function in a module'
            )
        try:
            folder: str | None = os.getcwd()
        except OSError:  # it was removed
            folder = None
        path = [os.path.abspath(entry) if folder else entry for entry in sys.path]
        facts = {
            "parent": os.getpid(),
            "path": path,
            "main": _main_module(),
            "shared_from": SHARED_FROM_BYTES,
        }
        return cls(folder, facts)


def _main_module() -> dict[str, str]:
    """How ``multiprocessing.spawn.prepare`` finds the main module; empty: it has no file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    file = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(file)} if file else {}


class WorkerProcess:
    """One worker process, used by one thread.

    Args:
        template: what forks it.
        name: shown in its command line.
        callables: what was pickled for the workers of the backend.
        targets: what it may be given to write into; with the room for its idle buffers.
        fork: False: the template's process becomes the worker.

    Raises:
        OSError: it can't be started: too many processes, no memory.
        ThreadsError: the template has threads, so it can't fork.
    """

    def __init__(
        self, template: Template, name: str, callables: Callables, targets: Targets, *, fork: bool
    ) -> None:
        self.template = template
        self.generation = template.generation
        self._callables = callables
        self._known = set(template.held) if fork else set()
        self._leases = Leases(targets.room)
        self._targets = targets
        self._mapped: set[int] = set()  # of these, those that it has
        self._unusable: list[int] = []
        self._link, theirs = socket.socketpair()
        self._poll = select.poll()
        self._poll.register(self._link, select.POLLIN)
        try:
            self._pid = (template.fork if fork else template.become)(name, theirs.fileno())
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()

    def wait_ready(self) -> None:
        """Wait until it can take items; EOFError: it died."""
        wire.receive(self._link)

    def call(
        self, fn: Callable[..., Any], item: Any, into: Sequence[Any] | None = None
    ) -> tuple[Any, BaseException | None]:
        """What ``fn(item)``, or ``fn(item, into=into)``, returned or raised there.

        Raises:
            EOFError: the process died.
        """
        try:
            message = self._callables.message(fn, item, self._known, _WHERE)
        except WorkerError as error:
            return None, error
        free, dropped = self._leases.sweep()
        self._unusable, unusable = [], self._unusable
        place = None if into is None else self._targets.place(into)
        gone = self._targets.gone(self._mapped)
        self._mapped.difference_update(gone)
        target = None
        if place is not None and place.number not in self._mapped:
            target = self._targets.descriptor(place.number)
            if target is None:
                place = None
            else:
                self._mapped.add(place.number)
        try:
            wire.send(
                self._link, wire.Task(*message, free, dropped + unusable, place, gone), target
            )
        except ConnectionError as error:
            raise EOFError("it died") from error
        finally:
            if target is not None:
                os.close(target)
        try:
            answer, fd = wire.receive(self._link)
        except wire.DescriptorError as error:
            buffer = wire.Result(*error.message).buffer
            assert buffer is not None  # the descriptor is its
            self._unusable.append(buffer[0])
            return None, error
        return self._unpack(fn, wire.Result(*answer), fd, into or ())

    def gone(self) -> bool:
        """Whether the process has died; asked while it has nothing to do."""
        return bool(self._poll.poll(0))

    def hang_up(self) -> None:
        """From any thread: the process ends, and ``call`` raises EOFError."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def end(self) -> str:
        """End the process and everything of it here; how it ended."""
        self.hang_up()
        ended = self.template.end_worker(self._pid)
        self._link.close()
        self._leases.close()
        return ended

    def _unpack(
        self, fn: Any, result: wire.Result, fd: int | None, into: Sequence[Any]
    ) -> tuple[Any, BaseException | None]:
        arrays: list[Any] = []
        if result.buffer is not None:
            number, size = result.buffer
            if fd is not None:
                try:
                    self._leases.attach(number, size, fd)
                except OSError as problem:
                    self._unusable.append(number)
                    return None, problem
                finally:
                    os.close(fd)
            arrays = list(self._leases.lease(number, result.spans))
        return unpack(fn, result.body, arrays, result.counts, _WHERE, into)
