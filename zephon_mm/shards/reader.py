"""Random access to members, for the stages that fetch.

Holds a bounded number of open shards and of index bytes, both least recently used first out, and
may be called from any number of threads. Nothing is opened before it is asked for; a pickled
reader opens its own.

What is read is what was indexed, or an error: sizes are compared when a shard is first touched,
and every member's CRC-32 when it is read. Faults are tried again with a short, growing pause.

Of remote shards, bytes may be fetched before they are read (`gather`, `expect`; see `ahead`). That
changes when requests are made and how many, never what is read.
"""

from __future__ import annotations

import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Generic, TypeVar

from ..errors import ShardChangedError, ZephonError
from .access import Access, ObjectStat, Retry, is_remote
from .ahead import Expected, Neighbours
from .background import Background
from .index import Data, Member
from .manifest import Manifest
from .sidecar import ShardIndex, load_index
from .storage import KeepingStorage, Storage, open_storage

T = TypeVar("T")
_Key = tuple[int, int]

_MAX_INDICES = 4096
_MAX_MEMBERS, _MAX_PROBE = 4096, 4096  # kept of the index's rows, with probes of so many bytes


@dataclass(slots=True)
class ReadCounts:
    """What a reader did so far: for tests and statistics."""

    members: int = 0
    bytes: int = 0
    retries: int = 0
    shards_opened: int = 0
    indices_opened: int = 0


_COUNTS: Final = tuple(item.name for item in fields(ReadCounts))


