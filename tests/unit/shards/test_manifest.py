"""One source: building, reading again, and the size of it."""

from __future__ import annotations

import dataclasses
import os
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from zephon_mm.config import Source
from zephon_mm.errors import ConfigError, CorruptShardError, ShardChangedError, SidecarError
from zephon_mm.shards import Manifest, ShardDone, ShardReader, open_source
from zephon_mm.shards import manifest as module
from zephon_mm.shards.index import Data
from zephon_mm.shards.manifest import manifest_paths, read_manifest, write_manifest

from .tars import pairs, tar_bytes, write


def probe(field: str, data: Data) -> bytes | None:
    return field.encode() if field == "jpg" else None


def clean(field: str, data: Data, probe: bytes) -> bool:
    return True


def shards(folder: Path, counts: list[int]) -> tuple[str, ...]:
    return tuple(
        write(folder, tar_bytes(pairs(count, salt=str(i))), f"s-{i:03d}.tar")
        for i, count in enumerate(counts)
    )


def source(urls: str | tuple[str, ...], **options: object) -> Source:
    return Source(id="s", urls=urls, format="text", **options)  # type: ignore[arg-type]


def test_first_use_builds_and_the_next_reads_only_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = shards(tmp_path, [3, 0, 5])
    seen: list[ShardDone] = []
    first = open_source(source(urls), probe=probe, progress=seen.append)
    assert first.num_samples.tolist() == [3, 0, 5]
    assert (first.num_total, first.num_members) == (8, 16)
    assert [(d.shard, d.built, d.num_shards) for d in seen] == [(u, True, 3) for u in urls]
    monkeypatch.setattr(module, "load_index", None)
    monkeypatch.setattr(module, "build_index", None)
    (tmp_path / "hollow").touch()
    for url in urls:
        os.rename(url, url + ".away")  # 1,001 literal paths would not be looked at either
        os.symlink(tmp_path / "hollow", url)
    again = open_source(source(urls), probe=probe)
    assert again.shards == first.shards
    assert again.digest == first.digest
    assert np.array_equal(again.digests, first.digests)
    assert np.array_equal(again.size_bytes, first.size_bytes)
    assert again.skipped == first.skipped


def test_the_digest_is_of_content_and_order(tmp_path: Path) -> None:
    urls = shards(tmp_path, [2, 3])
    (tmp_path / "moved").mkdir()
    moved = shards(tmp_path / "moved", [2, 3])
    one = open_source(source(urls)).digest
    assert open_source(source(moved)).digest == one
    assert open_source(source(urls[::-1])).digest != one
    assert open_source(source(urls[:1])).digest != one


def test_a_moved_folder_keeps_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    open_source(source(shards(tmp_path / "a", [2, 3])))
    os.rename(tmp_path / "a", tmp_path / "b")
    urls = [str(tmp_path / "b" / f"s-{i:03d}.tar") for i in range(2)]
    found = read_manifest(urls, "first_dot", False, None)
    assert found is not None and found.shards == tuple(urls)
    file_urls = [f"file://{url}" for url in urls]
    assert read_manifest(file_urls, "first_dot", False, None) is not None


def test_chunks_hold_64_mib_and_256_samples_at_most(tmp_path: Path) -> None:
    small = write(tmp_path, tar_bytes(pairs(2)), "small.tar")
    built = open_source(source(small))
    assert built.max_chunk.tolist() == [256]
    meta = module.build_index(small).meta
    for data_bytes, want in ((2 * 64 << 20, 1), (2 * 10 << 20, 6), (2 << 40, 1), (0, 256)):
        assert module.chunk_limit(dataclasses.replace(meta, data_bytes=data_bytes)) == want


