"""What a worker process and its parent say to each other, over one unix socket.

A message is a header (length of the payload, whether a descriptor comes with it), then the payload,
a pickle. Only the two processes hold the socket, so no pickle comes from a disk or a stranger.

Arrays of a result that are at least ``shared_from`` bytes leave the pickle (protocol 5) and go
through ``shared``; smaller ones stay in it, each with memory of its own in the parent.

Exceptions, also those inside a result, arrive with the worker's traceback as their cause; one that
can't be pickled arrives as ``WorkerError`` that says what it was.
"""

from __future__ import annotations

import array
import errno
import io
import os
import pickle
import socket
import struct
import traceback
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from zephon_mm.errors import WorkerError

__all__ = [
    "PROTOCOL",
    "DescriptorError",
    "Result",
    "Task",
    "WorkerTraceback",
    "dump",
    "load",
    "receive",
    "send",
]

_HEADER: Final = struct.Struct("<QB")
_FIRST_BYTES: Final = 64 << 10
_ANCILLARY: Final = socket.CMSG_LEN(struct.calcsize("i"))
PROTOCOL: Final = 5


class Task(NamedTuple):
    """From the parent: one item.

    Attributes:
        objects: numbered pickles that the worker does not know yet, each after those it refers to.
        forgotten: numbers that will not be used again.
        fn: the number of the callable.
        item: the item's pickle.
        free, dropped: buffers to write again, and to unmap; see ``shared.Leases.sweep``.
        place: where the arrays lie that the callable writes into, a ``targets.Place``; a descriptor
            comes with the message if the worker has none of it yet.
        gone: numbers of such buffers that are no more.
    """

    objects: list[tuple[int, bytes]]
    forgotten: list[int]
    fn: int
    item: bytes
    free: list[int]
    dropped: list[int]
    place: tuple[int, int, list[tuple[int, tuple[int, ...]]]] | None = None
    gone: Sequence[int] = ()


class Result(NamedTuple):
    """From the worker: what came of one item.

    Attributes:
        body: the pickle of (value, error).
        buffer: number and size of the buffer with the big arrays, if there are any.
        spans: where they lie in it.
        counts: what the callable's ``take_counts`` gave, if it has it.
    """

    body: bytes
    buffer: tuple[int, int] | None
    spans: list[tuple[int, int]]
    counts: Any


class WorkerTraceback(Exception):
    """The cause of an exception that was raised in a worker process: its traceback, as text."""

    def __str__(self) -> str:
        return f"in a worker process:\n\n{self.args[0]}"


def send(link: socket.socket, message: tuple[Any, ...], fd: int | None = None) -> None:
    """Send a message, and a copy of a descriptor with it."""
    payload = pickle.dumps(tuple(message), PROTOCOL)
    header = _HEADER.pack(len(payload), fd is not None)
    if fd is None and len(payload) < 1 << 16:
        link.sendall(header + payload)
        return
    sent = 0 if fd is None else socket.send_fds(link, [header], [fd])
    link.sendall(header[sent:])
    link.sendall(payload)


def receive(link: socket.socket) -> tuple[Any, int | None]:
    """The next message as a plain tuple, and the descriptor that came with it.

    Raises:
        EOFError: the other side is gone.
        DescriptorError: a descriptor came and this process may open no more.
    """
    fds: list[int] = []
    try:
        data, fds = _receive_first(link)
        if len(data) < _HEADER.size:
            data += _receive(link, _HEADER.size - len(data))
        length, with_fd = _HEADER.unpack_from(data)
        missing = _HEADER.size + length - len(data)
        if missing > 0:
            data += _receive(link, missing)
        message = pickle.loads(memoryview(data)[_HEADER.size :])
    except BaseException as error:
        for fd in fds:  # the other side died between its header and the rest
            os.close(fd)
        if isinstance(error, ConnectionError):
            raise EOFError("the other process is gone") from error
        raise
    if with_fd and not fds:
        raise DescriptorError(message)
    return message, fds[0] if fds else None


class DescriptorError(OSError):
    """A message came without its descriptor, since this process has as many as it may open.

    Attributes:
        message: as ``receive`` would have given it.
    """

    def __init__(self, message: Any) -> None:
        super().__init__(
            errno.EMFILE,
            "a worker's memory can't be attached: this process has reached its limit of open "
            "files; raise it (ulimit -n) or close some",
        )
        self.message = message


def _receive_first(link: socket.socket) -> tuple[bytes, list[int]]:
    """The beginning of a message, mostly all of it: each side waits for the other's answer, so no
    other message follows. And the descriptors that came with it.
    """
    data, ancillary, _, _ = link.recvmsg(_FIRST_BYTES, _ANCILLARY, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


def _receive(link: socket.socket, length: int) -> bytearray:
    data = bytearray(length)
    view = memoryview(data)
    while view:
        count = link.recv_into(view)
        if count == 0:
            raise EOFError("the other process is gone")
        view = view[count:]
    return data


def dump(value: Any, shared_from: int, into: Sequence[Any] = ()) -> tuple[bytes, list[memoryview]]:
    """A pickle, and the arrays of at least ``shared_from`` bytes that it leaves out.

    Of the arrays ``into`` it holds which they are.
    """
    out = io.BytesIO()
    arrays: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """Whether the array stays in the pickle."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < shared_from:
            return True
        arrays.append(raw)
        return False

    if into:
        _PicklerInto(out, PROTOCOL, buffer_callback=keep, into=into).dump(value)
    else:
        _Pickler(out, PROTOCOL, buffer_callback=keep).dump(value)
    return out.getvalue(), arrays


def load(body: bytes, arrays: Sequence[Any], into: Sequence[Any] = ()) -> Any:
    """What ``dump`` was given, the arrays ``into`` being those of this side."""
    if into:
        return _UnpicklerInto(io.BytesIO(body), buffers=arrays, into=into).load()
    return pickle.loads(body, buffers=arrays)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return NotImplemented
        try:
            plain: bytes | None = pickle.dumps(obj, PROTOCOL)
        except Exception:
            plain = None
        text = "".join(traceback.format_exception(obj)) if obj.__traceback__ else ""
        return _rebuild, (plain, f"{type(obj).__name__}: {obj}", text)


class _PicklerInto(_Pickler):
    def __init__(self, *args: Any, into: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._which = {id(array): number for number, array in enumerate(into)}

    def persistent_id(self, obj: Any) -> int | None:
        return self._which.get(id(obj))


class _UnpicklerInto(pickle.Unpickler):
    def __init__(self, *args: Any, into: Sequence[Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._into = into

    def persistent_load(self, number: Any) -> Any:
        return self._into[number]


def _rebuild(plain: bytes | None, said: str, text: str) -> BaseException:
    error: BaseException | None = None
    if plain is not None:
        try:
            error = pickle.loads(plain)
        except Exception:
            pass  # its __init__ wants other arguments than its args
    if not isinstance(error, BaseException):
        error = WorkerError(f"{said} (raised in a worker process; the exception does not pickle)")
    if text:
        error.__cause__ = WorkerTraceback(text)
    return error
