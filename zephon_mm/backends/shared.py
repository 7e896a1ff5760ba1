"""Memory that a worker process and its parent share, and that has no name.

The worker makes a buffer as a ``memfd``: a file without a place in any folder, so nothing can be
left behind, whoever is killed. Its descriptor goes once to the parent over their socket; both sides
map it and close the descriptor, so however many results are kept, no descriptor is. (Python's own
``mmap`` keeps a descriptor a map; this calls the C library.)

A result's big arrays are written into one buffer, and the parent's arrays are views of it: the
buffer is *leased* until the last of them is garbage. Then it is told to the worker with the next
item and used again, which saves the faults of fresh pages. Buffers that wait to be used again are
bounded (``IdleRoom``) and hold bytes of the budget; one that has no room is unmapped on both sides.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from zephon_mm.backends.budget import ByteBudget

__all__ = ["Buffers", "IdleRoom", "Leases", "Map", "Span", "make_file"]

Span = tuple[int, int]
"""Where an array lies in a buffer: first byte, and the one after its last."""

_LEAST_BYTES: Final = 256 << 10
_ALIGNMENT: Final = 64
_IDLE_BYTES: Final = 256 << 20
_IDLE_SHARE: Final = 8

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED: Final = ctypes.c_void_p(-1).value


class Map:
    """A buffer mapped into this process; the caller keeps the descriptor and closes it."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(
                number,
                f"{size} bytes can't be mapped: {os.strerror(number)} (ulimit -v, "
                "vm.max_map_count; fewer kept batches or workers need less)",
            )
        self._address: int | None = address
        self._pid = os.getpid()

    @property
    def address(self) -> int:
        """Of the first byte."""
        assert self._address is not None
        return self._address

    def offset(self, begin: int, end: int) -> int | None:
        """Where these addresses begin in it; None: they don't lie in it, or it is unmapped."""
        first = self._address
        if first is None or begin < first or end > first + self.size:
            return None
        return begin - first

    def memory(self) -> ctypes.Array[ctypes.c_ubyte]:
        """The bytes, as an object of their own; they must not be used after ``unmap``."""
        return (ctypes.c_ubyte * self.size).from_address(self.address)

    def free(self) -> None:
        """Give its pages back to the system, whoever has it mapped: it is all zeros again.

        Only in the process that mapped it: what is garbage in a fork of it need not be in itself.
        """
        if self._address is not None and os.getpid() == self._pid:
            _libc.madvise(self._address, self.size, mmap.MADV_REMOVE)

    def unmap(self) -> None:
        if self._address is not None:
            _libc.munmap(self._address, self.size)
            self._address = None


