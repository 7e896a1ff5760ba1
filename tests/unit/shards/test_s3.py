"""An S3-compatible store on loopback (moto): reading, listing, indices beside shards."""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from moto.server import ThreadedMotoServer
from typer.testing import CliRunner

from zephon_mm.cli.index import index
from zephon_mm.config import Source
from zephon_mm.errors import ConfigError, ShardChangedError, StorageRefusedError
from zephon_mm.shards import Access, ShardReader, expand_urls, open_source, open_storage
from zephon_mm.shards.access import Retry
from zephon_mm.shards.places import put_beside

from .tars import pairs, tar_bytes

NAMES = ("clips/a-0.tar", "clips/a-1.tar", "clips/deep/er/a-2.tar", "clips/b [1].tar", "top.tar")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").disabled = True
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module")
def access(endpoint: str) -> Access:
    options = {
        "aws_endpoint": endpoint,
        "region": "us-east-1",
        "aws_access_key_id": "id",
        "aws_secret_access_key": "key",
        "google_service_account": "not for this store",
        "connect_timeout": "3s",
    }
    return Access(
        options=tuple(options.items()),
        timeout_seconds=3.0,
        retry=Retry(1, 0.01),
        share_indices=True,
    )


@pytest.fixture
def bucket(endpoint: str, access: Access) -> str:
    """A fresh bucket with shards in it."""
    urllib.request.urlopen(f"{endpoint}/moto-api/reset", data=b"").close()
    request = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    for name in NAMES:
        put(access, name, tar_bytes(pairs(3, salt=name)))
    return "s3://bucket"


def put(access: Access, name: str, data: bytes) -> None:
    import obstore

    from zephon_mm.shards.stores import locate

    store, path = locate(f"s3://bucket/{name}", access)
    obstore.put(store, path, data)


def source(urls: str) -> Source:
    return Source(id="s", urls=urls, format="text")


def test_listing(bucket: str, access: Access) -> None:
    def found(pattern: str) -> list[str]:
        return [u.removeprefix(f"{bucket}/") for u in expand_urls(f"{bucket}/{pattern}", access)]

    assert found("clips/*.tar") == ["clips/a-0.tar", "clips/a-1.tar", "clips/b [1].tar"]
    assert (
        found("clips/a-?.tar") == found("clips/a-[0-9].tar") == ["clips/a-0.tar", "clips/a-1.tar"]
    )
    assert found("clips/a-[!0].tar") == ["clips/a-1.tar"]
    assert found("clips/**/*.tar") == sorted(NAMES[:4])
    assert found("{clips/a-0,*}.tar") == ["clips/a-0.tar", "top.tar"]
    with pytest.raises(ConfigError, match="nothing matches"):
        found("clips/*.tgz")


def test_an_index_is_put_beside_and_found_by_another_host(
    bucket: str, access: Access, tmp_path: Path
) -> None:
    urls = f"{bucket}/clips/*.tar"
    first = open_source(source(urls), cache_dir=str(tmp_path / "one"), access=access)
    assert first.num_total == 9
    beside = expand_urls(f"{bucket}/clips/**", access)
    assert [u for u in beside if u.endswith(".parquet")] == []  # never taken for shards
    assert expand_urls(urls, access) == list(first.shards)
    built: list[bool] = []
    other = open_source(
        source(urls),
        cache_dir=str(tmp_path / "two"),
        access=access,
        check=True,
        progress=lambda done: built.append(done.built),
    )
    assert built == [False] * 3 and other.digest == first.digest
    third = open_source(source(urls), cache_dir=str(tmp_path / "three"), access=access)
    assert third.digest == first.digest
    assert len(list((tmp_path / "three").rglob("*.parquet"))) == 1  # the manifest alone
    reader = ShardReader([third], cache_dir=str(tmp_path / "three"), access=access)
    expected = dict(pairs(3, salt="clips/b [1].tar"))
    found = reader.index(0, 2)
    assert {
        f"{found.key(sample)}.{name}": bytes(reader.read(0, 2, position))
        for sample in range(3)
        for name, position in found.members(sample).items()
    } == expected


