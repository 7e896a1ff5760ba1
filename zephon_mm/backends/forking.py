"""The template process: loads what workers need, once, and forks them.

It is a fresh interpreter (``child``) that has one thread and does nothing but import, and load what
callables want to share (``get_ready``), so that what it forks is as good as new, starts in
milliseconds, and shares the memory of all that with the others. If loading has started a thread it
forks no more: locks of that thread would be copied with it. It then tells the trainer, which starts
interpreters that each become a worker.

It serves its socket: ``("load", (modules, objects))``, ``("fork", name)`` and ``("become", name)``
with the worker's end of a socket, ``("end", pid)``. At the socket's end it ends, and its workers
before it; if it is killed, as it is when the trainer is, the kernel kills them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

from zephon_mm.backends import wire, worker
from zephon_mm.backends.callables import Received

__all__ = ["TITLE", "main"]

TITLE: Final = "zephon_mm-template".ljust(32)
"""The last word of the command line, which a worker overwrites with its own."""

_LOOKS: Final = 10
_LOOK_SECONDS: Final = 0.005


def main(control: socket.socket, setup: dict[str, Any]) -> NoReturn:
    """Serve the trainer until it hangs up.

    Args:
        control: the socket to it.
        setup: of ``child.Setup``: ``parent``: the trainer's process id; the rest for the workers.
    """
    worker.end_with_parent(setup["parent"])
    gc.disable()  # until the fork: a collection writes to pages that are to be shared
    children: set[int] = set()
    received = Received(lambda: worker.import_main(setup["main"]))
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            (kind, what), fd = wire.receive(control)
            if kind == "load":
                answer: tuple[Any, ...] = _load(received, *what)
            elif kind == "end":
                children.discard(what)
                answer = (_end(what),)
            else:
                assert fd is not None
                link = socket.socket(fileno=fd)
                if kind == "become":
                    _become(control, link, what, setup, received)
                answer = _fork(control, link, what, setup, received, children)
                link.close()
            wire.send(control, answer)
    for pid in children:
        _end(pid)
    os._exit(0)


def _load(
    received: Received, names: list[str], objects: list[tuple[int, bytes]]
) -> tuple[int, bool]:
    """Import modules and hold objects; how many modules there are now, and whether those are held.

    What can't be loaded its users say themselves.
    """
    for name in names:
        with contextlib.suppress(BaseException):  # also the exit of a script
            importlib.import_module(name)
    held = bool(objects) and received.hold(objects)
    return len(sys.modules), held


def _fork(
    control: socket.socket,
    link: socket.socket,
    name: str,
    setup: dict[str, Any],
    received: Received,
    children: set[int],
) -> tuple[int, str]:
    """A new worker: its process id; 0 and the threads that are in the way; or a negative errno."""
    threads = _other_threads()
    if threads:
        return 0, threads
    gc.freeze()
    template = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN), str(error)
    if pid == 0:
        worker.end_with_parent(template)
        _become(control, link, name, setup, received)
    children.add(pid)
    return pid, ""


def _become(
    control: socket.socket,
    link: socket.socket,
    name: str,
    setup: dict[str, Any],
    received: Received,
) -> NoReturn:
    """Be a worker from now on."""
    try:
        control.close()
        gc.enable()
        _rename(name)
        worker.main(link, received, setup["shared_from"])
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _end(pid: int) -> int:
    """Kill a worker, unless it has died already; how it ended, as ``Popen`` gives it."""
    try:
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except (ProcessLookupError, ChildProcessError):  # a module here has the kernel forget children
        return -signal.SIGKILL


def _other_threads() -> str:
    """Names of this process's threads but the main one; a thread that ends is waited for."""
    for _ in range(_LOOKS):
        names = []
        for task in Path("/proc/self/task").iterdir():
            if int(task.name) != os.getpid():
                with contextlib.suppress(OSError):
                    names.append((task / "comm").read_text().strip())
        if not names:
            break
        time.sleep(_LOOK_SECONDS)
    return ", ".join(names)


def _rename(name: str) -> None:
    """Show the worker's name where the command line ends with ``TITLE``."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    address = int(fields[46]) - 1 - len(TITLE)  # arg_end
    if ctypes.string_at(address, len(TITLE)) == TITLE.encode():
        ctypes.memmove(address, name.encode()[: len(TITLE)].ljust(len(TITLE)), len(TITLE))
