"""The reader: right bytes or a typed error, bounded, from any thread."""

from __future__ import annotations

import errno
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zephon_mm.config import Source
from zephon_mm.errors import ShardChangedError, StorageError
from zephon_mm.shards import Manifest, ShardReader, Storage, open_source, open_storage

from .tars import pairs, tar_bytes, write


def make(folder: Path, counts: list[int]) -> Manifest:
    urls = tuple(
        write(folder, tar_bytes(pairs(count, salt=str(i))), f"s-{i:03d}.tar")
        for i, count in enumerate(counts)
    )
    return open_source(Source(id="s", urls=urls, format="text"))


def everything(reader: ShardReader) -> dict[tuple[int, int, str], bytes]:
    found = {}
    for shard in range(len(reader.manifests[0].shards)):
        index = reader.index(0, shard)
        for sample in range(index.num_samples):
            for field, position in index.members(sample).items():
                found[shard, sample, field] = bytes(reader.read(0, shard, position))
    return found


def expected(counts: list[int]) -> dict[tuple[int, int, str], bytes]:
    return {
        (shard, int(name[:6]), name.partition(".")[2]): data
        for shard, count in enumerate(counts)
        for name, data in pairs(count, salt=str(shard))
    }


def test_reads_what_was_written_and_counts(tmp_path: Path) -> None:
    counts = [3, 0, 4]
    reader = ShardReader([make(tmp_path, counts)])
    want = expected(counts)
    assert everything(reader) == want
    assert reader.reads.members == len(want)
    assert reader.reads.bytes == sum(map(len, want.values()))
    assert (reader.reads.shards_opened, reader.reads.indices_opened) == (2, 3)
    assert reader.reads.retries == 0


def test_several_sources(tmp_path: Path) -> None:
    manifests = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        manifests.append(make(tmp_path / name, [1, 2]))
    reader = ShardReader(manifests)
    assert reader.url(1, 0).endswith("b/s-000.tar")
    assert reader.index(1, 1).num_samples == 2


def test_bounds_hold_and_what_was_dropped_is_opened_again(tmp_path: Path) -> None:
    counts = [2] * 12
    manifest = make(tmp_path, counts)
    reader = ShardReader([manifest], max_open_shards=3, max_index_bytes=20_000)
    assert everything(reader) == expected(counts)
    assert everything(reader) == expected(counts)
    assert len(reader) <= 3 + 6
    assert reader.reads.shards_opened == 24


def test_views_outlive_eviction_and_close(tmp_path: Path) -> None:
    manifest = make(tmp_path, [1, 1])
    reader = ShardReader([manifest], max_open_shards=1)
    view = reader.read(0, 0, 0)
    reader.read(0, 1, 0)
    reader.close()
    assert bytes(view) == pairs(1, salt="0")[0][1]
    assert bytes(reader.read(0, 0, 0)) == bytes(view)


def test_threads_share_a_reader(tmp_path: Path) -> None:
    counts = [20] * 8
    reader = ShardReader([make(tmp_path, counts)], max_open_shards=2, max_index_bytes=30_000)
    want = expected(counts)

    def read(item: tuple[int, int, str]) -> bytes:
        shard, sample, field = item
        return bytes(reader.read(0, shard, reader.index(0, shard).members(sample)[field]))

    order = sorted(want, key=lambda item: (item[1] * 31 + item[0] * 17) % 97)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, order)) == [want[item] for item in order]
    assert reader.reads.members == len(want)


def test_a_pickled_reader_opens_its_own(tmp_path: Path) -> None:
    counts = [2, 3]
    reader = ShardReader([make(tmp_path, counts)], read_retries=1, verify_reads=False)
    everything(reader)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.reads.members == 0 and len(copy) == 0
    assert everything(copy) == expected(counts)


