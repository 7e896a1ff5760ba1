"""An index on disk: a Parquet file beside its shard, or in the cache folder.
Row groups are runs of 256 samples (more in shards of over 131,072), so that a chunk's worth of
index is read without the rest. Ranks that build at once, and readers meanwhile, see a whole file or
none (`places`).

Sizes: a shard of 10,000 image-text pairs has a sidecar of about 1 MB; opening one reads its
footer only.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import itertools
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import (
    CorruptShardError,
    ShardChangedError,
    ShardIndexError,
    SidecarError,
)
from .access import Access, ObjectStat, is_remote
from .grouping import KeyRule
from .index import INDEX_VERSION, SCHEMA, Block, BuiltIndex, IndexMeta, Member
from .places import (
    fetch_beside,
    put_beside,
    sidecar_paths,
    sidecar_suffix,
    write_first_possible,
)
from .storage import stat

_LOOKS = 5
_META_KEY = b"zephon_mm"
_REBUILD = "run `zephon-mm index --force` on the source's shards"


class MissingSidecarError(SidecarError):
    """A shard has no index yet."""


def write_sidecar(
    built: BuiltIndex, url: str, cache_dir: str | None = None, access: Access | None = None
) -> str:
    """Store an index; return where."""
    samples = built.table.column("sample").to_numpy()
    firsts = range(0, built.meta.num_samples, built.meta.block_samples)
    starts = [int(samples.searchsorted(first)) for first in firsts]
    content = json.dumps(dataclasses.asdict(built.meta), sort_keys=True).encode()
    schema = SCHEMA.with_metadata({_META_KEY: content})

    def write(path: str) -> None:
        with pq.ParquetWriter(
            path, schema, compression="zstd", use_dictionary=["extension"], write_statistics=False
        ) as writer:
            for start, stop in itertools.pairwise([*starts, len(samples)]):
                writer.write_table(
                    built.table.slice(start, stop - start).cast(schema), row_group_size=1 << 30
                )

    path = write_first_possible(sidecar_paths(url, built.meta.key_rule, cache_dir), write)
    if is_remote(url):
        put_beside(url + sidecar_suffix(built.meta.key_rule), path, access or Access())
    return path


@dataclass(frozen=True, slots=True)
class _File:
    """A sidecar as it was when it was last looked at."""

    footer: pq.FileMetaData
    identity: tuple[int, int, int]


class ShardIndex:
    """One shard's index, read from its sidecar a block at a time. Thread-safe.

    Attributes:
        shard: its URL.
        meta: all that is known of it as a whole.
        nbytes: memory that the blocks read so far take.
    """

    def __init__(self, shard: str, path: str) -> None:
        self.shard = shard
        self._path = path
        self._lock = threading.Lock()
        self._blocks: dict[int, Block] = {}
        self._file = self._look()
        self.meta = self._read_meta(self._file.footer)
        self.nbytes = 4096
        groups = range(self._file.footer.num_row_groups)
        sizes = (self._file.footer.row_group(group).num_rows for group in groups)
        self._rows: list[int] = list(itertools.accumulate(sizes, initial=0))

    def _look(self) -> _File:
        """The file's footer, and which file it is of."""
        with self._reading():
            for _ in range(_LOOKS):
                before = _identity(self._path)
                with pq.ParquetFile(self._path) as file:
                    if _identity(self._path) == before:
                        return _File(file.metadata, before)
        raise self._replaced()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise SidecarError(
                f"its index {self._path} can't be read ({error}); {_REBUILD}", shard=self.shard
            ) from error

    def _replaced(self) -> SidecarError:
        return SidecarError(
            f"its index {self._path} was replaced by another while it was in use; start again",
            shard=self.shard,
        )

    def _read_meta(self, footer: pq.FileMetaData) -> IndexMeta:
        content = (footer.metadata or {}).get(_META_KEY)
        try:
            fields = json.loads(content or b"")
            version = fields["version"]
            if version == INDEX_VERSION:
                return IndexMeta(**fields)
        except (ValueError, TypeError, KeyError) as error:
            raise SidecarError(
                f"its index {self._path} was not written by zephon-mm, or is damaged; {_REBUILD}",
                shard=self.shard,
            ) from error
        raise SidecarError(
            f"its index {self._path} is of version {version} and this release reads "
            f"{INDEX_VERSION}; {_REBUILD}",
            shard=self.shard,
        )

    @property
    def size_bytes(self) -> int:
        """The shard's size when it was indexed."""
        return self.meta.size_bytes

    @property
    def num_samples(self) -> int:
        """Samples, quarantined ones included."""
        return self.meta.num_samples

    @property
    def num_rows(self) -> int:
        """Member positions are below this."""
        return self._rows[-1]

    @property
    def digest(self) -> bytes:
        """32 bytes over the whole table."""
        return bytes.fromhex(self.meta.digest)

    @property
    def skipped(self) -> dict[str, int]:
        """What the index leaves out, counted by kind."""
        return dict(self.meta.skipped)

    def key(self, sample: int) -> str:
        """The sample's key, letter case kept."""
        return self.block(sample).key(sample)

    def problem(self, sample: int) -> str | None:
        """Why the sample is quarantined, or None."""
        return self.block(sample).problem(sample)

    def members(self, sample: int) -> dict[str, int]:
        """Fields, in lower case, and the positions of their members, in the shard's order."""
        return self.block(sample).members(sample)

    def member(self, position: int) -> Member:
        """The member at a position that `members` gave."""
        if not 0 <= position < self._rows[-1]:
            raise ShardIndexError(
                f"member {position} was asked for and the index has {self._rows[-1]}",
                shard=self.shard,
            )
        return self._block(bisect.bisect_right(self._rows, position) - 1).member(
            position, self.shard
        )

    def block(self, sample: int) -> Block:
        """The sample and its neighbours: what answers several questions at one search."""
        if not 0 <= sample < self.meta.num_samples:
            raise ShardIndexError(
                f"sample {sample} was asked for and the index has {self.meta.num_samples}",
                shard=self.shard,
            )
        return self._block(sample // self.meta.block_samples)

    def _block(self, group: int) -> Block:
        block = self._blocks.get(group)
        if block is not None:
            return block
        table = self._read_group(group)
        block = Block(table, group * self.meta.block_samples, self._rows[group])
        with self._lock:
            if group not in self._blocks:
                self._blocks[group] = block
                self.nbytes += block.nbytes
            return self._blocks[group]

    def _read_group(self, group: int) -> pa.Table:
        """Read a row group. If another rank has built the same index meanwhile, go on with it."""
        for _ in range(_LOOKS):
            known = self._file
            with self._reading(), pq.ParquetFile(self._path, metadata=known.footer) as file:
                if _identity(self._path) == known.identity:
                    return file.read_row_group(group, use_threads=False)
            fresh = self._look()
            meta = self._read_meta(fresh.footer)
            if (meta.digest, meta.block_samples) != (self.meta.digest, self.meta.block_samples):
                break
            self._file = fresh
        raise self._replaced()


def _identity(path: str) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def load_index(
    url: str,
    *,
    key_rule: KeyRule = "first_dot",
    allow_truncated: bool = False,
    probed: bool = False,
    cache_dir: str | None = None,
    digest: bytes | None = None,
    access: Access | None = None,
) -> ShardIndex:
    """Open a shard's index, from beside the shard or from the cache folder.

    One stat compares the shard's size (and a remote one's identity) with the index.

    Args:
        url: the shard.
        key_rule: the rule that the index must be made by.
        allow_truncated: take the index of a cut shard.
        probed: whether the index must hold media probes.
        cache_dir: the cache folder; None: the user's.
        digest: what the index's digest must be, as the manifest has it.
        access: how a remote shard is reached.

    Raises:
        SidecarError: there is none, or it is unreadable, of another version, or not that one.
        ShardChangedError: the shard has another size or identity than its index says.
        CorruptShardError: the shard is cut, and cut shards are not allowed.
        StorageError: the shard is not there.
    """
    first: ShardIndexError | None = None
    actual = stat(url, access)
    for path in _found(url, key_rule, cache_dir, access or Access()):
        try:
            index = ShardIndex(url, path)
            _check(index, path, actual, allow_truncated, probed, digest)
            return index
        except ShardIndexError as error:
            first = first or error
    raise first or MissingSidecarError("it has no index; run `zephon-mm index` on it", shard=url)


def _found(url: str, key_rule: KeyRule, cache_dir: str | None, access: Access) -> Iterator[str]:
    """The sidecars of a shard that are there; a remote shard's is fetched if asked for another."""
    paths = sidecar_paths(url, key_rule, cache_dir)
    yield from filter(os.path.exists, paths)
    if is_remote(url) and fetch_beside(url + sidecar_suffix(key_rule), paths[0], access):
        yield paths[0]


def _check(
    index: ShardIndex,
    path: str,
    actual: ObjectStat,
    allow_truncated: bool,
    probed: bool,
    digest: bytes | None,
) -> None:
    meta = index.meta
    if actual.size != meta.size_bytes:
        raise ShardChangedError(
            f"the shard has {actual.size} bytes and had {meta.size_bytes} when it was indexed; if "
            f"that is meant, {_REBUILD}",
            shard=index.shard,
        )
    if meta.identity not in (None, actual.identity):
        raise ShardChangedError(
            f"the shard is {actual.identity} in its store and was {meta.identity} when it was "
            f"indexed: it was replaced; if that is meant, {_REBUILD}",
            shard=index.shard,
        )
    if probed and not meta.probed:
        raise SidecarError(f"its index {path} has no media probes; {_REBUILD}", shard=index.shard)
    if digest is not None and index.digest != digest:
        raise SidecarError(
            f"its index {path} is not the one that the source's manifest was made with; {_REBUILD}",
            shard=index.shard,
        )
    if meta.truncated and not allow_truncated:
        raise CorruptShardError(
            "the shard is cut off; fetch it again, or pass `--allow-truncated` "
            "(Source.allow_truncated) to keep its whole members",
            shard=index.shard,
            offset=meta.size_bytes,
        )