@pytest.mark.parametrize("workers", [1, 2])
def test_every_bad_shard_is_named_and_the_others_are_kept(tmp_path: Path, workers: int) -> None:
    """Worker processes give the same as this one, also errors."""
    from zephon_mm.media.probe import probe_member

    good = open_source(source(shards(tmp_path, [2, 2, 2, 2])), probe=probe_member)
    for made in tmp_path.glob("*.zmm.parquet"):
        made.unlink()
    urls = shards(tmp_path, [2, 2, 2, 2])
    for bad in (1, 2):
        Path(urls[bad]).write_bytes(Path(urls[bad]).read_bytes()[:700])
    with pytest.raises(CorruptShardError, match=r"(?s)s-001.*2 shards.*s-002") as caught:
        open_source(source(urls), probe=probe_member, workers=workers)
    assert caught.value.shard == urls[1] and caught.value.offset == 700
    seen: list[ShardDone] = []
    found = open_source(
        source(urls, allow_truncated=True), probe=probe_member, progress=seen.append
    )
    assert {d.shard for d in seen if d.built} == {urls[1], urls[2]}
    assert found.num_truncated == 2
    assert found.quarantined == {"cut": 2}
    with pytest.raises(CorruptShardError, match="2 of 4 shards"):
        open_source(source(urls), probe=probe_member)
    assert [bytes(found.digests[i]) == bytes(good.digests[i]) for i in range(4)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_changed_shard_needs_force(tmp_path: Path) -> None:
    urls = shards(tmp_path, [2, 2])
    before = open_source(source(urls))
    write(tmp_path, tar_bytes(pairs(40)), "s-001.tar")
    assert open_source(source(urls)).num_total == 4  # found when it is touched …
    with pytest.raises(ShardChangedError, match=r"--force"):
        ShardReader([before], read_retries=0).index(0, 1)
    with pytest.raises(ShardChangedError, match=r"s-001.*--force"):
        open_source(source(urls), check=True)  # … and by `zephon-mm index`
    after = open_source(source(urls), force=True)
    assert after.num_samples.tolist() == [2, 40]
    assert open_source(source(urls)).digest == after.digest != before.digest
    with pytest.raises(SidecarError, match="not the one that the source's manifest"):
        ShardReader([before], read_retries=0).index(0, 1)


def test_check_mends_a_manifest_whose_indices_were_made_anew(tmp_path: Path) -> None:
    urls = shards(tmp_path, [2, 2])
    open_source(source(urls))
    write(tmp_path, tar_bytes(pairs(3)), "s-001.tar")
    open_source(source(urls[1]), force=True)
    assert open_source(source(urls)).num_total == 4
    assert open_source(source(urls), check=True).num_total == 5
    assert open_source(source(urls)).num_total == 5


def test_verify_adds_marks_and_changes_no_digest(tmp_path: Path) -> None:
    urls = shards(tmp_path, [2, 2])
    plain = open_source(source(urls), probe=probe)
    assert not plain.verified
    marked = open_source(source(urls), probe=probe, verify=clean)
    assert marked.verified and marked.digest == plain.digest
    reader = ShardReader([plain])
    assert reader.member(0, 0, 0).clean is True
    seen: list[ShardDone] = []
    open_source(source(urls), probe=probe, verify=clean, progress=seen.append)
    assert seen == []
    data = bytearray(Path(urls[0]).read_bytes())
    data[600] ^= 1
    (tmp_path / "new").mkdir()
    new = shards(tmp_path / "new", [2])
    open_source(source(new), probe=probe)
    Path(new[0]).write_bytes(bytes(data))
    with pytest.raises(ShardChangedError, match="content is not what its index says"):
        open_source(source(new), probe=probe, verify=clean)


def test_an_unreadable_manifest_says_what_to_do(tmp_path: Path) -> None:
    urls = shards(tmp_path, [1])
    open_source(source(urls))
    path = Path(manifest_paths(urls, "first_dot", False, None)[0])
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(SidecarError, match=r"manifest .*--force"):
        open_source(source(urls))
    assert open_source(source(urls), check=True).num_total == 1
    assert open_source(source(urls)).num_total == 1


def test_an_unwritable_folder_uses_the_cache(tmp_path: Path) -> None:
    folder, cache = tmp_path / "data", str(tmp_path / "cache")
    folder.mkdir()
    urls = shards(folder, [2, 3])
    folder.chmod(0o555)
    try:
        first = open_source(source(urls), cache_dir=cache)
        assert sorted(os.listdir(folder)) == ["s-000.tar", "s-001.tar"]
        assert open_source(source(urls), cache_dir=cache).digest == first.digest
        reader = ShardReader([first], cache_dir=cache)
        assert reader.index(0, 1).num_samples == 3
    finally:
        folder.chmod(0o755)


def test_relative_and_absolute_urls_share_a_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(tmp_path, [1, 2])
    open_source(source(str(tmp_path / "s-{000..001}.tar")))
    monkeypatch.chdir(tmp_path)
    for urls in ("s-*.tar", "s-{000..001}.tar", ("s-000.tar", "s-001.tar")):
        assert read_manifest(module.expand_urls(urls), "first_dot", False, None) is not None


def test_missing_shards(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not there"):
        open_source(source(str(tmp_path / "x.tar")))


def test_ten_to_the_nine_samples_in_ten_to_the_five_shards(tmp_path: Path) -> None:
    count = 100_000
    pattern = str(tmp_path / "clips-{000000..099999}.tar")
    urls = tuple(module.expand_urls(pattern))
    write_manifest(
        Manifest(
            shards=urls,
            num_samples=np.full(count, 10_000),
            max_chunk=np.full(count, 256),
            size_bytes=np.full(count, 1 << 30),
            digests=np.random.default_rng(0).integers(0, 256, (count, 32), np.uint8),
            num_members=2 * 10**9,
            data_bytes=count << 30,
            skipped={},
            quarantined={},
            num_truncated=0,
            key_rule="first_dot",
            allow_truncated=False,
            probed=True,
            verified=False,
        )
    )
    times = []
    for _ in range(3):
        start = time.process_time()
        found = open_source(source(pattern), probe=probe)
        times.append(time.process_time() - start)
    assert found.num_total == 10**9
    assert min(times) < 1.0, times
    del found
    tracemalloc.start()
    found = open_source(source(pattern), probe=probe)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.shards) == count and peak < 100e6, peak


def test_samples_evenly_spread(tmp_path: Path) -> None:
    for number, count in enumerate((3, 0, 7)):
        (tmp_path / f"e-{number}.tar").write_bytes(tar_bytes(pairs(count)))
    manifest = open_source(source(str(tmp_path / "e-{0..2}.tar")))
    assert manifest.spread(4) == [(0, 0), (2, 0), (2, 3), (2, 6)]
    assert manifest.spread(1) == [(0, 0)]
    assert manifest.spread(99) == [(0, i) for i in range(3)] + [(2, i) for i in range(7)]
    empty = open_source(source(str(tmp_path / "e-1.tar")))
    assert empty.spread(4) == []
