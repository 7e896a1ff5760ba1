"""A worker process: takes one item at a time from its parent and sends what came of it.

It is forked by the template process (``forking``), or was a fresh interpreter, and has nothing but
a socket to the trainer. The kernel kills it when the process that started it ends, which is killed
when the trainer is. It leaves nothing behind: buffers have no names.

Signals that are meant for the trainer (Ctrl-C, and what schedulers send to a whole job) don't end
it: the parent decides what they mean, and ends its workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, Final

from zephon_mm.backends import wire
from zephon_mm.backends.callables import Received
from zephon_mm.backends.outcome import call
from zephon_mm.backends.shared import Buffers
from zephon_mm.backends.targets import Place, TargetMaps
from zephon_mm.errors import WorkerError

__all__ = [
    "SIGNALS",
    "answer",
    "end_with_parent",
    "import_main",
    "keep_freed_memory",
    "main",
    "pack",
]

SIGNALS: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Blocked in the parent's thread that starts the template, in which they stay so, and thus in a
worker from its first moment; then taken by a handler that does nothing."""

_SET_PARENT_DEATH_SIGNAL: Final = 1
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20  # the most that glibc takes for the second; it trims at twice that


def main(link: socket.socket, received: Received, shared_from: int) -> None:
    """Serve until the parent is gone.

    Args:
        link: the socket to the trainer, "parent" here.
        received: what is held already.
        shared_from: bytes from which on an array goes through a buffer.
    """
    _ignore_signals()
    keep_freed_memory()
    if sys.stderr is not None:
        faulthandler.enable()  # says where a library crashed
    buffers, targets = Buffers(), TargetMaps()
    with contextlib.suppress(EOFError, ConnectionError):
        wire.send(link, ())  # ready
        while True:
            _serve(link, received, buffers, targets, shared_from)
    os._exit(0)  # nothing is worth a slow or hanging clean-up


def _serve(
    link: socket.socket,
    received: Received,
    buffers: Buffers,
    targets: TargetMaps,
    shared_from: int,
) -> None:
    try:
        message, fd = wire.receive(link)
    except wire.DescriptorError as error:
        message, fd = error.message, None
    task = wire.Task(*message)
    buffers.release(task.free)
    buffers.drop(task.dropped)
    targets.drop(task.gone)
    try:
        into = () if task.place is None else targets.arrays(Place(*task.place), fd)
    finally:
        if fd is not None:
            os.close(fd)
    outcome, counts = answer(received, task, into)
    fd = None
    try:
        result, fd = _pack(outcome, counts, buffers, shared_from, into)
        wire.send(link, result, fd)
    finally:
        if fd is not None:
            os.close(fd)


def answer(
    received: Received, task: wire.Task, into: Sequence[Any] = ()
) -> tuple[tuple[Any, BaseException | None], Any]:
    """What the callable returned or raised, and its counts; buffers are the caller's."""
    for number in task.forgotten:
        received.forget(number)
    for number, data in task.objects:
        received.add(number, data)
    fn: Any = None
    try:
        fn = received[task.fn]
        outcome = call(fn, received.load(task.item), into or None)
    except Exception as error:
        outcome = None, error
    return outcome, fn.take_counts() if hasattr(fn, "take_counts") else None


def pack(
    outcome: tuple[Any, BaseException | None], shared_from: int, into: Sequence[Any] = ()
) -> tuple[bytes, list[memoryview]]:
    """``wire.dump`` of an outcome; a value that does not pickle becomes an error that says so."""
    try:
        return wire.dump(outcome, shared_from, into)
    except Exception as error:
        problem = WorkerError(
            f"a result of type {type(outcome[0]).__name__} can't be sent from a worker process "
            f"({type(error).__name__}: {error}): use backend='threads', or return what pickles"
        )
        return wire.dump((None, problem), shared_from)


def _pack(
    outcome: tuple[Any, BaseException | None],
    counts: Any,
    buffers: Buffers,
    shared_from: int,
    into: Sequence[Any],
) -> tuple[wire.Result, int | None]:
    body, arrays = pack(outcome, shared_from, into)
    if not arrays:
        return wire.Result(body, None, [], counts), None
    number, size, spans, fd = buffers.write(arrays)
    return wire.Result(body, (number, size), spans, counts), fd


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, or is killed."""
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)  # it died before


def keep_freed_memory() -> None:
    """Have the C library keep what an item frees for the next one, and not give it back each time,
    to be faulted in again: what it comes to by itself where big arrays come and go, as they do
    in a trainer.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which programs that it runs inherit
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def import_main(names: dict[str, str]) -> None:
    """Import the parent's main module, as multiprocessing does: not as ``__main__``.

    Raises:
        WorkerError: it ends the process.
        Exception: whatever it raises.
    """
    from multiprocessing import process, spawn

    current: Any = process.current_process()
    current._inheriting = True  # so that what would start processes says what to do
    try:
        spawn.prepare(dict(names))
    except SystemExit as end:
        raise WorkerError(
            f"the script that started the loader ended ({end.code}) when a worker imported it for "
            'a function of its own: put what it runs under `if __name__ == "__main__":`, or the '
            "function in a module"
        ) from end
    finally:
        del current._inheriting
