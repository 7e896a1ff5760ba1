"""Local storage and the expansion of URLs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zephon_mm.errors import ConfigError, ShardChangedError, StorageError
from zephon_mm.shards import expand_urls, open_storage


def test_reads_are_exact_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 10)
    storage = open_storage(str(path))
    assert storage.size() == 2560
    assert bytes(storage.read(250, 10)) == bytes([*range(250, 256), 0, 1, 2, 3])
    assert bytes(storage.read(2560, 0)) == b""
    for start, length in ((2560, 1), (0, 2561), (-1, 2)):
        with pytest.raises(ShardChangedError, match="2560"):
            storage.read(start, length)


def test_a_file_cut_under_the_map_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(1 << 20))
    storage = open_storage(str(path))
    os.truncate(path, 100)
    with pytest.raises(ShardChangedError, match="has 100"):
        storage.read(500_000, 10)


def test_views_outlive_the_storage(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abcdef")
    storage = open_storage(str(path))
    view = storage.read(1, 3)
    storage.close()
    assert bytes(view) == b"bcd"


def test_empty_file_and_missing_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert open_storage(str(tmp_path / "empty")).size() == 0
    with pytest.raises(StorageError, match=r"gone.*check that"):
        open_storage(str(tmp_path / "gone"))


def test_file_urls(tmp_path: Path) -> None:
    path = tmp_path / "a b%.tar"
    path.write_bytes(b"x")
    url = "file://" + str(path).replace("%", "%25").replace(" ", "%20")
    assert bytes(open_storage(url).read(0, 1)) == b"x"
    assert expand_urls(url) == [url]
    with pytest.raises(ConfigError, match="three slashes"):
        open_storage("file://host/path.tar")


@pytest.mark.parametrize("url", ["hdfs://host/{0..3}.tar", "ftp://host/a.tar", "pipe:cat x"])
def test_other_schemes_are_named(url: str) -> None:
    with pytest.raises(ConfigError, match=r"not supported; supported: local paths and URLs of"):
        expand_urls(url)


def test_braces_globs_and_lists(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"s-{number:03d}.tar").write_bytes(b"")
    (tmp_path / "s-003.tar.zmm.parquet").write_bytes(b"")
    base = str(tmp_path)
    names = [f"{base}/s-{n:03d}.tar" for n in range(12)]
    assert expand_urls(f"{base}/s-{{000..011}}.tar") == names
    assert expand_urls(f"{base}/s-*") == names
    assert expand_urls(f"{base}/s-{{00[0-4],01?}}.tar") == names[:5] + names[10:]
    assert expand_urls((names[3], names[1])) == [names[3], names[1]]
    odd = tmp_path / "odd[1].tar"
    odd.write_bytes(b"")
    assert expand_urls(str(odd)) == [str(odd)]


def test_urls_that_name_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"")
    base = str(tmp_path)
    for urls, words in (
        (base, r"is a folder; name its shards, as .*\*\.tar"),
        (f"{base}/b.tar", "is not there"),
        (f"{base}/*.tgz", "nothing matches"),
        (f"{base}/{{0..2}}.tar", r"0\.tar' is not there"),
        ((f"{base}/a.tar", f"{base}/*.tar"), "named twice"),
        ((), "empty"),
    ):
        with pytest.raises(ConfigError, match=words):
            expand_urls(urls)
