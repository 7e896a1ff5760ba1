"""One manifest a source: all that starting a run reads.

A row a shard (samples, chunk size, bytes, digest). It is named by a hash of the shards' URLs and
the options that shape an index, so another list of shards has another manifest. It lies beside
the first shard, its shards then written relative to that folder, or in the cache folder.

Cost: 10⁵ shards open in some 0.2 s and 30 MB; no shard and no sidecar is touched. Each shard's
size is compared when it is first read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..config import Source
from ..errors import CorruptShardError, ShardChangedError, ShardIndexError, SidecarError
from .access import Access, is_remote
from .grouping import KeyRule
from .index import INDEX_VERSION, IndexMeta, Probe, Verify, build_index
from .places import cache_path, fetch_beside, put_beside, write_first_possible
from .sidecar import MissingSidecarError, load_index, write_sidecar
from .storage import expand_urls, local_path

MAX_CHUNK_BYTES = 64 << 20
MAX_CHUNK_SAMPLES = 256
_META_KEY = b"zephon_mm"
_SUMMARY = (
    "num_members",
    "data_bytes",
    "skipped",
    "quarantined",
    "num_truncated",
    "key_rule",
    "allow_truncated",
    "probed",
    "verified",
)


@dataclass(frozen=True)
class Manifest:
    """The shards of one source.

    Attributes:
        shards: URLs, in the order of the source.
        num_samples: int64 [S], quarantined samples included.
        max_chunk: int64 [S], samples that a chunk may hold: 64 MiB of them, 1 to 256.
        size_bytes: int64 [S].
        digests: uint8 [S, 32], of the shards' indices.
        num_members, data_bytes: added up over the shards.
        skipped, quarantined: counts by kind, added up.
        num_truncated: shards that are cut.
        key_rule, allow_truncated, probed, verified: how the indices were made.
    """

    shards: tuple[str, ...]
    num_samples: NDArray[np.int64]
    max_chunk: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    digests: NDArray[np.uint8]
    num_members: int
    data_bytes: int
    skipped: dict[str, int]
    quarantined: dict[str, int]
    num_truncated: int
    key_rule: KeyRule
    allow_truncated: bool
    probed: bool
    verified: bool

    @property
    def num_total(self) -> int:
        """Samples of the source."""
        return int(self.num_samples.sum())

    @property
    def digest(self) -> bytes:
        """SHA-256 over the shards' digests in order; where they lie is not in it."""
        return hashlib.sha256(self.digests.tobytes()).digest()

    def spread(self, most: int) -> list[tuple[int, int]]:
        """(shard, sample) of at most ``most`` samples, evenly spread over the source."""
        ends = np.cumsum(self.num_samples)
        count = min(most, self.num_total)
        picked = np.unique(np.linspace(0, self.num_total - 1, count).astype(np.int64))
        shards = np.searchsorted(ends, picked, side="right")
        samples = picked - (ends - self.num_samples)[shards]
        return list(zip(shards.tolist(), samples.tolist(), strict=True))


@dataclass(frozen=True)
class ShardDone:
    """Progress: one shard's index is there.

    Attributes:
        built: False where the sidecar already was.
    """

    shard: str
    meta: IndexMeta
    built: bool
    num_shards: int


def chunk_limit(meta: IndexMeta) -> int:
    """Samples that a chunk of the shard may hold."""
    mean = meta.data_bytes / max(1, meta.num_samples)
    return max(1, min(MAX_CHUNK_SAMPLES, int(MAX_CHUNK_BYTES / max(1.0, mean))))


def manifest_paths(
    shards: Sequence[str], key_rule: KeyRule, probed: bool, cache_dir: str | None
) -> tuple[str, str]:
    """Where a source's manifest may lie: beside its first shard, and in the cache folder.

    Beside a remote shard is a URL.
    """
    options = json.dumps([INDEX_VERSION, key_rule, probed])
    remote = is_remote(shards[0])
    folder = shards[0].rpartition("/")[0] if remote else os.path.dirname(local_path(shards[0]))
    here = folder + "/" if folder else ""
    paths = [local_path(url) if url.startswith("file:") else url for url in shards]
    relative = [path[len(here) :] if path.startswith(here) else path for path in paths]
    name = hashlib.sha256("\n".join([options, *relative]).encode("utf-8", "surrogateescape"))
    beside = os.path.join(folder, f"source-{name.hexdigest()[:20]}.zmm.parquet")
    place = folder if remote else os.path.abspath(folder or ".")
    identity = "\n".join([options, place, *relative])
    return beside, cache_path(identity, "source.zmm.parquet", cache_dir)


