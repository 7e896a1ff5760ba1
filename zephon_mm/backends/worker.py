"""A worker process: takes one item at a time from its parent and sends what came of it.

It is started by ``child`` with nothing but a socket, imports this module and what its callables
need, and ends when the socket's other end is gone, whatever it is doing. On Linux the kernel also
kills it when its parent is killed. It leaves nothing behind: buffers have no names.

Signals that are meant for the trainer (Ctrl-C, and what schedulers send to a whole job) don't end
it: the parent decides what they mean, and ends its workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
from typing import Any, Final

from zephon_mm.backends import wire
from zephon_mm.backends.callables import Received
from zephon_mm.backends.outcome import call
from zephon_mm.backends.shared import Buffers
from zephon_mm.errors import WorkerError

__all__ = ["SIGNALS", "answer", "import_main", "main", "pack"]

SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Blocked in the parent's thread that starts a worker, and so in the worker from its first moment;
then taken by a handler that does nothing."""

_SET_PARENT_DEATH_SIGNAL: Final = 1


def main(link: socket.socket, setup: dict[str, Any]) -> None:
    """Serve until the parent is gone.

    Args:
        link: the socket to the parent.
        setup: ``parent``: its process id; ``main``: how ``multiprocessing.spawn.prepare`` finds
            its main module; ``shared_from``: bytes from which on an array goes through a buffer.
    """
    _end_with_parent(link, setup["parent"])
    _ignore_signals()
    if sys.stderr is not None:
        faulthandler.enable()  # says where a library crashed
    received = Received(lambda: import_main(setup["main"]))
    buffers = Buffers()
    with contextlib.suppress(EOFError, ConnectionError):
        wire.send(link, ())  # ready
        while True:
            _serve(link, received, buffers, setup["shared_from"])
    os._exit(0)  # nothing is worth a slow or hanging clean-up


def _serve(link: socket.socket, received: Received, buffers: Buffers, shared_from: int) -> None:
    task = wire.Task(*wire.receive(link)[0])
    buffers.release(task.free)
    buffers.drop(task.dropped)
    outcome, counts = answer(received, task)
    fd = None
    try:
        result, fd = _pack(outcome, counts, buffers, shared_from)
        wire.send(link, result, fd)
    finally:
        if fd is not None:
            os.close(fd)


def answer(received: Received, task: wire.Task) -> tuple[tuple[Any, BaseException | None], Any]:
    """What the callable returned or raised, and its counts; buffers are the caller's."""
    for number in task.forgotten:
        received.forget(number)
    for number, data in task.objects:
        received.add(number, data)
    fn: Any = None
    try:
        fn = received[task.fn]
        outcome = call(fn, received.load(task.item))
    except Exception as error:
        outcome = None, error
    return outcome, fn.take_counts() if hasattr(fn, "take_counts") else None


def pack(
    outcome: tuple[Any, BaseException | None], shared_from: int
) -> tuple[bytes, list[memoryview]]:
    """``wire.dump`` of an outcome; a value that does not pickle becomes an error that says so."""
    try:
        return wire.dump(outcome, shared_from)
    except Exception as error:
        problem = WorkerError(
            f"a result of type {type(outcome[0]).__name__} can't be sent from a worker process "
            f"({type(error).__name__}: {error}): use backend='threads', or return what pickles"
        )
        return wire.dump((None, problem), shared_from)


def _pack(
    outcome: tuple[Any, BaseException | None], counts: Any, buffers: Buffers, shared_from: int
) -> tuple[wire.Result, int | None]:
    body, arrays = pack(outcome, shared_from)
    if not arrays:
        return wire.Result(body, None, [], counts), None
    number, size, spans, fd = buffers.write(arrays)
    return wire.Result(body, (number, size), spans, counts), fd


def _end_with_parent(link: socket.socket, parent: int) -> None:
    if sys.platform == "linux":
        # Sent when the parent's thread that started this process ends: it lives as long as we do.
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(0)  # it died before
    threading.Thread(target=_watch, args=(link.fileno(),), daemon=True).start()


def _watch(fd: int) -> None:
    """End the process when the other end of its socket is closed or shut down."""
    poll = select.poll()
    poll.register(fd, 0)  # a hang-up is always told
    poll.poll()
    os._exit(0)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that it runs inherit
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def import_main(names: dict[str, str]) -> None:
    """Import the parent's main module, as multiprocessing does: not as ``__main__``."""
    from multiprocessing import process, spawn

    current: Any = process.current_process()
    current._inheriting = True  # so that what would start processes says what to do
    try:
        spawn.prepare(dict(names))
    finally:
        del current._inheriting