def flip(url: str, offset: int) -> None:
    with open(url, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def test_a_flipped_bit_is_an_error_naming_shard_and_offset(tmp_path: Path) -> None:
    manifest = make(tmp_path, [2])
    url = manifest.shards[0]
    flip(url, 512 + 10)
    reader = ShardReader([manifest], read_retries=1)
    with pytest.raises(ShardChangedError, match=r"s-000.tar at byte 512: member '000000.jpg'"):
        reader.read(0, 0, 0)
    assert reader.reads.retries == 1
    assert bytes(reader.read(0, 0, 1)) == pairs(1, salt="0")[1][1]
    loose = ShardReader([manifest], verify_reads=False)
    assert len(loose.read(0, 0, 0)) == len(pairs(1, salt="0")[0][1])


def test_a_shard_cut_or_grown_after_it_was_indexed(tmp_path: Path) -> None:
    manifest = make(tmp_path, [2, 2])
    opened = ShardReader([manifest], read_retries=0)
    opened.read(0, 0, 0)
    size = os.path.getsize(manifest.shards[0])
    os.truncate(manifest.shards[0], 100)
    with pytest.raises(ShardChangedError, match="100"):
        opened.read(0, 0, 0)
    with pytest.raises(ShardChangedError, match=f"has 100 bytes and had {size}"):
        ShardReader([manifest], read_retries=0).read(0, 0, 0)
    with open(manifest.shards[1], "ab") as file:
        file.write(bytes(512))
    with pytest.raises(ShardChangedError, match="--force"):
        ShardReader([manifest], read_retries=0).index(0, 1)


def test_a_shard_that_is_gone(tmp_path: Path) -> None:
    manifest = make(tmp_path, [1])
    os.unlink(manifest.shards[0])
    with pytest.raises(StorageError, match=r"s-000.tar: can't be read after 2 tries"):
        ShardReader([manifest], read_retries=1).read(0, 0, 0)


class Faulty:
    """Fails some reads before it gives the right bytes."""

    def __init__(self, url: str, failures: list[Exception]) -> None:
        self._inner: Storage = open_storage(url)
        self._failures = failures

    def size(self) -> int:
        return self._inner.size()

    def read(self, start: int, length: int) -> memoryview | bytes:
        if self._failures:
            raise self._failures.pop()
        return self._inner.read(start, length)

    def close(self) -> None:
        self._inner.close()


def test_faults_are_tried_again(tmp_path: Path) -> None:
    manifest = make(tmp_path, [1])
    failures: list[Exception] = [OSError(errno.EIO, "I/O error"), StorageError("time-out")]
    reader = ShardReader([manifest], opener=lambda url: Faulty(url, failures))
    assert bytes(reader.read(0, 0, 0)) == pairs(1, salt="0")[0][1]
    assert reader.reads.retries == 2 and reader.reads.members == 1
    assert reader.reads.shards_opened == 3


def test_faults_that_stay_are_raised_and_say_what_happened(tmp_path: Path) -> None:
    manifest = make(tmp_path, [1])
    failures: list[Exception] = [OSError(errno.EIO, "I/O error")] * 5
    reader = ShardReader([manifest], read_retries=2, opener=lambda url: Faulty(url, failures))
    with pytest.raises(StorageError, match=r"after 3 tries \(I/O error\)"):
        reader.read(0, 0, 0)
    assert bytes(reader.read(0, 0, 0)) == pairs(1, salt="0")[0][1]


class Flaky(Faulty):
    """Gives wrong bytes once, as a bad transfer does."""

    def read(self, start: int, length: int) -> memoryview | bytes:
        if self._failures:
            self._failures.pop()
            return bytes(length)
        return self._inner.read(start, length)


def test_wrong_bytes_are_read_once_more(tmp_path: Path) -> None:
    manifest = make(tmp_path, [1])
    failures: list[Exception] = [ValueError()]
    reader = ShardReader([manifest], opener=lambda url: Flaky(url, failures))
    assert bytes(reader.read(0, 0, 0)) == pairs(1, salt="0")[0][1]
    assert reader.reads.retries == 1