def test_an_object_that_another_host_replaced_and_indexed(
    bucket: str, access: Access, tmp_path: Path
) -> None:
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    url = f"{bucket}/top.tar"
    old = open_source(source(url), cache_dir=here, access=access)
    reader = ShardReader([old], cache_dir=here, access=access)
    put(access, "top.tar", tar_bytes(pairs(3, salt="TOP.tar")))  # of the same size
    with pytest.raises(ShardChangedError, match="was replaced"):
        reader.index(0, 0)
    with pytest.raises(ShardChangedError, match="--force"):
        open_source(source(url), cache_dir=there, access=access, check=True)
    new = open_source(source(url), cache_dir=there, access=access, force=True)
    for path in (tmp_path / "here").rglob("*-source.*"):  # whatever the clocks' grain
        os.utime(path, (1e9, 1e9))
    seen = open_source(source(url), cache_dir=here, access=access)
    assert seen.digest == new.digest != old.digest
    fresh = ShardReader([seen], cache_dir=here, access=access)
    assert bytes(fresh.read(0, 0, 1)) == dict(pairs(1, salt="TOP.tar"))["000000.json"]


def test_a_run_writes_nothing_into_the_bucket(bucket: str, access: Access, tmp_path: Path) -> None:
    quiet = replace(access, share_indices=False)
    open_source(source(f"{bucket}/top.tar"), cache_dir=str(tmp_path), access=quiet)
    assert [u for u in objects(access) if "parquet" in u] == []
    assert Access().share_indices is False


def test_what_could_not_be_put_beside_is_tried_again_and_told(
    bucket: str,
    access: Access,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import obstore

    whole, failures = obstore.put, [OSError("reset")] * 3

    def failing(*arguments: Any) -> object:
        if failures:
            raise failures.pop()
        return whole(*arguments)

    monkeypatch.setattr(obstore, "put", failing)
    (tmp_path / "index").write_bytes(b"PAR1")
    put_beside(f"{bucket}/a", str(tmp_path / "index"), access)  # two tries, both in vain
    assert "can't be written after 2 tries" in caplog.text and "WARNING" in caplog.text
    put_beside(f"{bucket}/b", str(tmp_path / "index"), access)
    assert not failures and {u for u in objects(access) if u[-2:] in ("/a", "/b")} == {
        "s3://bucket/b"
    }
    caplog.clear()
    put_beside("http://127.0.0.1:9/x", str(tmp_path / "index"), access)
    assert "WARNING" not in caplog.text  # what no store takes is no fault


def objects(access: Access) -> list[str]:
    """All that is in the bucket."""
    from zephon_mm.shards.remote import expand

    return expand("s3://bucket/**", access)


def test_the_command_verifies_by_the_options_of_the_store(
    bucket: str, access: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    put(access, "pictures.tar", tar_bytes([("0.jpg", b"no picture"), ("0.txt", b"x")]))
    app = typer.Typer()
    app.command()(index)
    options = [f"--storage-option={name}={value}" for name, value in access.options]
    arguments = [f"{bucket}/pictures.tar", "--verify", "--cache-dir", str(tmp_path), *options]
    for share, count in (("--no-share", 0), ("--share", 2)):
        result = CliRunner().invoke(app, [*arguments, "--force", share], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert "unreadable: 0.jpg in s3://bucket/pictures.tar: " in result.output
        assert sum("parquet" in url for url in objects(access)) == count


def test_refusals(bucket: str, access: Access) -> None:
    with pytest.raises(StorageRefusedError, match="it is not there"):
        open_storage(f"{bucket}/gone.tar", access).read(0, 1)
    with pytest.raises(StorageRefusedError, match="it is not there"):
        open_storage("s3://no-such-bucket/gone.tar", access).read(0, 1)
    data = bytes(open_storage(f"{bucket}/top.tar", access).read(0, 512))
    assert data == tar_bytes(pairs(3, salt="top.tar"))[:512]
    with pytest.raises(ShardChangedError, match="--force"):
        open_storage(f"{bucket}/top.tar", access).read(10, 1 << 20)
    assert "key" not in repr(access) and "key" not in repr(replace(access, cache_bytes=5))
