"""An index on disk: a Parquet file beside its shard, or in the cache folder.

Row groups are runs of 256 samples (more in shards of over 131,072), so that a chunk's worth of
index is read without the rest. Files are written under another name and renamed: ranks that build
at once, and readers meanwhile, see a whole file or none.

Sizes: a shard of 10,000 image-text pairs has a sidecar of about 1 MB; opening one reads its
footer only.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import (
    CorruptShardError,
    ShardChangedError,
    ShardIndexError,
    SidecarError,
    StorageError,
)
from .grouping import KeyRule
from .index import INDEX_VERSION, SCHEMA, Block, BuiltIndex, IndexMeta, Member
from .storage import local_path, stat_size

_LOOKS = 5
_META_KEY = b"zephon_mm"
_REBUILD = "run `zephon-mm index --force` on the source's shards"


class MissingSidecarError(SidecarError):
    """A shard has no index yet."""


def default_cache_dir() -> str:
    """``$XDG_CACHE_HOME/zephon_mm``, or ``~/.cache/zephon_mm``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "zephon_mm")


def sidecar_paths(url: str, key_rule: KeyRule, cache_dir: str | None) -> tuple[str, str]:
    """Where a shard's sidecar may lie: beside it, and in the cache folder."""
    suffix = ".zmm.parquet" if key_rule == "first_dot" else f".{key_rule}.zmm.parquet"
    path = local_path(url)
    name = os.path.basename(path) + suffix
    return path + suffix, cache_path(os.path.abspath(path), name, cache_dir)


def cache_path(identity: str, name: str, cache_dir: str | None) -> str:
    """A file in the cache folder, named by a hash of what it stands for."""
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:20]
    return os.path.join(cache_dir or default_cache_dir(), "index", f"{digest}-{name[-100:]}")


def write_atomic(path: str, write: Callable[[str], None]) -> None:
    """Make ``path`` by renaming: ``write`` gets the name of a temporary file beside it."""
    folder = os.path.dirname(path) or "."
    temporary = os.path.join(folder, f".zmm-{secrets.token_hex(8)}.tmp")
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_first_possible(paths: tuple[str, ...], write: Callable[[str], None]) -> str:
    """Write to the first path whose folder takes it; the last path's folder is made.

    A folder without any write bit is left alone, also by root, whom the system would let write.

    Raises:
        StorageError: none can be written.
    """
    last = OSError("no folder to write to")
    for path in paths:
        try:
            folder = os.path.dirname(path) or "."
            if path is paths[-1]:
                os.makedirs(folder, exist_ok=True)
            if not os.stat(folder).st_mode & 0o222:
                raise PermissionError(13, "the folder is read-only")
            write_atomic(path, write)
            return path
        except OSError as error:
            last = error
    raise StorageError(
        f"{paths[-1]}: the index can't be written ({last.strerror or last}); pass a cache folder "
        "that can be (ExecutionConfig.cache_dir, `--cache-dir`)"
    ) from last


def write_sidecar(built: BuiltIndex, url: str, cache_dir: str | None = None) -> str:
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

    return write_first_possible(sidecar_paths(url, built.meta.key_rule, cache_dir), write)


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
        return self._block_of(sample).key(sample)

    def problem(self, sample: int) -> str | None:
        """Why the sample is quarantined, or None."""
        return self._block_of(sample).problem(sample)

    def members(self, sample: int) -> dict[str, int]:
        """Fields, in lower case, and the positions of their members, in the shard's order."""
        return self._block_of(sample).members(sample)

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

    def _block_of(self, sample: int) -> Block:
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
    size: Literal["check", "skip"] = "check",
) -> ShardIndex:
    """Open a shard's index, from beside the shard or from the cache folder.

    Args:
        url: the shard.
        key_rule: the rule that the index must be made by.
        allow_truncated: take the index of a cut shard.
        probed: whether the index must hold media probes.
        cache_dir: the cache folder; None: the user's.
        digest: what the index's digest must be, as the manifest has it.
        size: ``check`` compares the shard's size, one stat, with the size in the index.

    Raises:
        SidecarError: there is none, or it is unreadable, of another version, or not that one.
        ShardChangedError: the shard has another size than its index says.
        CorruptShardError: the shard is cut, and cut shards are not allowed.
        StorageError: the shard is not there.
    """
    first: ShardIndexError | None = None
    actual = stat_size(url) if size == "check" else None
    for path in sidecar_paths(url, key_rule, cache_dir):
        if not os.path.exists(path):
            continue
        try:
            index = ShardIndex(url, path)
            _check(index, path, actual, allow_truncated, probed, digest)
            return index
        except ShardIndexError as error:
            first = first or error
    raise first or MissingSidecarError("it has no index; run `zephon-mm index` on it", shard=url)


def _check(
    index: ShardIndex,
    path: str,
    size: int | None,
    allow_truncated: bool,
    probed: bool,
    digest: bytes | None,
) -> None:
    meta = index.meta
    if size is not None and size != meta.size_bytes:
        raise ShardChangedError(
            f"the shard has {size} bytes and had {meta.size_bytes} when it was indexed; if that is "
            f"meant, {_REBUILD}",
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