def write_manifest(
    manifest: Manifest, cache_dir: str | None = None, access: Access | None = None
) -> str:
    """Store a manifest; return where."""
    summary = {"version": INDEX_VERSION} | {n: getattr(manifest, n) for n in _SUMMARY}
    raw = pa.py_buffer(manifest.digests.tobytes())
    table = pa.table(
        {
            "shard": pa.array([url.encode("utf-8", "surrogateescape") for url in manifest.shards]),
            "num_samples": manifest.num_samples,
            "max_chunk": manifest.max_chunk,
            "size_bytes": manifest.size_bytes,
            "digest": pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(32), len(manifest.shards), [None, raw]
            ),
        }
    ).replace_schema_metadata({_META_KEY: json.dumps(summary).encode()})
    beside, cached = manifest_paths(manifest.shards, manifest.key_rule, manifest.probed, cache_dir)
    remote = is_remote(beside)
    path = write_first_possible(
        (cached,) if remote else (beside, cached),
        lambda path: pq.write_table(table, path, compression="zstd", use_dictionary=False),
    )
    if remote:
        put_beside(beside, path, access or Access())
    return path


def read_manifest(
    shards: Sequence[str],
    key_rule: KeyRule,
    probed: bool,
    cache_dir: str | None,
    access: Access | None = None,
) -> Manifest | None:
    """The manifest of these shards, or None where there is none.

    Raises:
        SidecarError: there is one and it can't be read.
    """
    beside, cached = manifest_paths(shards, key_rule, probed, cache_dir)
    if is_remote(beside):
        known = os.stat(cached).st_mtime if os.path.exists(cached) else None
        fetch_beside(beside, cached, access or Access(), newer_than=known)
    paths = [path for path in (beside, cached) if os.path.exists(path)]
    for path in sorted(paths, key=lambda p: -os.stat(p).st_mtime_ns):
        try:
            with pq.ParquetFile(path) as file:  # `read_table` would load datasets, in 30 ms
                table = file.read(use_threads=False)
            summary = json.loads(table.schema.metadata[_META_KEY])
            if summary.pop("version") != INDEX_VERSION or table.num_rows != len(shards):
                raise ValueError("it is of another version, or of other shards")
            raw = table.column("digest").combine_chunks()
            return Manifest(
                shards=tuple(shards),
                num_samples=table.column("num_samples").to_numpy(),
                max_chunk=table.column("max_chunk").to_numpy(),
                size_bytes=table.column("size_bytes").to_numpy(),
                digests=np.frombuffer(raw.buffers()[1], np.uint8, 32 * len(raw)).reshape(-1, 32),
                **summary,
            )
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            raise SidecarError(
                f"the source's manifest {path} can't be used ({error}); run "
                "`zephon-mm index --force` on the source's shards",
                shard=shards[0],
            ) from error
    return None


def open_source(
    source: Source,
    *,
    cache_dir: str | None = None,
    probe: Probe | None = None,
    workers: int = 1,
    verify: Verify | None = None,
    force: bool = False,
    check: bool = False,
    progress: Callable[[ShardDone], None] | None = None,
    access: Access | None = None,
) -> Manifest:
    """The manifest of a source: read if it is there, else made, with the sidecars that lack.

    Args:
        source: its ``urls``, ``key`` and ``allow_truncated`` count here.
        cache_dir: for indices whose shards' folder can't be written; None: the user's.
        probe: media probe of new indices; picklable if ``workers`` is above 1.
        workers: processes that index.
        verify: decode all media that the probe found, and mark them; indices without marks are
            made anew (their digest stays).
        force: make every index anew.
        check: look at each shard's index and size, even if there is a manifest, and write that
            anew.
        progress: called for each shard as its index is there.
        access: how remote shards are reached.

    Raises:
        ConfigError: the URLs name nothing.
        ShardIndexError: shards that are corrupt, changed, or whose index is stale; the message
            names each of the first ten. The others' indices are kept.
        StorageError: a shard can't be read, or an index not written.
    """
    shards = expand_urls(source.urls, access)
    if not (force or check):
        found = read_manifest(shards, source.key, probe is not None, cache_dir, access)
        if found is not None and (found.verified or verify is None):
            if found.num_truncated and not source.allow_truncated:
                raise CorruptShardError(
                    f"{found.num_truncated} of {len(shards)} shards of source {source.id!r} are "
                    "cut off; fetch them again, or set allow_truncated to keep their whole members",
                    shard=shards[0],
                )
            return dataclasses.replace(found, allow_truncated=source.allow_truncated)
    job = _Job(source.key, source.allow_truncated, cache_dir, probe, verify, force, access)
    metas: dict[int, IndexMeta] = {}
    errors: dict[int, ShardIndexError] = {}
    for number, meta, built in _run(job, shards, workers):
        if isinstance(meta, ShardIndexError):
            errors[number] = meta
            continue
        metas[number] = meta
        if progress is not None:
            progress(ShardDone(shards[number], meta, built, len(shards)))
    if errors:
        raise _join(errors)
    manifest = _manifest(shards, [metas[i] for i in range(len(shards))], source, probe, verify)
    write_manifest(manifest, cache_dir, access)
    return manifest


