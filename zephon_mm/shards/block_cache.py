"""Bytes of remote shards on this host's disk, bounded, and shared by its processes.

A shard is kept in blocks of 4 MiB, each a file named by a hash of (URL, identity, number): no name
from outside is ever a path, and a changed object has other blocks. Blocks live in *sets* of at
most 16 files, the set chosen by the hash; a new one pushes out the set's least recently used. So
the bound holds without a lock, a count or a scan: ``sets × ways × block ≤ max_bytes``.

Files are written aside and renamed, so readers see a whole block or none, whoever is killed. Each
64 KiB page has a CRC-32 that is compared when it is read: a damaged block is removed, and fetched
again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import secrets
import shutil
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Final, Protocol

from ..errors import ConfigError
from .access import ObjectStat, default_cache_dir

_log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 4 << 20
PAGE_BYTES: Final = 64 << 10
_MAGIC: Final = b"zmmblk1\n"
_HEAD = struct.Struct("<8s32sQ")
_MAX_HEAD_BYTES: Final = _HEAD.size + 4 * (BLOCK_BYTES // PAGE_BYTES) + 4
_WAYS: Final = 16
_FETCHED_AT_ONCE: Final = 8
_TOUCH_SECONDS: Final = 60.0
_STALE_SECONDS: Final = 3600.0


class BlockCache:
    """The folder. Any number of threads and processes may use it at once.

    Args:
        folder: made where it isn't there.
        max_bytes: of all files in it; at least one block.

    Raises:
        ConfigError: no block fits.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        slots = max_bytes // (BLOCK_BYTES + _MAX_HEAD_BYTES)
        if slots < 1:
            raise ConfigError(
                f"storage_cache_bytes={max_bytes}: a block has {BLOCK_BYTES + _MAX_HEAD_BYTES} "
                "bytes, and one must fit; 0 turns the cache off"
            )
        self._folder = folder
        self.ways = min(_WAYS, slots)
        self.num_sets = slots // self.ways
        self._warned = False
        self._trim_sets()

    def read(self, name: bytes, start: int, length: int) -> bytes | None:
        """Bytes of a block; None where it isn't there, or is damaged (it is removed then)."""
        path = self._path(name)
        try:
            with open(path, "rb", buffering=0) as file:
                data = _read_pages(file.fileno(), name, start, length)
                if data is not None and time.time() - os.fstat(file.fileno()).st_atime > (
                    _TOUCH_SECONDS
                ):
                    os.utime(file.fileno())
        except OSError:
            return None
        if data is None:
            _log.warning("block %s of the shard cache is damaged: it is fetched again", path)
            self.remove(name)
        return data

    def write(self, name: bytes, data: memoryview) -> None:
        """Keep a block. Where the disk doesn't take it, that is told once and the run goes on."""
        path = self._path(name)
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, f"{secrets.token_hex(8)}.tmp")
        pages = [zlib.crc32(data[at : at + PAGE_BYTES]) for at in range(0, len(data), PAGE_BYTES)]
        head = _HEAD.pack(_MAGIC, name, len(data)) + struct.pack(f"<{len(pages)}I", *pages)
        try:
            os.makedirs(folder, exist_ok=True)
            self._make_room(folder, 1)
            with open(temporary, "xb") as file:
                file.write(head + struct.pack("<I", zlib.crc32(head)))
                file.write(data)
            os.replace(temporary, path)
            self._make_room(folder, 0)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if not self._warned:
                self._warned = True
                _log.warning(
                    "the shard cache %s takes no more (%s): the run goes on without", folder, error
                )

    def remove(self, name: bytes) -> None:
        """Remove a block, if it is there."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))

    def _path(self, name: bytes) -> str:
        number = int.from_bytes(name[:8], "big") % self.num_sets
        return os.path.join(self._folder, f"{number:06x}", name.hex())

    def _make_room(self, folder: str, wanted: int) -> None:
        """Remove the least recently used until ``wanted`` more fit; and what the killed left."""
        found: list[tuple[float, str]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    seen = entry.stat()
                except OSError:  # another process was faster
                    continue
                if entry.name.endswith(".tmp"):
                    if time.time() - seen.st_mtime < _STALE_SECONDS:
                        continue  # being written
                    found.append((0.0, entry.path))
                else:
                    found.append((max(seen.st_atime, seen.st_mtime), entry.path))
        found.sort()
        for _, path in found[: max(0, len(found) + wanted - self.ways)]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _trim_sets(self) -> None:
        """Remove sets that a former, larger bound had."""
        for entry in Path(self._folder).glob("[0-9a-f]" * 6):
            if int(entry.name, 16) >= self.num_sets:
                shutil.rmtree(entry, ignore_errors=True)


def _read_pages(file: int, name: bytes, start: int, length: int) -> bytes | None:
    """Bytes of a block's file, or None where anything in it is not as it was written."""
    head = os.pread(file, _MAX_HEAD_BYTES, 0)
    if len(head) < _HEAD.size:
        return None
    magic, owner, size = _HEAD.unpack_from(head)
    count = -(-size // PAGE_BYTES)
    end = _HEAD.size + 4 * count
    if magic != _MAGIC or owner != name or size > BLOCK_BYTES or len(head) < end + 4:
        return None
    if struct.unpack_from("<I", head, end)[0] != zlib.crc32(head[:end]) or start + length > size:
        return None
    first, last = start // PAGE_BYTES, -(-(start + length) // PAGE_BYTES)
    stored = min(size, last * PAGE_BYTES) - first * PAGE_BYTES
    data = os.pread(file, stored, end + 4 + first * PAGE_BYTES)
    view = memoryview(data)
    if len(data) != stored:
        return None
    for page in range(first, last):
        at = (page - first) * PAGE_BYTES
        (wanted,) = struct.unpack_from("<I", head, _HEAD.size + 4 * page)
        if zlib.crc32(view[at : at + PAGE_BYTES]) != wanted:
            return None
    at = start - first * PAGE_BYTES
    return data[at : at + length]


@functools.lru_cache(maxsize=16)
def open_cache(cache_dir: str | None, max_bytes: int) -> BlockCache:
    """The cache in ``cache_dir``; None: in the user's cache folder."""
    return BlockCache(os.path.join(cache_dir or default_cache_dir(), "zmm-blocks"), max_bytes)


class RemoteObject(Protocol):
    """What is cached; see `remote.RemoteStorage`."""

    @property
    def expected(self) -> ObjectStat | None:
        """What the object is known to be."""
        ...

    def stat(self) -> ObjectStat:
        """What the store says of it, now."""
        ...

    def read(self, start: int, length: int) -> memoryview | bytes:
        """Exactly ``length`` bytes from ``start``."""
        ...


class CachedStorage:
    """A remote object whose blocks are kept on disk. Thread-safe.

    Neighbouring blocks that lack are fetched in one request, and by one thread of the process.

    Args:
        inner: the object.
        url: its name.
        cache: where blocks are kept.
    """

    def __init__(self, inner: RemoteObject, url: str, cache: BlockCache) -> None:
        self._inner = inner
        self._url = url
        self._cache = cache
        self._turn = threading.Condition()
        self._busy: set[int] = set()

    def size(self) -> int:
        """Size in bytes, now, by the store."""
        return self._inner.stat().size

    def read(self, start: int, length: int) -> memoryview | bytes:
        """See `RemoteStorage.read`."""
        expected = self._inner.expected
        if expected is None or expected.identity is None:
            expected = self._inner.stat()
        if length == 0 or start < 0 or length < 0 or start + length > expected.size:
            return self._inner.read(start, length)  # nothing, or its error
        first, last = start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES
        parts: dict[int, bytes | memoryview] = {}
        wanted = set(range(first, last + 1))
        while True:
            self._look(wanted - parts.keys(), start, length, expected, parts)
            lacking = wanted - parts.keys()
            with self._turn:
                if not lacking & self._busy:
                    self._busy |= lacking
                    break
                self._turn.wait()  # as long as another's request takes: that has a time-out
        try:
            for run in _runs(sorted(lacking)):
                self._fetch(run, start, length, expected, parts)
        finally:
            with self._turn:
                self._busy -= lacking
                self._turn.notify_all()
        ordered = [parts[number] for number in range(first, last + 1)]
        return ordered[0] if len(ordered) == 1 else b"".join(ordered)

    def forget(self, start: int, length: int) -> None:
        """Remove the blocks of these bytes: they were wrong when they came."""
        of = self._inner.expected
        if of is not None and length > 0:
            for number in range(start // BLOCK_BYTES, (start + length - 1) // BLOCK_BYTES + 1):
                self._cache.remove(self._name(number, of))

    def close(self) -> None:
        """Nothing to let go of."""

    def _look(
        self,
        numbers: set[int],
        start: int,
        length: int,
        of: ObjectStat,
        parts: dict[int, bytes | memoryview],
    ) -> None:
        for number in numbers:
            at, stop = _cut(number, start, length)
            found = self._cache.read(self._name(number, of), at, stop - at)
            if found is not None:
                parts[number] = found

    def _fetch(
        self,
        run: range,
        start: int,
        length: int,
        of: ObjectStat,
        parts: dict[int, bytes | memoryview],
    ) -> None:
        begin = run.start * BLOCK_BYTES
        end = min(of.size, run.stop * BLOCK_BYTES)
        data = memoryview(self._inner.read(begin, end - begin))
        for number in run:
            block = data[number * BLOCK_BYTES - begin :][:BLOCK_BYTES]
            self._cache.write(self._name(number, of), block)
            at, stop = _cut(number, start, length)
            parts[number] = block[at:stop]

    def _name(self, number: int, of: ObjectStat) -> bytes:
        text = "\0".join((self._url, str(of.size), of.identity or "", str(number)))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _cut(number: int, start: int, length: int) -> tuple[int, int]:
    """The part of a block that a read wants."""
    begin = number * BLOCK_BYTES
    return max(0, start - begin), min(BLOCK_BYTES, start + length - begin)


def _runs(numbers: list[int]) -> list[range]:
    """Neighbours together, at most some at once."""
    runs: list[range] = []
    for number in numbers:
        if runs and runs[-1].stop == number and len(runs[-1]) < _FETCHED_AT_ONCE:
            runs[-1] = range(runs[-1].start, number + 1)
        else:
            runs.append(range(number, number + 1))
    return runs