def make_file(size: int) -> int:
    """The descriptor of ``size`` bytes without a name, zero until they are written."""
    fd = os.memfd_create("zephon_mm", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd


class Buffers:
    """In the worker: its buffers, by number. Not locked."""

    def __init__(self) -> None:
        self._maps: dict[int, Map] = {}
        self._free: set[int] = set()
        self._made = 0

    def write(self, arrays: Sequence[memoryview]) -> tuple[int, int, list[Span], int | None]:
        """Copy arrays into a free buffer, or a new one.

        Returns:
            The buffer's number and size, where each array lies, and the descriptor of a new buffer,
            to be sent and closed.
        """
        spans: list[Span] = []
        end = 0
        for array in arrays:
            begin = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = begin + array.nbytes
            spans.append((begin, end))
        number, fd = self._room(end)
        whole = np.frombuffer(memoryview(self._maps[number].memory()), np.uint8)
        for (begin, stop), array in zip(spans, arrays, strict=True):
            whole[begin:stop] = np.frombuffer(array, np.uint8)
        return number, self._maps[number].size, spans, fd

    def release(self, numbers: Sequence[int]) -> None:
        """The parent has no more use for what these hold: they may be written again."""
        self._free.update(numbers)

    def drop(self, numbers: Sequence[int]) -> None:
        """The parent has unmapped these: so does the worker."""
        for number in numbers:
            self._free.discard(number)
            self._maps.pop(number).unmap()

    def _room(self, size: int) -> tuple[int, int | None]:
        fitting = [n for n in self._free if self._maps[n].size >= size]
        if fitting:
            number = min(fitting, key=lambda n: self._maps[n].size)
            self._free.remove(number)
            return number, None
        size = max(_LEAST_BYTES, 1 << (size - 1).bit_length())
        fd = make_file(size)
        try:
            made = Map(fd, size)
        except BaseException:
            os.close(fd)
            raise
        self._made += 1
        self._maps[self._made] = made
        return self._made, fd


class IdleRoom:
    """How many bytes of idle buffers all workers of a backend may keep: an eighth of the budget,
    at most 256 MiB, and only what the budget has had room for.

    Bytes once taken from the budget stay taken, also while the buffers are leased: they are needed
    again, and items that wait for bytes would be quicker. What the budget refused is asked for
    again by ``grow``.
    """

    def __init__(self, budget: ByteBudget | None) -> None:
        self._budget = budget
        limit = _IDLE_BYTES if budget is None else budget.limit_bytes // _IDLE_SHARE
        self.limit_bytes = min(_IDLE_BYTES, limit)
        self._lock = threading.RLock()  # a finaliser may close the backend under it
        self._taken = 0
        self._refused = 0
        self.held_bytes = 0

    def take(self, size: int) -> bool:
        """True if a buffer of ``size`` bytes may be kept; it then holds them."""
        with self._lock:
            missing = max(0, self.held_bytes + size - self._taken)
            if self._taken + missing > self.limit_bytes:
                return False
            if self._budget is not None and missing and not self._budget.try_acquire(missing):
                self._refused = min(self.limit_bytes - self._taken, self._refused + missing)
                return False
            self._taken += missing
            self.held_bytes += size
            return True

    def give_back(self, size: int) -> None:
        """A kept buffer is in use again, or gone."""
        with self._lock:
            self.held_bytes -= size

    def grow(self) -> None:
        """Bytes of the budget were released, and no item has taken them yet."""
        if self._refused:
            with self._lock:
                if self._budget is not None and self._budget.try_acquire(self._refused):
                    self._taken += self._refused
                    self._refused = 0

    def close(self) -> None:
        """Give all bytes back to the budget, and take no more."""
        with self._lock:
            taken, self._taken = self._taken, 0
            self.limit_bytes = self._refused = 0
        if self._budget is not None:
            self._budget.release(taken)


class Leases:
    """In the parent: the buffers of one worker process. Used by one thread, but for the release of
    a lease, which happens wherever the last array becomes garbage, and takes no lock.
    """

    def __init__(self, room: IdleRoom) -> None:
        self._room = room
        self._maps: dict[int, Map] = {}
        self._idle: set[int] = set()
        self._released: deque[int] = deque()
        self._closed = False

    def attach(self, number: int, size: int, fd: int) -> None:
        """Map a new buffer; the descriptor stays the caller's."""
        self._maps[number] = Map(fd, size)

    def lease(self, number: int, spans: Sequence[Span]) -> list[NDArray[np.uint8]]:
        """The arrays of a result, uint8 views of the buffer, which is leased while any lives."""
        if number in self._idle:
            self._idle.remove(number)
            self._room.give_back(self._maps[number].size)
        memory = self._maps[number].memory()
        weakref.finalize(memory, self._release, number).atexit = False
        whole = np.frombuffer(memoryview(memory), np.uint8)
        return [whole[begin:stop] for begin, stop in spans]

    def sweep(self) -> tuple[list[int], list[int]]:
        """What to tell the worker: buffers that it may write again, and buffers to unmap."""
        free: list[int] = []
        gone: list[int] = []
        while self._released:
            number = self._released.popleft()
            if self._room.take(self._maps[number].size):
                self._idle.add(number)
                free.append(number)
            else:
                self._maps.pop(number).unmap()
                gone.append(number)
        return free, gone

    def close(self) -> None:
        """The worker is gone: unmap what is not leased, and what is once it is released."""
        self._closed = True
        for number in self._idle:
            self._room.give_back(self._maps[number].size)
            self._maps.pop(number).unmap()
        self._idle.clear()
        self._unmap_released()

    def _release(self, number: int) -> None:
        self._released.append(number)
        if self._closed:
            self._unmap_released()

    def _unmap_released(self) -> None:
        while self._released:
            try:
                number = self._released.popleft()
            except IndexError:  # another thread was quicker
                return
            self._maps.pop(number).unmap()
