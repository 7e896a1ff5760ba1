"""Arrays of this process that its worker processes write into.

As in ``shared`` the memory is a ``memfd`` that both sides map. But here it is the parent's, who
keeps the descriptor, and sends it to each worker with the first item that writes there. So what
several workers decode lies in one array, which nobody copies. Of at most `MOST_FILES` buffers the
descriptor is kept, however many batches a trainer holds: one without is not given to workers that
don't have it yet, who then make arrays of their own, and isn't used again.

An array is *leased* until the last part of it is garbage, in the batch of a trainer, perhaps; then
its buffer is used again. Where idle buffers have no more room (``IdleRoom``) its pages go back to
the system at once, and it is unmapped here with the next array and in each worker with its next
item.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zephon_mm.backends.shared import IdleRoom, Map, make_file

__all__ = ["MOST_FILES", "Place", "TargetMaps", "Targets"]

MOST_FILES: Final = 64
"""Descriptors that a backend keeps; fewer where a process may open few files."""

_FILES_SHARE: Final = 16  # of those that it may open

_LEAST_BYTES: Final = 256 << 10


class Place(NamedTuple):
    """Where arrays lie that an item writes into.

    Attributes:
        number: of the buffer.
        size: its bytes.
        spans: of each array its first byte, and its shape.
    """

    number: int
    size: int
    spans: list[tuple[int, tuple[int, ...]]]


@dataclass(slots=True)
class _Buffer:
    map: Map
    fd: int | None

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


class Targets:
    """In the parent: the arrays of a backend. Thread-safe.

    Args:
        room: for buffers that wait to be used again.
    """

    def __init__(self, room: IdleRoom) -> None:
        self.room = room
        self._lock = threading.RLock()  # a finaliser may close the backend under it
        self._buffers: dict[int, _Buffer] = {}
        self._idle: set[int] = set()
        self._released: deque[int] = deque()
        self._made = 0
        self._closed = False
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        infinite = files == resource.RLIM_INFINITY
        self._most_files = MOST_FILES if infinite else min(MOST_FILES, files // _FILES_SHARE)

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """An array, its content whatever; private memory where there can't be shared."""
        size = math.prod(shape)
        with self._lock:
            self._sweep()
            number = None if self._closed or not size else self._find(size)
            if number is None:
                return np.empty(shape, np.uint8)
            memory = self._buffers[number].map.memory()
        weakref.finalize(memory, self._release, number).atexit = False
        return np.ndarray(shape, np.uint8, memoryview(memory))

    def place(self, arrays: Sequence[NDArray[np.uint8]]) -> Place | None:
        """Where arrays lie that are parts of one of `empty`; None: elsewhere, some at least."""
        if not arrays or not all(array.flags.c_contiguous for array in arrays):
            return None
        begins = [array.__array_interface__["data"][0] for array in arrays]
        begin = min(begins)
        end = max(start + array.nbytes for start, array in zip(begins, arrays, strict=True))
        with self._lock:
            for number, buffer in self._buffers.copy().items():  # a finaliser may drop one
                first = buffer.map.offset(begin, end)
                if first is not None:
                    places = zip(begins, arrays, strict=True)
                    spans = [(first + b - begin, array.shape) for b, array in places]
                    return Place(number, buffer.map.size, spans)
        return None

    def descriptor(self, number: int) -> int | None:
        """Another one of a buffer that is leased, if one is kept, which the caller closes.

        Raises:
            EOFError: the backend is closed.
        """
        with self._lock:
            if self._closed:
                raise EOFError("closed")
            kept = self._buffers[number].fd
            try:
                return None if kept is None else os.dup(kept)
            except OSError:  # as many files as it may open
                return None

    def gone(self, known: set[int]) -> list[int]:
        """Which of a worker's buffers are no more."""
        with self._lock:
            return sorted(known.difference(self._buffers.copy()))

    def close(self) -> None:
        """Let go of what is not leased, of all descriptors, and of the rest once it is released."""
        with self._lock:
            for buffer in self._buffers.copy().values():
                buffer.close()
            self._closed = True  # from here on a finaliser drops what it releases, without the lock
            for number in list(self._idle):
                self._drop(self._leave_idle(number))
            self._sweep()

    def _find(self, size: int) -> int | None:
        """A buffer of at least ``size`` bytes, which is idle no more; None: there can't be one."""
        fitting = [n for n in self._idle if self._buffers[n].map.size >= size]
        if fitting:
            return self._leave_idle(min(fitting, key=lambda n: self._buffers[n].map.size))
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        try:
            fd = make_file(size)
        except OSError:  # as many files as it may open
            return None
        try:
            made = Map(fd, size)
        except BaseException as error:
            os.close(fd)
            if isinstance(error, OSError):
                return None
            raise
        self._made += 1
        self._buffers[self._made] = _Buffer(made, fd)
        kept = [n for n, buffer in self._buffers.copy().items() if buffer.fd is not None]
        if len(kept) > self._most_files:
            if self._idle:  # all too small
                self._drop(self._leave_idle(min(self._idle)))
            else:
                self._buffers[kept[0]].close()
        return self._made

    def _leave_idle(self, number: int) -> int:
        self._idle.remove(number)
        self.room.give_back(self._buffers[number].map.size)
        return number

    def _release(self, number: int) -> None:
        """No lock is taken: the collector may run this anywhere. Until it is in ``_released`` the
        buffer is this call's alone.
        """
        own = self._buffers[number].map
        others = [self._buffers.get(other) for other in self._released.copy()]
        size = own.size + sum(buffer.map.size for buffer in others if buffer is not None)
        if self.room.held_bytes + size > self.room.limit_bytes:
            own.free()
        self._released.append(number)
        if self._closed:
            self._sweep()

    def _sweep(self) -> None:
        while self._released:
            try:
                number = self._released.popleft()
            except IndexError:  # another thread was quicker
                return
            buffer = self._buffers[number]
            kept = not self._closed and buffer.fd is not None
            if kept and self.room.take(buffer.map.size):
                self._idle.add(number)
            else:
                self._drop(number)

    def _drop(self, number: int) -> None:
        buffer = self._buffers.pop(number)
        buffer.map.free()  # workers still map it
        buffer.map.unmap()
        buffer.close()


class TargetMaps:
    """In a worker: the parent's arrays that it has written into, by number. Not locked."""

    def __init__(self) -> None:
        self._maps: dict[int, Map] = {}

    def arrays(self, place: Place, fd: int | None) -> list[NDArray[np.uint8]]:
        """The arrays of a place; ``fd``, which stays the caller's, of a buffer that is new here.

        None are given if it was lost on the way, as this process may open or map no more.
        """
        if fd is not None:
            with contextlib.suppress(OSError):
                self._maps[place.number] = Map(fd, place.size)
        if place.number not in self._maps:
            return []
        memory = memoryview(self._maps[place.number].memory())
        return [np.ndarray(shape, np.uint8, memory, begin) for begin, shape in place.spans]

    def drop(self, numbers: Sequence[int]) -> None:
        """These are no more."""
        for number in numbers:
            if number in self._maps:
                self._maps.pop(number).unmap()
