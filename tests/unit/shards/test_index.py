"""The table, its digest, its sidecar."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from zephon_mm.errors import CorruptShardError, ShardChangedError, ShardIndexError, SidecarError
from zephon_mm.shards import build_index, load_index
from zephon_mm.shards.index import INDEX_VERSION, Data
from zephon_mm.shards.places import sidecar_paths
from zephon_mm.shards.sidecar import write_sidecar

from .tars import Entry, contents, indexed, layout, pairs, tar_bytes, write


def probe(field: str, data: Data) -> bytes | None:
    return bytes(data[:4]) + field.encode() if field == "jpg" else None


def odd_is_damaged(field: str, data: Data, probe: bytes) -> bool:
    return len(data) % 2 == 0


def many(count: int) -> list[Entry]:
    entries = pairs(count)
    for number in range(0, count, 7):
        entries.append((f"{number:06d}.txt", b"t" * (number % 50)))
    return entries


def test_round_trip_over_several_blocks(tmp_path: Path) -> None:
    entries = many(1000)
    built = build_index(write(tmp_path, tar_bytes(entries)), probe=probe)
    write_sidecar(built, str(tmp_path / "shard.tar"))
    index = load_index(str(tmp_path / "shard.tar"), probed=True)
    want: dict[str, dict[str, bytes]] = {}
    for name, data in entries:
        key, _, field = name.partition(".")
        want.setdefault(key, {})[field] = data
    assert [index.key(s) for s in range(1000)] == list(want)
    assert contents(index) == list(want.values())
    positions = [p for s in range(1000) for p in index.members(s).values()]
    assert positions == list(range(len(entries))) and index.num_rows == len(entries)
    for sample in (0, 255, 256, 511, 512, 999):
        for field, position in index.members(sample).items():
            member = index.member(position)
            data = want[index.key(sample)][field]
            assert (member.field, member.name) == (field, f"{index.key(sample)}.{field}")
            assert (member.length, member.checksum) == (len(data), zlib.crc32(data))
            assert member.probe == probe(field, data)
            assert member.clean is None and member.sparse is None
    assert index.nbytes > 0
    for bad in (-1, 1000):
        with pytest.raises(ShardIndexError, match="has 1000"):
            index.key(bad)
    with pytest.raises(ShardIndexError):
        index.member(len(entries))


def test_an_index_reads_only_the_blocks_it_needs(tmp_path: Path) -> None:
    index = indexed(write(tmp_path, tar_bytes(pairs(2000))))
    before = index.nbytes
    index.members(1999)
    one = index.nbytes - before
    for sample in range(2000):
        index.members(sample)
    assert index.nbytes - before > 5 * one


def test_an_index_serves_threads(tmp_path: Path) -> None:
    index = indexed(write(tmp_path, tar_bytes(pairs(2000))))
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(index.key, [s * 37 % 2000 for s in range(4000)]))
    assert keys == [f"{s * 37 % 2000:06d}" for s in range(4000)]


def test_digest_is_of_the_content_and_not_of_the_place(tmp_path: Path) -> None:
    data = tar_bytes(pairs(20))
    one = build_index(write(tmp_path, data), probe=probe).meta.digest
    (tmp_path / "elsewhere").mkdir()
    other = write(tmp_path / "elsewhere", data, "other.tar")
    assert build_index(other, probe=probe).meta.digest == one
    marked = build_index(other, probe=probe, verify=odd_is_damaged)
    assert marked.meta.digest == one
    digests = {
        one,
        build_index(other).meta.digest,
        build_index(other, key_rule="last_dot", probe=probe).meta.digest,
        build_index(write(tmp_path, tar_bytes(pairs(20, salt="x"))), probe=probe).meta.digest,
        build_index(write(tmp_path, tar_bytes(pairs(21))), probe=probe).meta.digest,
        build_index(write(tmp_path, tar_bytes(pairs(20, first=1))), probe=probe).meta.digest,
        build_index(write(tmp_path, data + bytes(512)), probe=probe).meta.digest,
    }
    assert len(digests) == 7


def test_marks_of_verify(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes([("a.jpg", b"xx"), ("b.jpg", b"xxx"), ("b.txt", b"")]))
    write_sidecar(build_index(url, probe=probe, verify=odd_is_damaged), url)
    index = load_index(url)
    assert [index.member(p).clean for p in range(3)] == [True, False, None]
    assert index.meta.verified


def test_the_sidecar_is_a_table_that_any_tool_reads(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(3)))
    path = write_sidecar(build_index(url), url)
    assert path == url + ".zmm.parquet"
    table = pq.read_table(path).to_pydict()
    assert table["key"][::2] == [b"000000", b"000001", b"000002"]
    assert table["extension"][:2] == [b"jpg", b"json"]
    assert table["sample"] == [0, 0, 1, 1, 2, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["shard.tar", "shard.tar.zmm.parquet"]


def test_opening_a_large_index_is_quick(tmp_path: Path) -> None:
    """10,000 samples of 3 members: open it, find one sample and its member."""
    entries = [(f"{n:09d}.{field}", b"") for n in range(10_000) for field in ("jpg", "json", "txt")]
    url = write(tmp_path, tar_bytes(entries))
    write_sidecar(build_index(url, probe=lambda field, data: bytes(60)), url)
    times = []
    for sample in (0, 2500, 5000, 7500, 9999):
        start = time.process_time()
        index = load_index(url, probed=True)
        assert index.member(index.members(sample)["json"]).name == f"{sample:09d}.json"
        times.append(time.process_time() - start)
    assert min(times) < 0.03, times


def test_sidecars_have_the_permissions_that_the_user_wants(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(1)))
    before = os.umask(0o027)
    try:
        path = write_sidecar(build_index(url), url)
    finally:
        os.umask(before)
    assert os.stat(path).st_mode & 0o777 == 0o640


def test_no_sidecar_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SidecarError, match=r"shard.tar: .*run `zephon-mm index`"):
        load_index(write(tmp_path, tar_bytes(pairs(1))))


def test_a_changed_shard(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(1)))
    indexed(url)
    size = os.path.getsize(url)
    write(tmp_path, tar_bytes(pairs(20)))
    with pytest.raises(ShardChangedError, match=rf"had {size} when .* index --force"):
        load_index(url)


def test_a_sidecar_of_another_version(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(1)))
    built = build_index(url)
    write_sidecar(dataclasses.replace(built, meta=dataclasses.replace(built.meta, version=99)), url)
    reason = rf"version 99 and this release reads {INDEX_VERSION}; .*--force"
    with pytest.raises(SidecarError, match=reason):
        load_index(url)


def test_a_damaged_sidecar(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(900)))
    path = Path(write_sidecar(build_index(url), url))
    whole = path.read_bytes()
    for data in (b"", b"PAR1", whole[:-100], whole[100:], bytes(len(whole))):
        path.write_bytes(data)
        with pytest.raises(SidecarError, match=r"--force"):
            load_index(url).key(0)
    table = pq.read_table(io_path(path, whole))
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(SidecarError, match="not written by zephon-mm"):
        load_index(url)


def io_path(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_sidecar_replaced_in_use(tmp_path: Path) -> None:
    """By the same index, as another rank that builds at once does: all goes on. By another: no."""
    url = write(tmp_path, tar_bytes(pairs(900)))
    index = indexed(url)
    index.key(0)
    write_sidecar(build_index(url), url)
    assert index.key(300) == "000300"
    write_sidecar(build_index(url, verify=odd_is_damaged), url)
    assert index.key(600) == "000600"
    write_sidecar(build_index(url, probe=probe), url)
    assert index.key(1) == "000001"
    with pytest.raises(SidecarError, match="replaced by another while it was in use"):
        index.key(899)


def test_reading_while_others_write_the_same(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(600)))
    built = build_index(url)
    write_sidecar(built, url)

    def work(number: int) -> list[str]:
        if number % 3 == 0:
            write_sidecar(built, url)
            return []
        index = load_index(url)
        return [index.key(sample) for sample in (0, 300, 599)]

    with ThreadPoolExecutor(6) as pool:
        found = [keys for keys in pool.map(work, range(60)) if keys]
    assert found == [["000000", "000300", "000599"]] * 40


def test_a_shard_of_very_many_samples_has_larger_blocks(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes((f"{n}.txt", b"") for n in range(600)))
    built = build_index(url)
    assert built.meta.block_samples == 256
    meta = dataclasses.replace(built.meta, block_samples=7)
    write_sidecar(dataclasses.replace(built, meta=meta), url)
    index = load_index(url)
    assert [index.key(sample) for sample in range(600)] == [str(n) for n in range(600)]
    assert [index.member(p).name for p in (0, 6, 7, 599)] == ["0.txt", "6.txt", "7.txt", "599.txt"]


def test_options_that_an_index_lacks(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(2))[:1300])
    write_sidecar(build_index(url, allow_truncated=True), url)
    with pytest.raises(CorruptShardError, match="allow-truncated"):
        load_index(url)
    assert load_index(url, allow_truncated=True).num_samples == 1
    with pytest.raises(SidecarError, match="no media probes"):
        load_index(url, allow_truncated=True, probed=True)
    with pytest.raises(SidecarError, match="no index"):
        load_index(url, allow_truncated=True, key_rule="last_dot")
    with pytest.raises(SidecarError, match="manifest"):
        load_index(url, allow_truncated=True, digest=bytes(32))


def test_both_key_rules_live_side_by_side(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes([("a.b.jpg", b"1"), ("a.c.jpg", b"2")]))
    first, last = indexed(url), indexed(url, key_rule="last_dot")
    assert layout(first) == [("a", ["b.jpg", "c.jpg"])]
    assert layout(last) == [("a.b", ["jpg"]), ("a.c", ["jpg"])]
    assert layout(load_index(url)) == layout(first)


def test_a_folder_that_cannot_be_written_uses_the_cache(tmp_path: Path) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    url = write(folder, tar_bytes(pairs(2)))
    folder.chmod(0o555)
    try:
        path = write_sidecar(build_index(url), url, str(cache))
        assert path == sidecar_paths(url, "first_dot", str(cache))[1]
        assert os.listdir(folder) == ["shard.tar"]
        assert load_index(url, cache_dir=str(cache)).num_samples == 2
        with pytest.raises(SidecarError, match="no index"):
            load_index(url, cache_dir=str(tmp_path / "other"))
    finally:
        folder.chmod(0o755)


def test_the_fresher_of_two_sidecars_is_taken(tmp_path: Path) -> None:
    folder, cache = tmp_path / "data", tmp_path / "cache"
    folder.mkdir()
    url = write(folder, tar_bytes(pairs(2)))
    write_sidecar(build_index(url), url)
    write(folder, tar_bytes(pairs(30)))
    folder.chmod(0o555)
    try:
        write_sidecar(build_index(url), url, str(cache))
    finally:
        folder.chmod(0o755)
    assert load_index(url, cache_dir=str(cache)).num_samples == 30


def test_writers_at_once_leave_a_whole_file(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(50)))
    built = build_index(url)
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: write_sidecar(built, url), range(24)))
    assert load_index(url).digest.hex() == built.meta.digest
    assert len(os.listdir(tmp_path)) == 2


def test_meta_is_json_in_the_footer(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes(pairs(3)))
    path = write_sidecar(build_index(url), url)
    meta = json.loads(pq.read_schema(path).metadata[b"zephon_mm"])
    assert (meta["num_samples"], meta["num_members"]) == (3, 6)
    lengths = pq.read_table(path).column("length").to_numpy()
    assert meta["data_bytes"] == int(np.sum(lengths))
