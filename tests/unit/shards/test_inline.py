from __future__ import annotations

import base64
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from zephon_mm.config import Source
from zephon_mm.errors import ShardChangedError
from zephon_mm.media.probe import probe_member
from zephon_mm.media.verify import verify_member
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.shards.index import build_index
from zephon_mm.shards.inline import decode, find_inline


def picture(value: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20 + value, 16), (value, 90, 200)).save(file, kind)
    return file.getvalue()


def text64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def found(value: Any, raw: bytes | None = None) -> dict[str, bytes]:
    data = json.dumps(value).encode() if raw is None else raw
    inline = find_inline("json", data)
    for each in inline:  # what the index stores is enough to read it again
        assert decode(data[each.start : each.stop]) == each.content
    return {each.extension: each.content for each in inline}


A, B = picture(1), picture(2, "JPEG")


def test_media_are_found_by_place_and_kind() -> None:
    value = {
        "text": "no medium",
        "image_info": [{"image_base64": text64(A), "n": 1}, {}, {"image_base64": text64(B)}],
        "a/b~c": f"data:image/jpeg;base64,{text64(B)}",
        text64(A): "a key is no medium",
        "digest": "ab" * 32,
        "base64 without a known kind": text64(bytes(60)),
    }
    assert found(value) == {
        "json#/image_info/0/image_base64.png": A,
        "json#/image_info/2/image_base64.jpg": B,
        "json#/a~1b~0c.jpg": B,
    }


def test_ways_to_write_the_same_string() -> None:
    slashes = json.dumps({"base64": text64(B)}).replace("/", "\\/").encode()
    assert b"\\/" in slashes and found(None, slashes) == {"json#/base64.jpg": B}
    lines = base64.encodebytes(A).decode()
    assert found({"base64": lines}) == {"json#/base64.png": A}
    assert found(None, json.dumps([{"base64": text64(A)}], indent=2).encode()) == {
        "json#/0/base64.png": A
    }


@pytest.mark.parametrize(
    "raw",
    [
        json.dumps({"image": text64(A)}).encode(),  # nothing says base64
        json.dumps({"base64": text64(A)[:-3]}).encode(),
        b'{"base64": "' + text64(A).encode() + b'"',
        b'{"base64": "' + text64(A).replace("i", "\\u0069").encode() + b'"}',
        b'{"base64": "' + text64(A).encode() + b'", "BASE64": "' + text64(A).encode() + b'"}',
        b'{"base64": 1, "base64": "' + text64(A).encode() + b'", "base64": 2}',
        b"[" * 100_000 + b'"base64"',
        b"\xffbase64",
    ],
)
def test_what_is_not_found_is_left_to_the_format(raw: bytes) -> None:
    assert found(None, raw) == {}


def test_text_that_quotes_base64_is_no_medium() -> None:
    value = {"caption": f'it said "{text64(A)}" and "{text64(A)}', "base64": text64(B)}
    assert found(value) == {"json#/base64.jpg": B}
    assert find_inline("txt", json.dumps(value).encode()) == []


def write(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_the_index_and_the_reader_treat_them_as_members(tmp_path: Path) -> None:
    plain = json.dumps({"image_base64": text64(A), "other_base64": text64(B)}).encode()
    members = {"0.json": plain, "0.txt": b"x", "1.json": b'{"image_base64": null}', "1.txt": b"y"}
    url = str(write(tmp_path / "a.tar", members))
    built = build_index(url, probe=probe_member, verify=verify_member)
    assert (built.meta.num_members, built.meta.num_samples) == (4, 2)
    assert built.meta.data_bytes == sum(map(len, members.values()))
    assert build_index(url, probe=probe_member).meta.digest == built.meta.digest
    source = Source(id="s", urls=url, format="mmc4")
    reader = ShardReader([open_source(source, probe=probe_member)])
    index = reader.index(0, 0)
    fields = index.members(0)
    assert list(fields) == ["json", "json#/image_base64.png", "json#/other_base64.jpg", "txt"]
    assert list(index.members(1)) == ["json", "txt"]
    for field, content in (("json#/image_base64.png", A), ("json#/other_base64.jpg", B)):
        member = reader.member(0, 0, fields[field])
        assert (member.length, member.stored) == (len(content), len(text64(content)))
        assert member.probe == probe_member(field, content)
        assert member.name == f"0.{field}"
        assert bytes(reader.read(0, 0, fields[field])) == content
    assert bytes(reader.read(0, 0, fields["json"])) == plain
    for other in (plain.replace(b"iVBOR", b"iVBOQ"), plain.replace(b"iVBOR", b"iVB?R")):
        write(tmp_path / "a.tar", {**members, "0.json": other})
        reader.close()
        with pytest.raises(ShardChangedError):
            reader.read(0, 0, fields["json#/image_base64.png"])


def test_a_cut_shard_does_not_miss_pictures_of_the_sample_before(tmp_path: Path) -> None:
    whole = json.dumps({"image_base64": text64(A)}).encode()
    path = write(tmp_path / "a.tar", {"0.json": whole, "1.json": b"{}"})
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"{}") + 512])
    built = build_index(str(path), allow_truncated=True)
    assert built.meta.truncated and built.meta.quarantined == {}