def _manifest(
    shards: Sequence[str],
    metas: Sequence[IndexMeta],
    source: Source,
    probe: Probe | None,
    verify: Verify | None,
) -> Manifest:
    skipped: Counter[str] = Counter()
    quarantined: Counter[str] = Counter()
    for meta in metas:
        skipped.update(meta.skipped)
        quarantined.update(meta.quarantined)
    raw = b"".join(bytes.fromhex(meta.digest) for meta in metas)
    return Manifest(
        shards=tuple(shards),
        num_samples=np.array([meta.num_samples for meta in metas], np.int64),
        max_chunk=np.array([chunk_limit(meta) for meta in metas], np.int64),
        size_bytes=np.array([meta.size_bytes for meta in metas], np.int64),
        digests=np.frombuffer(raw, np.uint8).reshape(-1, 32),
        num_members=sum(meta.num_members for meta in metas),
        data_bytes=sum(meta.data_bytes for meta in metas),
        skipped=dict(sorted(skipped.items())),
        quarantined=dict(sorted(quarantined.items())),
        num_truncated=sum(meta.truncated for meta in metas),
        key_rule=source.key,
        allow_truncated=source.allow_truncated,
        probed=probe is not None,
        verified=all(meta.verified for meta in metas),
    )


def _join(errors: dict[int, ShardIndexError]) -> ShardIndexError:
    ordered = [errors[number] for number in sorted(errors)]
    first = ordered[0]
    if len(ordered) == 1:
        return first
    lines = "".join(f"\n  {error}" for error in ordered[1:10])
    more = f"\n  and {len(ordered) - 10} more" if len(ordered) > 10 else ""
    return type(first)(
        f"{first.message}\n{len(ordered)} shards have errors; the others:{lines}{more}",
        shard=first.shard,
        offset=first.offset,
    )


@dataclass(frozen=True)
class _Job:
    """Index one shard; runs in a worker process."""

    key_rule: KeyRule
    allow_truncated: bool
    cache_dir: str | None
    probe: Probe | None
    verify: Verify | None
    force: bool
    access: Access | None

    def __call__(self, url: str) -> tuple[IndexMeta | ShardIndexError, bool]:
        try:
            return self.index(url)
        except ShardIndexError as error:
            return error, False

    def index(self, url: str) -> tuple[IndexMeta, bool]:
        before = None if self.force else self.existing(url)
        if before is not None and (before.verified or self.verify is None):
            return before, False
        built = build_index(
            url,
            key_rule=self.key_rule,
            allow_truncated=self.allow_truncated,
            probe=self.probe,
            verify=self.verify,
            access=self.access,
        )
        if before is not None and before.digest != built.meta.digest:
            raise ShardChangedError(
                "its content is not what its index says; if that is meant, run "
                "`zephon-mm index --force` on the source's shards",
                shard=url,
            )
        write_sidecar(built, url, self.cache_dir, self.access)
        return built.meta, True

    def existing(self, url: str) -> IndexMeta | None:
        try:
            return load_index(
                url,
                key_rule=self.key_rule,
                allow_truncated=self.allow_truncated,
                probed=self.probe is not None,
                cache_dir=self.cache_dir,
                access=self.access,
            ).meta
        except MissingSidecarError:
            return None


_Result = tuple[int, IndexMeta | ShardIndexError, bool]


def _run(job: _Job, shards: Sequence[str], workers: int) -> Iterator[_Result]:
    workers = min(workers, len(shards))
    if workers <= 1:
        for number, url in enumerate(shards):
            yield number, *job(url)
        return
    executor = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    pending: dict[Future[tuple[IndexMeta | ShardIndexError, bool]], int] = {}
    try:
        for number, url in enumerate(shards):
            pending[executor.submit(job, url)] = number
            if len(pending) >= 4 * workers:
                yield from _collect(pending)
        while pending:
            yield from _collect(pending)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _collect(
    pending: dict[Future[tuple[IndexMeta | ShardIndexError, bool]], int],
) -> Iterator[_Result]:
    done, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        yield pending.pop(future), *future.result()
