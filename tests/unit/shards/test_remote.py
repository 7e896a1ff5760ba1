"""Shards on a web server: the same bytes as local ones, or a typed error, and nothing hangs."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from zephon_mm.config import Source
from zephon_mm.errors import (
    ConfigError,
    CorruptShardError,
    ShardChangedError,
    StorageError,
    StorageRefusedError,
    ZephonError,
)
from zephon_mm.shards import Access, Manifest, ShardReader, expand_urls, open_source, open_storage
from zephon_mm.shards.access import Retry
from zephon_mm.shards.index import build_index
from zephon_mm.shards.storage import stat

from .servers import Web, serve
from .tars import pairs, tar_bytes

FAST = Access(timeout_seconds=0.4, retry=Retry(3, 0.01))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder = tmp_path_factory.mktemp("web")
    for number, count in enumerate((40, 3, 0)):
        (folder / f"s-{number}.tar").write_bytes(tar_bytes(pairs(count, salt=str(number))))
    with serve(folder) as web:
        yield web


@pytest.fixture
def web(shared: Web) -> Iterator[Web]:
    shared.requests.clear()
    yield shared
    shared.faults.clear()
    shared.forever, shared.delay, shared.etags, shared.ranges = None, 0.0, True, True


def source(urls: str | tuple[str, ...]) -> Source:
    return Source(id="s", urls=urls, format="text")


def opened(web: Web, cache: Path, access: Access = FAST, shards: str = "{0..2}") -> Manifest:
    return open_source(source(f"{web.url}/s-{shards}.tar"), cache_dir=str(cache), access=access)


def everything(reader: ShardReader) -> dict[tuple[int, str, str], bytes]:
    """Bytes of all members by shard, key and field."""
    found = {}
    for shard, count in enumerate(reader.manifests[0].num_samples.tolist()):
        index = reader.index(0, shard)
        for sample in range(count):
            for name, position in index.members(sample).items():
                found[shard, index.key(sample), name] = bytes(reader.read(0, shard, position))
    return found


def local(web: Web) -> ShardReader:
    urls = str(web.folder / "s-{0..2}.tar")
    folder = web.folder / "local"
    return ShardReader([open_source(source(urls), cache_dir=str(folder))], cache_dir=str(folder))


def test_equal_to_local_reading(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path)
    here = local(web)
    assert manifest.digest == here.manifests[0].digest
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST)
    expected = everything(here)
    assert everything(reader) == expected and len(expected) == 86
    again = pickle.loads(pickle.dumps(reader))
    assert everything(again) == expected


def test_one_pass_indexes_and_asks_for_no_byte_twice(web: Web, monkeypatch: object) -> None:
    size = (web.folder / "s-0.tar").stat().st_size
    built = build_index(f"{web.url}/s-0.tar", access=FAST)
    (asked,) = web.of_shards()
    assert asked == f"bytes=0-{size - 1}" and web.of_shards("HEAD") == [None]
    assert built.meta.identity is not None
    assert built.meta.digest == build_index(str(web.folder / "s-0.tar")).meta.digest


def test_an_index_is_built_with_a_few_bytes_in_memory(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_mm.shards.remote.READ_AHEAD_BYTES", 3000)
    web.faults[:] = ["503", "cut", "stalled"]
    built = build_index(f"{web.url}/s-0.tar", access=FAST)
    asked = [at.removeprefix("bytes=").split("-") for at in web.of_shards() if at]
    done = list(dict.fromkeys((int(a), int(b) + 1) for a, b in asked))
    assert len(asked) == len(done) + 3  # the three that failed, once more each
    gaps = [start - stop for (_, stop), (start, _) in itertools.pairwise(done)]
    assert 0 <= min(gaps) and max(gaps) < 512  # padding may be left out
    assert done[-1][1] == built.meta.size_bytes and max(b - a for a, b in done) < 4000
    assert built.meta.digest == build_index(str(web.folder / "s-0.tar")).meta.digest


@pytest.mark.parametrize("fault", ["500", "503", "cut", "silent", "stalled", "wrong"])
def test_faults_are_tried_again(web: Web, tmp_path: Path, fault: str) -> None:
    reader = ShardReader(
        [opened(web, tmp_path)], cache_dir=str(tmp_path), access=FAST, max_ahead_bytes=0
    )
    expected = bytes(local(web).read(0, 0, 7))
    web.faults[:] = [fault] if fault == "wrong" else [fault] * 2
    assert bytes(reader.read(0, 0, 7)) == expected
    assert not web.faults and reader.reads.retries in (1, 2)


@pytest.mark.parametrize("fault", ["503", "cut", "silent"])
def test_faults_that_stay_are_raised(web: Web, tmp_path: Path, fault: str) -> None:
    manifest = opened(web, tmp_path)
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST, read_retries=1)
    position = reader.index(0, 0).members(3)["jpg"]
    web.forever = fault
    reader.gather([(0, 0, 3)])
    reader.expect(0, 0, position)
    with pytest.raises(StorageError, match=r"s-0\.tar: can't be read after 2 tries"):
        reader.read(0, 0, position)
    web.forever = None
    assert bytes(reader.read(0, 0, position)) == bytes(local(web).read(0, 0, position))


@pytest.mark.parametrize("etags", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_a_changed_object_is_an_error(tmp_path: Path, etags: bool, warm: bool) -> None:
    (tmp_path / "web").mkdir()
    shard = tmp_path / "web" / "x.tar"
    shard.write_bytes(tar_bytes(pairs(5)))
    os.utime(shard, (1e9, 1e9))
    with serve(tmp_path / "web") as web:
        web.etags = etags
        manifest = open_source(
            source(f"{web.url}/x.tar"), cache_dir=str(tmp_path / "cache"), access=FAST
        )
        reader = ShardReader([manifest], cache_dir=str(tmp_path / "cache"), access=FAST)
        if warm:
            reader.read(0, 0, 0)
        changed = bytearray(shard.read_bytes())
        changed[-1500] ^= 1  # of the same size, and nowhere near the member that is read
        shard.write_bytes(changed)
        with pytest.raises(ShardChangedError, match=r"--force"):
            reader.read(0, 0, 1)
        with pytest.raises(ShardChangedError, match=r"--force"):
            open_source(source(f"{web.url}/x.tar"), cache_dir=str(tmp_path / "cache"), check=True)
        shard.write_bytes(changed[:2000])
        with pytest.raises(ShardChangedError):
            reader.read(0, 0, 7)
        shard.unlink()
        with pytest.raises((StorageRefusedError, ShardChangedError)):
            reader.read(0, 0, 1)


def test_a_shard_that_changes_while_it_is_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zephon_mm.shards.remote.READ_AHEAD_BYTES", 2000)
    shard = tmp_path / "x.tar"
    shard.write_bytes(tar_bytes(pairs(5)))
    with serve(tmp_path) as web:
        seen: list[str] = []

        def probe(name: str, data: object) -> None:
            seen.append(name)
            if len(seen) == 3:
                shard.write_bytes(tar_bytes(pairs(5, salt="x")))

        with pytest.raises(ShardChangedError):
            build_index(f"{web.url}/x.tar", access=FAST, probe=probe)


def test_refusals_are_told_at_once(web: Web, tmp_path: Path) -> None:
    with pytest.raises(StorageRefusedError, match=r"gone\.tar: it is not there"):
        stat(f"{web.url}/gone.tar", FAST)
    assert len(web.requests) == 1
    web.ranges = False
    with pytest.raises(StorageRefusedError, match="range requests"):
        build_index(f"{web.url}/s-0.tar", access=FAST)
    web.ranges = True
    (web.folder / "broken.tar").write_bytes(b"x" * 2000)
    with pytest.raises(CorruptShardError, match="not a tar"):
        build_index(f"{web.url}/broken.tar", access=FAST)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://host/a.tar?signature=SECRET", r"has a query; signed URLs"),
        ("https://me:SECRET@host/a.tar", r"put credentials in the environment"),
        ("https://host/*.tar", r"can't be listed; name the shards with braces"),
        ("s3:///a.tar", r"names no store"),
        ("https://host/folder/", r"is a folder; name its shards"),
    ],
)
def test_urls_that_cannot_be_used(url: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        expand_urls(url)
    assert "SECRET" not in str(caught.value)


def test_wrong_options_are_named() -> None:
    access = Access(options=(("no_such_option", "SECRET"),))
    with pytest.raises(ConfigError, match=r"storage_options don't fit .*no_such_option") as caught:
        open_storage("s3://bucket/a.tar", access)
    assert "SECRET" not in str(caught.value) + repr(access)


def test_braces_and_odd_names(web: Web, tmp_path: Path) -> None:
    odd = "a b%2F[é]#.tar"
    (web.folder / odd).write_bytes(tar_bytes(pairs(1)))
    url = f"{web.url}/a%20b%252F%5B%C3%A9%5D%23.tar"
    assert expand_urls((f"{web.url}/s-{{0..2}}.tar",)) == [f"{web.url}/s-{n}.tar" for n in range(3)]
    manifest = open_source(source(url), cache_dir=str(tmp_path), access=FAST)
    assert manifest.num_total == 1
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert all(name.replace("-", "").replace(".", "").isalnum() for name in names), names


def test_an_index_beside_the_shards_is_used(web: Web, tmp_path: Path) -> None:
    here = open_source(source(str(web.folder / "s-{0..2}.tar")))  # writes beside
    web.requests.clear()
    manifest = opened(web, tmp_path)
    assert manifest.digest == here.digest
    assert not web.of_shards() and not web.of_shards("HEAD")  # one request: the manifest
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST)
    assert everything(reader) == everything(local(web))
    stale = next((tmp_path / "index").glob("*remote.zmm.parquet"))
    stale.write_bytes(b"PAR1 damaged")
    assert everything(pickle.loads(pickle.dumps(reader))) == everything(local(web))
    for path in web.folder.glob("*.parquet"):
        path.unlink()


def test_small_members_come_with_their_neighbours(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path, shards="0")
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST)
    index = reader.index(0, 0)
    places = {s: index.members(s)["json"] for s in range(40)}
    web.requests.clear()
    gathering = [
        threading.Thread(target=reader.gather, args=([(0, 0, s), (0, 0, s + 1)],)) for s in (5, 8)
    ]
    for thread in gathering:
        thread.start()
    for thread in gathering:
        thread.join()
    found = {s: bytes(reader.read(0, 0, places[s])) for s in reversed(range(40))}
    assert len(web.of_shards()) == 1
    here = local(web)
    assert found == {s: bytes(here.read(0, 0, places[s])) for s in range(40)}
    assert bytes(reader.read(0, 0, places[3])) == found[3]  # a second time it is read alone
    assert len(web.of_shards()) == 2
    reader.gather([(0, 0, 3)])  # another epoch
    assert [bytes(reader.read(0, 0, places[s])) for s in range(40)] == list(found.values())[::-1]
    assert len(web.of_shards()) == 3


def test_expected_samples_are_there_when_they_are_gathered(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path, shards="0")
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST)
    web.requests.clear()
    reader.expect_samples([(0, 0, 5), (0, 0, 6)])
    reader.expect_samples([(0, 0, 7)])
    for thread in threading.enumerate():
        if thread.name == "zephon_mm-ahead":
            thread.join(20)
    assert len(web.of_shards()) == 1
    reader.gather([(0, 0, 5), (0, 0, 7)])
    position = reader.index(0, 0).members(6)["json"]
    assert bytes(reader.read(0, 0, position)) == bytes(local(web).read(0, 0, position))
    assert len(web.of_shards()) == 1


def test_what_fails_in_the_background_is_met_where_it_is_read(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path, shards="0")
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST, read_retries=0)
    position = reader.index(0, 0).members(6)["json"]
    web.requests.clear()
    web.forever = "503"
    reader.expect_samples([(0, 0, 6)])
    for thread in threading.enumerate():
        if thread.name == "zephon_mm-ahead":
            thread.join(20)
    assert len(web.of_shards()) == 1
    with pytest.raises(StorageError):
        reader.read(0, 0, position)
    web.forever = None
    assert bytes(reader.read(0, 0, position)) == bytes(local(web).read(0, 0, position))


def test_neighbours_that_go_unused_are_fetched_no_more(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path, shards="{0..1}")
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST, max_ahead_bytes=2)
    for _ in range(4):  # there is room for one shard's at a time, and nobody takes it
        reader.gather([(0, 0, 3)])
        reader.gather([(0, 1, 0)])
    web.requests.clear()
    reader.gather([(0, 0, 3)])
    (asked,) = web.of_shards()
    first, last = (int(part) for part in (asked or "").removeprefix("bytes=").split("-"))
    assert last - first < 3000  # one sample of 40
    for name in ("jpg", "json"):
        reader.read(0, 0, reader.index(0, 0).members(3)[name])
    assert len(web.of_shards()) == 1


def test_expected_members_are_on_their_way(web: Web, tmp_path: Path) -> None:
    manifest = opened(web, tmp_path, shards="0")
    here = local(web)
    reader = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST)
    index = reader.index(0, 0)
    places = [index.members(s)["jpg"] for s in range(40)]
    web.requests.clear()
    web.faults[:] = ["cut"]
    for place in places:
        reader.expect(0, 0, place)
    expected = [bytes(here.read(0, 0, place)) for place in places]
    assert [bytes(reader.read(0, 0, place)) for place in places] == expected
    assert len(web.of_shards()) == 41  # the cut one twice
    tight = ShardReader([manifest], cache_dir=str(tmp_path), access=FAST, max_ahead_bytes=4000)
    for place in places:
        tight.expect(0, 0, place)
    assert tight._expected._bytes <= 2000
    assert [bytes(tight.read(0, 0, place)) for place in reversed(places)] == expected[::-1]
    tight.close()
    assert bytes(tight.read(0, 0, places[0])) == expected[0]


def _read_in_child(reader: ShardReader, out: object) -> None:
    try:
        reader.expect_samples([(0, 0, 1)])
        reader.gather([(0, 0, 1)])
        reader.expect(0, 0, 1)
        result = repr(bytes(reader.read(0, 0, 1)))
    except ZephonError as error:
        result = type(error).__name__ + str(error)
    out.put(result)  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang(web: Web, tmp_path: Path) -> None:
    reader = ShardReader([opened(web, tmp_path)], cache_dir=str(tmp_path), access=FAST)
    reader.read(0, 0, 0)
    fork = multiprocessing.get_context("fork")
    out = fork.SimpleQueue()
    child = fork.Process(target=_read_in_child, args=(reader, out))
    child.start()
    child.join(20)
    if child.exitcode is None:
        child.kill()
    assert child.exitcode == 0
    assert "StorageRefusedError" in (text := out.get()) and "spawn or forkserver" in text