@dataclass(slots=True)
class _Slot(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None


class _Recent(Generic[T]):
    """A bounded map, least recently used first out; values are made once, outside its lock."""

    def __init__(self, most: int, most_bytes: int | None, drop: Callable[[T], None]) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._drop = drop
        self._lock = threading.Lock()
        self._slots: OrderedDict[_Key, _Slot[T]] = OrderedDict()

    def find(self, key: _Key) -> T | None:
        """The value if it is held."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is None:
                return None
            self._slots.move_to_end(key)
            return slot.value

    def get(self, key: _Key, make: Callable[[], T]) -> T:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
        value = slot.value
        if value is not None:
            return value
        with slot.lock:
            if slot.value is None:
                slot.value = make()
            value = slot.value
        self.trim()
        return value

    def trim(self) -> None:
        """Drop the oldest values over the bounds; the newest stays."""
        with self._lock:
            total = 0
            if self._most_bytes is not None:
                total = sum(_size(slot.value) for slot in self._slots.values())
            while len(self._slots) > 1 and (
                len(self._slots) > self._most
                or (self._most_bytes is not None and total > self._most_bytes)
            ):
                _, slot = self._slots.popitem(last=False)
                total -= _size(slot.value)
                if slot.value is not None:
                    self._drop(slot.value)

    def discard(self, key: _Key, value: T) -> None:
        """Forget ``value`` if it is still the one held."""
        with self._lock:
            slot = self._slots.get(key)
            if slot is not None and slot.value is value:
                del self._slots[key]

    def clear(self) -> None:
        with self._lock:
            slots, self._slots = self._slots, OrderedDict()
        for slot in slots.values():
            if slot.value is not None:
                self._drop(slot.value)

    def __len__(self) -> int:
        with self._lock:
            return len(self._slots)


def _size(value: object) -> int:
    return int(getattr(value, "nbytes", 0))


class ShardReader:
    """Reads members of the shards of several sources.

    Args:
        manifests: one a source, in the order of ``DataConfig.sources``.
        cache_dir: where indices may lie besides the shards' own folders.
        read_retries: tries after a failed read.
        verify_reads: compare each member's checksum.
        max_open_shards: shards held open.
        max_index_bytes: memory of indices held.
        max_ahead_bytes: memory of members that were fetched before they are read: half of it for
            small ones, half for large ones; 0: none is.
        access: how remote shards are reached; ``read_retries`` counts for them too.
        opener: makes the storage of a URL; None: `open_storage`.
    """

    one_a_worker = True  # the stages that a worker process runs share their reader

    def __init__(
        self,
        manifests: Sequence[Manifest],
        *,
        cache_dir: str | None = None,
        read_retries: int = 3,
        verify_reads: bool = True,
        max_open_shards: int = 128,
        max_index_bytes: int = 512 << 20,
        max_ahead_bytes: int = 128 << 20,
        access: Access | None = None,
        opener: Callable[[str], Storage] | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "cache_dir": cache_dir,
            "read_retries": read_retries,
            "verify_reads": verify_reads,
            "max_open_shards": max_open_shards,
            "max_index_bytes": max_index_bytes,
            "max_ahead_bytes": max_ahead_bytes,
            "access": access,
            "opener": opener,
        }
        self.manifests = tuple(manifests)
        self.reads = ReadCounts()
        self._count_lock = threading.Lock()
        self._cache_dir = cache_dir
        access = access or Access()
        self._retry = Retry(read_retries)
        self._remote_retry = replace(access.retry, retries=read_retries)
        self._access = replace(access, retry=Retry(0))  # tried again here, in one place
        self._verify = verify_reads
        self._opener = opener
        self._shards: _Recent[Storage] = _Recent(max_open_shards, None, _let_go)
        self._indices: _Recent[ShardIndex] = _Recent(_MAX_INDICES, max_index_bytes, _let_go)
        self._members: dict[tuple[int, int, int], Member] = {}  # asked for a few times in a row
        self._neighbours = Neighbours(self._fetch, max_ahead_bytes // 2)
        self._expected = Expected(self._fetch, max_ahead_bytes // 2)
        self._background = Background()
        self._ahead = max_ahead_bytes > 0

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.manifests, self._arguments))

    def url(self, source: int, shard: int) -> str:
        """The shard's URL."""
        return self.manifests[source].shards[shard]

    def index(self, source: int, shard: int) -> ShardIndex:
        """The shard's index; its size is compared with the shard's when it is opened.

        Raises:
            SidecarError: it is missing, unreadable or not the manifest's.
            ShardChangedError: the shard has another size.
            StorageError: the shard or its index can't be read.
        """
        held = self._indices.find((source, shard))
        if held is not None:
            return held
        return self._try(
            self.url(source, shard),
            lambda: self._indices.get((source, shard), lambda: self._load(source, shard)),
        )

    def member(self, source: int, shard: int, position: int) -> Member:
        """What the index says of a member. Raises as `index`."""
        place = (source, shard, position)
        member = self._members.get(place)
        if member is None:
            member = self.index(source, shard).member(position)
            if len(self._members) >= _MAX_MEMBERS:
                self._members.clear()
            if len(member.probe or b"") <= _MAX_PROBE:
                self._members[place] = member
        return member

    def read(self, source: int, shard: int, position: int) -> Data:
        """A member's bytes, holes of a sparse member filled; a view where nothing was copied.

        Raises:
            ShardChangedError: they are not those that were indexed.
            StorageError: they can't be read, after all retries.
            SidecarError: the index is missing, unreadable or not the manifest's.
        """
        member = self.member(source, shard, position)
        url = self.url(source, shard)
        data = self._fetched(source, shard, position, member) if is_remote(url) else None
        if data is None:
            data = self._try(url, lambda: self._read_once(source, shard, member))
        with self._count_lock:
            self.reads.members += 1
            self.reads.bytes += member.length
        return data

    def gather(self, samples: Sequence[tuple[int, int, int]]) -> None:
        """Get the small members of some samples (source, shard, sample) of remote shards.

        Fetches with each sample's what lies around it, for `read` to hand out. Never raises what
        can't be read: `read` does.
        """
        wanted = []
        for source, shard, sample in samples if self._ahead else ():
            if is_remote(self.url(source, shard)):
                try:
                    wanted.append((self.index(source, shard), (source, shard), sample))
                except ZephonError:  # met again, and raised, where the sample is read
                    continue
        if wanted:
            self._neighbours.gather(wanted)

    def expect_samples(self, samples: Sequence[tuple[int, int, int]]) -> None:
        """Begin to `gather` samples that this process will ask for soon."""
        wanted = [place for place in samples if self._ahead and is_remote(self.url(*place[:2]))]
        if wanted:
            self._background.begin(lambda: self.gather(wanted))

    def expect(self, source: int, shard: int, position: int) -> None:
        """Begin to fetch a member of a remote shard that this process will read soon."""
        if self._ahead and is_remote(self.url(source, shard)):
            self._expected.expect((source, shard, position), self.member(source, shard, position))

    def take_counts(self) -> ReadCounts:
        """What was done since the last call: for a worker, whose parent adds it to its own."""
        with self._count_lock:
            taken, self.reads = self.reads, ReadCounts()
        return taken

    def add_counts(self, counts: ReadCounts) -> None:
        """Add what a worker did."""
        with self._count_lock:
            for name in _COUNTS:
                setattr(self.reads, name, getattr(self.reads, name) + getattr(counts, name))

    def close(self) -> None:
        """Let go of everything; a later read opens it again."""
        self._members.clear()
        self._background.clear()
        self._neighbours.clear()
        self._expected.clear()
        self._shards.clear()
        self._indices.clear()

    def __len__(self) -> int:
        return len(self._shards) + len(self._indices)

    def _load(self, source: int, shard: int) -> ShardIndex:
        manifest = self.manifests[source]
        index = load_index(
            manifest.shards[shard],
            key_rule=manifest.key_rule,
            allow_truncated=manifest.allow_truncated,
            probed=manifest.probed,
            cache_dir=self._cache_dir,
            digest=manifest.digests[shard].tobytes(),
            access=self._access,
        )
        with self._count_lock:
            self.reads.indices_opened += 1
        return index

    def _open(self, source: int, shard: int) -> Storage:
        url = self.url(source, shard)
        if self._opener is not None:
            storage = self._opener(url)
        elif is_remote(url):
            meta = self._indices.get((source, shard), lambda: self._load(source, shard)).meta
            expected = ObjectStat(meta.size_bytes, meta.identity)
            storage = open_storage(url, self._access, expected)
        else:
            storage = open_storage(url)
        with self._count_lock:
            self.reads.shards_opened += 1
        return storage

    def _read_once(self, source: int, shard: int, member: Member) -> Data:
        key = (source, shard)
        storage = self._shards.get(key, lambda: self._open(source, shard))
        try:
            stored = storage.read(member.offset, member.stored)
            return self._checked(source, shard, member, stored)
        except (OSError, ShardChangedError):
            self._shards.discard(key, storage)
            if isinstance(storage, KeepingStorage):
                storage.forget(member.offset, member.stored)
            raise

    def _checked(self, source: int, shard: int, member: Member, data: Data) -> Data:
        """The member of these stored bytes, which must be those that were indexed."""
        try:
            data = member.content(data)
        except ValueError:
            data = b""  # no base64 any more: the bytes have changed
        if len(data) != member.length or (self._verify and zlib.crc32(data) != member.checksum):
            raise ShardChangedError(
                f"member {member.name!r} does not have the bytes that were indexed "
                f"({member.length}, CRC-32 {member.checksum:08x}); fetch the shard again or, "
                "if the change is meant, run `zephon-mm index --force`",
                shard=self.url(source, shard),
                offset=member.offset,
            )
        return data

    def _fetch(self, shard: tuple[int, int], start: int, length: int) -> Data:
        """One request, ahead of reading."""
        return self._shards.get(shard, lambda: self._open(*shard)).read(start, length)

    def _fetched(self, source: int, shard: int, position: int, member: Member) -> Data | None:
        """What was fetched ahead of a member, if anything, and if it is what was indexed."""
        place = (source, shard, position)
        data: Data | None = self._neighbours.take(place)
        if data is None:
            data = self._expected.take(place)
        if data is None:
            return None
        try:
            return self._checked(source, shard, member, data)
        except ShardChangedError:  # read again, and raised if it stays
            return None

    def _try(self, url: str, work: Callable[[], T]) -> T:
        retry = self._remote_retry if is_remote(url) else self._retry
        return retry.run(url, work, self._count_retry)

    def _count_retry(self) -> None:
        with self._count_lock:
            self.reads.retries += 1


def _let_go(value: object) -> None:
    """Drop a value: others may still read from it, so its memory goes with the last of them."""


def _rebuild(manifests: tuple[Manifest, ...], arguments: dict[str, Any]) -> ShardReader:
    return ShardReader(manifests, **arguments)
