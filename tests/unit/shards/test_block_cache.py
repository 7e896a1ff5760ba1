"""The cache of remote shards on disk: bounded, shared, and never the source of wrong bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from zephon_mm.errors import ConfigError, ShardChangedError, StorageError
from zephon_mm.shards import block_cache as module
from zephon_mm.shards.access import Access, ObjectStat, Retry
from zephon_mm.shards.block_cache import BlockCache, CachedStorage

from .servers import Web, serve

BLOCK = 64 << 10
PAGE = 4 << 10
SLOT = BLOCK + 512


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 KiB, pages of 4."""
    monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(module, "PAGE_BYTES", PAGE)


class Memory:
    """An object, and what was asked of it."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.data = random.Random(seed).randbytes(size)
        self.reads: list[tuple[int, int]] = []
        self.expected: ObjectStat | None = ObjectStat(size, f"tag {seed}")
        self.error: Exception | None = None
        self.pause = 0.0

    def stat(self) -> ObjectStat:
        assert self.expected is not None
        return self.expected

    def read(self, start: int, length: int) -> bytes:
        self.reads.append((start, length))
        time.sleep(self.pause)
        if self.error is not None:
            raise self.error
        return self.data[start : start + length]


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_reads_are_exact_and_each_block_is_fetched_once(tmp_path: Path) -> None:
    inner = Memory(5 * BLOCK + 777)
    storage = CachedStorage(inner, "s3://b/x.tar", BlockCache(str(tmp_path), 100 * SLOT))
    rng = random.Random(1)
    for _ in range(60):
        start = rng.randrange(len(inner.data))
        length = min(rng.choice([1, 100, PAGE, BLOCK, 3 * BLOCK]), len(inner.data) - start)
        assert bytes(storage.read(start, length)) == inner.data[start : start + length]
    assert bytes(storage.read(0, len(inner.data))) == inner.data
    assert storage.size() == len(inner.data) and bytes(storage.read(5, 0)) == b""
    assert sum(length for _, length in inner.reads) == len(inner.data)
    assert len(files(tmp_path)) == 6
    again = CachedStorage(Memory(0), "s3://b/x.tar", BlockCache(str(tmp_path), 100 * SLOT))
    again._inner.expected = inner.expected  # type: ignore[misc]
    assert bytes(again.read(0, len(inner.data))) == inner.data  # another process: from the disk


def test_neighbouring_blocks_come_in_one_request(tmp_path: Path) -> None:
    inner = Memory(10 * BLOCK)
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path), 100 * SLOT))
    storage.read(4 * BLOCK, 1)
    storage.read(0, 10 * BLOCK)
    assert inner.reads[1:] == [(0, 4 * BLOCK), (5 * BLOCK, 5 * BLOCK)]


def test_names_and_identities_keep_blocks_apart(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 100 * SLOT)
    objects = [Memory(1000, seed) for seed in range(3)]
    urls = ["s3://b/x", "s3://b/x", "s3://b/../../etc/x"]  # the second is the first, changed
    for inner, url in zip(objects, urls, strict=True):
        assert bytes(CachedStorage(inner, url, cache).read(0, 1000)) == inner.data
    assert all(path.parent.parent == tmp_path for path in files(tmp_path))
    assert all(len(path.name) == 64 for path in files(tmp_path))


@pytest.mark.parametrize("slots", [1, 5, 16, 40])
def test_it_stays_in_its_bound(tmp_path: Path, slots: int) -> None:
    limit = slots * SLOT + 100
    cache = BlockCache(str(tmp_path), limit)
    for seed in range(4):
        inner = Memory(20 * BLOCK, seed)
        storage = CachedStorage(inner, "u", cache)
        for number in range(20):
            start = number * BLOCK + 3
            assert bytes(storage.read(start, 9)) == inner.data[start : start + 9]
            assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
    assert len(files(tmp_path)) >= slots // 2
    with pytest.raises(ConfigError, match="one must fit"):
        BlockCache(str(tmp_path), BLOCK)


def test_the_least_recently_used_goes(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 4 * SLOT)
    names = [bytes([number]) * 32 for number in range(6)]
    for age, name in enumerate(names[:4]):
        cache.write(name, memoryview(name * 10))
        os.utime(cache._path(name), (1e9 + age, 1e9 + age))
    assert cache.read(names[0], 0, 3) == names[0][:3]  # used: the oldest no more
    cache.write(names[4], memoryview(b"x"))
    kept = [cache.read(name, 0, 1) is not None for name in names[:5]]
    assert kept == [True, False, True, True, True]


def test_a_smaller_bound_removes_what_a_larger_one_had(tmp_path: Path) -> None:
    wide = BlockCache(str(tmp_path), 640 * SLOT)
    for number in range(64):
        wide.write(number.to_bytes(8, "big") + bytes(24), memoryview(b"x"))
    assert len(files(tmp_path)) == 64
    assert BlockCache(str(tmp_path), 16 * SLOT).num_sets == 1
    assert len(files(tmp_path)) <= 16


DAMAGE = {
    "bit of a page": lambda raw: raw[:1000] + bytes([raw[1000] ^ 1]) + raw[1001:],
    "bit of the head": lambda raw: raw[:50] + bytes([raw[50] ^ 1]) + raw[51:],
    "cut": lambda raw: raw[: len(raw) // 2],
    "empty": lambda raw: b"",
    "zeros": lambda raw: bytes(len(raw)),
    "another's": lambda raw: raw[:8] + bytes(32) + raw[40:],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_block_is_fetched_again(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    inner = Memory(2 * BLOCK)
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path), 100 * SLOT))
    storage.read(0, 2 * BLOCK)
    for path in files(tmp_path):
        path.write_bytes(DAMAGE[kind](path.read_bytes()))
    assert bytes(storage.read(0, 2 * BLOCK)) == inner.data
    assert len(inner.reads) == 2 and "is damaged" in caplog.text
    assert bytes(storage.read(100, BLOCK)) == inner.data[100 : BLOCK + 100]
    assert len(inner.reads) == 2


def test_what_a_killed_writer_left_goes(tmp_path: Path) -> None:
    cache = BlockCache(str(tmp_path), 2 * SLOT)
    cache.write(bytes(32), memoryview(b"x"))
    folder = files(tmp_path)[0].parent
    old, new = folder / "old.tmp", folder / "new.tmp"
    for path in (old, new):
        path.write_bytes(bytes(100))
    os.utime(old, (1e9, 1e9))
    for number in range(1, 4):
        cache.write(bytes([number]) * 32, memoryview(b"x"))
    assert not old.exists() and new.exists()


def test_a_disk_that_takes_nothing_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocks").write_bytes(b"a file where the folder should be")
    inner = Memory(3 * BLOCK)
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path / "blocks"), 100 * SLOT))
    assert bytes(storage.read(0, 3 * BLOCK)) == inner.data
    assert bytes(storage.read(7, 9)) == inner.data[7:16]
    assert caplog.text.count("takes no more") == 1


def test_threads_that_want_one_block_fetch_it_once(tmp_path: Path) -> None:
    inner = Memory(4 * BLOCK)
    inner.pause = 0.05
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path), 100 * SLOT))
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(bytes(storage.read(BLOCK - 5, 10))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [inner.data[BLOCK - 5 : BLOCK + 5]] * 6
    assert len(inner.reads) == 1


def test_a_failure_is_raised_and_the_next_read_tries_again(tmp_path: Path) -> None:
    inner = Memory(BLOCK)
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path), 100 * SLOT))
    for error in (StorageError("down"), ShardChangedError("other", shard="u")):
        inner.error = error
        with pytest.raises(type(error)):
            storage.read(0, 10)
        assert not storage._busy
    inner.error = None
    assert bytes(storage.read(0, 10)) == inner.data[:10]


def test_bytes_that_came_wrong_are_forgotten(tmp_path: Path) -> None:
    inner = Memory(3 * BLOCK)
    storage = CachedStorage(inner, "u", BlockCache(str(tmp_path), 100 * SLOT))
    good, inner.data = inner.data, bytes(3 * BLOCK)
    assert bytes(storage.read(0, 3 * BLOCK)) == bytes(3 * BLOCK)
    inner.data = good
    storage.forget(BLOCK - 1, 2)
    assert bytes(storage.read(0, 3 * BLOCK)) == good[: 2 * BLOCK] + bytes(BLOCK)


def _hammer(folder: str, seed: int, out: object) -> None:
    module.BLOCK_BYTES, module.PAGE_BYTES = BLOCK, PAGE  # type: ignore[misc]
    cache = BlockCache(folder, 20 * SLOT)
    rng = random.Random(seed)
    objects = [Memory(10 * BLOCK, number) for number in range(4)]
    wrong = 0
    for _ in range(150):
        inner = rng.choice(objects)
        storage = CachedStorage(inner, f"u{len(inner.data)}", cache)
        start = rng.randrange(9 * BLOCK)
        wrong += bytes(storage.read(start, 5000)) != inner.data[start : start + 5000]
    out.put((wrong, sum(len(inner.reads) for inner in objects)))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_share_it(tmp_path: Path) -> None:
    """Three at once over a cache of half their data: never wrong bytes, never over the bound."""
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    started = [
        context.Process(target=_hammer, args=(str(tmp_path), seed, out)) for seed in range(3)
    ]
    for process in started:
        process.start()
    results = [out.get() for _ in started]
    for process in started:
        process.join(20)
    assert [wrong for wrong, _ in results] == [0, 0, 0]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 20 * SLOT
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]
    assert all(reads < 150 for _, reads in results)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "x.tar").write_bytes(random.Random(0).randbytes(3 * BLOCK))
    with serve(tmp_path / "web") as web:
        yield web


def test_over_a_web_server(web: Web, tmp_path: Path) -> None:
    from zephon_mm.shards import open_storage

    access = Access(
        timeout_seconds=0.5,
        retry=Retry(0),
        cache_dir=str(tmp_path / "cache"),
        cache_bytes=100 * SLOT,
    )
    data = (web.folder / "x.tar").read_bytes()
    for _ in range(2):
        storage = open_storage(f"{web.url}/x.tar", access)
        assert bytes(storage.read(100, 2 * BLOCK)) == data[100 : 2 * BLOCK + 100]
        storage.close()
    assert len(web.of_shards()) == 1
    web.forever = "503"
    assert bytes(storage.read(5, 10)) == data[5:15]  # an outage is not noticed
