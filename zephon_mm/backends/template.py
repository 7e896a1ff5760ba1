"""The parent's side of the template process (``forking``), which workers are forked from.

It is a fresh interpreter (never a fork of this process, which would copy locks that other threads
hold, and a CUDA context that does not survive), given this one's ``sys.path`` and one end of a
socket.
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, Final

from zephon_mm.backends import wire
from zephon_mm.backends.callables import Needs
from zephon_mm.backends.child import ONE_THREAD, Setup
from zephon_mm.backends.forking import TITLE

__all__ = ["Template", "ThreadsError", "describe_exit"]

_END_SECONDS: Final = 1.0

_BOOT: Final = """\
import json, socket, sys
link = socket.socket(fileno=int(sys.argv[1]))
size = int.from_bytes(link.recv(8, socket.MSG_WAITALL), "little")
if size == 0:
    sys.exit()
setup = json.loads(link.recv(size, socket.MSG_WAITALL))
sys.path[:] = setup["path"]
from zephon_mm.backends.forking import main
main(link, setup)
"""

_NO_THREAD: Final = ("JE_ARROW_MALLOC_CONF", "background_thread:false")
"""For the allocator of pyarrow, which else starts a thread when it is loaded."""


class ThreadsError(Exception):
    """The template process has threads, whose names these are."""


class Template:
    """A template process. Thread-safe, but the thread that made it must live as long as it does.

    Raises:
        OSError: it can't be started: too many processes, no memory.
    """

    def __init__(self, setup: Setup) -> None:
        self.generation = 0
        """How often loading has brought anything."""
        self.held: frozenset[int] = frozenset()
        """Numbers of the objects that what is forked from now on has."""
        self._loaded: dict[str | int, int] = {}
        self._modules = 0
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair()
        try:
            # the mask of signals is inherited, see worker.SIGNALS
            self._process = subprocess.Popen(
                [
                    os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable),
                    *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                    "-P",
                    "-c",
                    _BOOT,
                    str(theirs.fileno()),
                    TITLE,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=setup.folder,
                env=_environment(),
            )
            self._link.sendall(setup.message)
        except ConnectionError:
            pass  # it has died: who asks it for something is told
        except BaseException:
            self._link.close()
            raise
        finally:
            theirs.close()

    def covers(self, generation: int, needs: Needs) -> bool:
        """Whether what was forked in that generation has all that, as far as it can be loaded."""
        return all(self._loaded.get(key, generation + 1) <= generation for key in needs.keys())

    def load(self, needs: Needs) -> None:
        """Load what is missing, for what is forked from now on; OSError: the process is gone."""
        missing = [key for key in needs.keys() if key not in self._loaded]
        if not missing:
            return
        modules = sorted(key for key in missing if isinstance(key, str))
        objects = needs.objects if len(modules) < len(missing) else ()
        count, held = self._ask("load", (modules, objects))
        with self._lock:
            new = frozenset(number for number, _ in objects) if held else frozenset()
            if count > self._modules or not new <= self.held:
                self._modules = count
                self.generation += 1
            self.held |= new
            self._loaded.update(dict.fromkeys(missing, self.generation))

    def fork(self, name: str, fd: int) -> int:
        """Fork a worker that serves a copy of the socket; its process id.

        Raises:
            OSError: the process is gone, or it can't fork.
            ThreadsError: it has threads.
        """
        pid, why = self._ask("fork", name, fd)
        if pid == 0:
            raise ThreadsError(why)
        if pid < 0:
            raise OSError(-pid, why)
        return int(pid)

    def become(self, name: str, fd: int) -> int:
        """Turn the process itself into a worker that serves a copy of the socket; its id."""
        with self._lock:
            try:
                wire.send(self._link, ("become", name), fd)
            except OSError:
                pass  # it has died, and so has the socket's other end
        return self._process.pid

    def end_worker(self, pid: int) -> str:
        """End a worker at once, if it has not died already; how it ended."""
        if pid == self._process.pid:
            self._process.kill()
            return describe_exit(self.end())
        try:
            return describe_exit(self._ask("end", pid)[0])
        except OSError as error:
            return f"the process that it was forked from ended ({error})"

    @property
    def gone(self) -> bool:
        """Whether the process was found to be gone, or has died."""
        return self._link.fileno() < 0 or self._process.poll() is not None

    def hang_up(self) -> None:
        """Have the process and its workers end, without waiting."""
        try:
            self._link.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is gone already

    def end(self) -> int:
        """End the process and its workers; its exit status, as ``Popen`` gives it."""
        self.hang_up()
        try:
            status = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it imports
            self._process.kill()
            status = self._process.wait()
        with self._lock:
            self._link.close()
        return status

    def _ask(self, kind: str, what: Any, fd: int | None = None) -> Any:
        with self._lock:
            try:
                wire.send(self._link, (kind, what), fd)
                return wire.receive(self._link)[0]
            except (EOFError, OSError):
                pass  # it is gone, or is not understood
        raise OSError(describe_exit(self.end()))


def _environment() -> dict[str, str]:
    name, value = _NO_THREAD
    given = os.environ.get(name)
    return os.environ | ONE_THREAD | {name: f"{given},{value}" if given else value}


def describe_exit(status: int) -> str:
    """``killed by SIGKILL`` or ``exit status 3``."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
