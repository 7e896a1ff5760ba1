"""One test a row of the table in docs/shards.md, and that the table has no other rows."""

from __future__ import annotations

import random
import re
import tarfile
from pathlib import Path

import pytest

from zephon_mm.config import Source
from zephon_mm.errors import CorruptShardError
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.shards.grouping import ignored_kind, split_name

from .tars import (
    END,
    contents,
    header,
    indexed,
    layout,
    member,
    padded,
    pairs,
    pax,
    problems,
    tar_bytes,
    write,
)

DOCS = Path(__file__).resolve().parents[3] / "docs" / "shards.md"
WHOLE = [(f"{n:06d}", ["jpg", "json"]) for n in range(3)]


def test_policy_repeated_names(tmp_path: Path) -> None:
    entries = pairs(3)
    for again in (entries[2], ("000001.jpg", b"other bytes")):
        for place in (3, 4, 6):
            shuffled = [*entries[:place], again, *entries[place:]]
            index = indexed(write(tmp_path, tar_bytes(shuffled)))
            assert [key for key, _ in layout(index)] == [key for key, _ in WHOLE]
            assert problems(index) == {"000001": "member '000001.jpg' is repeated"}
            assert index.meta.num_members == 7
    index = indexed(write(tmp_path, tar_bytes([*pairs(1), ("000000.JPG", b"x")])))
    assert "'000000.jpg' and '000000.JPG' have the same field 'jpg'" in problems(index)["000000"]


def test_policy_same_key_in_two_shards(tmp_path: Path) -> None:
    urls = tuple(
        write(tmp_path, tar_bytes(pairs(2, salt=name)), f"{name}.tar") for name in ("a", "b")
    )
    reader = ShardReader([open_source(Source(id="s", urls=urls, format="text"))])
    found = {
        (shard, sample): bytes(
            reader.read(0, shard, reader.index(0, shard).members(sample)["json"])
        )
        for shard in range(2)
        for sample in range(2)
    }
    assert len(set(found.values())) == 4


def test_policy_members_apart(tmp_path: Path) -> None:
    want = contents(indexed(write(tmp_path, tar_bytes(pairs(30)))))
    entries = pairs(30)
    by_field = [e for e in entries if e[0].endswith("jpg")]
    by_field += [e for e in entries if e[0].endswith("json")]
    index = indexed(write(tmp_path, tar_bytes(by_field)))
    assert contents(index) == want
    random.Random(1).shuffle(entries)
    index = indexed(write(tmp_path, tar_bytes(entries)))
    keys = [key for key, _ in layout(index)]
    assert keys == list(dict.fromkeys(name.partition(".")[0] for name, _ in entries))
    by_key = dict(zip(keys, contents(index), strict=True))
    assert [by_key[f"{n:06d}"] for n in range(30)] == want
    assert not problems(index)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("a.jpg", ("a", "jpg"), ("a", "jpg")),
        ("a.b.jpg", ("a", "b.jpg"), ("a.b", "jpg")),
        ("v1.0/22.05.jpg", ("v1.0/22", "05.jpg"), ("v1.0/22.05", "jpg")),
        ("./a b 2.0 (x).jpg", ("./a b 2", "0 (x).jpg"), ("./a b 2.0 (x)", "jpg")),
        ("../up/a.jpg", ("../up/a", "jpg"), ("../up/a", "jpg")),
        ("/abs/a.jpg", ("/abs/a", "jpg"), ("/abs/a", "jpg")),
        ("a..jpg", ("a", ".jpg"), ("a.", "jpg")),
        ("a.", ("a", ""), ("a", "")),
        ("folder.d/plain", None, None),
        ("plain", None, None),
        ("two\nlines.txt", ("two\nlines", "txt"), ("two\nlines", "txt")),
    ],
)
def test_policy_dots(
    name: str, first: tuple[str, str] | None, last: tuple[str, str] | None
) -> None:
    assert split_name(name, "first_dot") == first
    assert split_name(name, "last_dot") == last


def test_policy_upper_case(tmp_path: Path) -> None:
    entries = [("A.JPG", b"1"), ("A.Json", b"2"), ("a.jpg", b"3"), ("a.Left.PNG", b"4")]
    index = indexed(write(tmp_path, tar_bytes(entries)))
    assert layout(index) == [("A", ["jpg", "json"]), ("a", ["jpg", "left.png"])]
    assert not problems(index)


def test_policy_hidden_files(tmp_path: Path) -> None:
    hidden = ["._000000.jpg", "x/.DS_Store", "__MACOSX/000000.json", "__MACOSX/._a.jpg", ".jpg"]
    hidden += ["x/.AppleDouble/000000.jpg", "a/__MACOSX/b.jpg", "..", "x/..png"]
    entries = pairs(3)
    for place, name in enumerate(hidden):
        entries.insert(min(2 * place + 1, len(entries)), (name, b"\0\5\x16\7"))
    index = indexed(write(tmp_path, tar_bytes(entries, tarfile.GNU_FORMAT)))
    assert layout(index) == WHOLE
    assert index.skipped == {"hidden": len(hidden)}
    assert not problems(index)


def test_policy_metadata_and_names_without_a_field(tmp_path: Path) -> None:
    entries = [("__meta__/x.json", b"{}"), ("README", b"r"), ("d.d/LICENSE", b"l"), *pairs(1)]
    data = tar_bytes(entries)
    index = indexed(write(tmp_path, member(b"", b"nameless") + data))
    assert layout(index) == WHOLE[:1]
    assert index.skipped == {"meta": 1, "no extension": 2, "unnamed": 1}
    assert ignored_kind("a/__meta__/x.json") is None


def test_policy_empty_shards(tmp_path: Path) -> None:
    only_hidden = tar_bytes([(".x", b"")])
    for data in (END, bytes(512), bytes(10240), header(b"d/", 0, b"5") + END, only_hidden):
        assert indexed(write(tmp_path, data)).num_samples == 0
    urls = (write(tmp_path, END, "e.tar"), write(tmp_path, tar_bytes(pairs(3)), "f.tar"))
    assert open_source(Source(id="s", urls=urls, format="text")).num_samples.tolist() == [0, 3]
    only = open_source(Source(id="s", urls=urls[0], format="text"))
    assert (only.num_total, only.num_samples.tolist()) == (0, [0])


def test_policy_zero_bytes(tmp_path: Path) -> None:
    url = write(tmp_path, b"")
    with pytest.raises(CorruptShardError, match="0 bytes"):
        indexed(url)
    index = indexed(url, allow_truncated=True)
    assert (index.num_samples, index.meta.truncated) == (0, True)


def test_policy_links_folders_devices(tmp_path: Path) -> None:
    data = header(b"dir.d/", 0, b"5") + header(b"dev.jpg", 0, b"3")
    data += header(b"alone.jpg", 0, b"2") + header(b"000001.txt", 0, b"1")
    data += tar_bytes(pairs(2))
    index = indexed(write(tmp_path, data))
    assert layout(index) == WHOLE[:2]
    assert index.skipped == {"directory": 1, "link": 2, "other": 1}
    assert problems(index) == {
        "000001": "member '000001.txt' is a link, and links are not followed"
    }


def test_policy_sparse(tmp_path: Path) -> None:
    records = [("GNU.sparse.map", b"0,2,8,2"), ("GNU.sparse.size", b"10")]
    records += [("GNU.sparse.name", b"s.bin")]
    data = pax(records) + member(b"GNUSparseFile.0/s.bin", b"abcd")
    bad = pax([*records[:2], ("GNU.sparse.name", b"t.bin")]) + member(b"g/t.bin", b"abcde")
    url = write(tmp_path, data + bad + tar_bytes(pairs(1)))
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    index = reader.index(0, 0)
    assert [key for key, _ in layout(index)] == ["s", "t", "000000"]
    assert bytes(reader.read(0, 0, index.members(0)["bin"])) == b"ab\0\0\0\0\0\0cd"
    assert list(problems(index)) == ["t"] and "'t.bin'" in problems(index)["t"]


def test_policy_truncated(tmp_path: Path) -> None:
    whole = tar_bytes(pairs(3))
    for cut in range(512, 6 * 1024, 128):  # a jpg and a json take 1024 bytes each
        url = write(tmp_path, whole[:cut])
        with pytest.raises(CorruptShardError) as caught:
            indexed(url)
        assert (caught.value.shard, caught.value.offset) == (url, cut)
        index = indexed(url, allow_truncated=True)
        for sample in range(index.num_samples):
            fields = list(index.members(sample))
            if index.problem(sample) is None:  # never half a sample, unless it is the only one
                assert fields == ["jpg", "json"] or index.num_samples == 1
        for found, want in zip(contents(index), contents_of(pairs(3)), strict=False):
            assert all(want[name] == data for name, data in found.items())


def contents_of(entries: list[tuple[str, bytes]]) -> list[dict[str, bytes]]:
    found: dict[str, dict[str, bytes]] = {}
    for name, data in entries:
        key, _, field = name.partition(".")
        found.setdefault(key, {})[field] = data
    return list(found.values())


def test_policy_truncated_names_what_is_cut(tmp_path: Path) -> None:
    whole = tar_bytes(pairs(3))
    in_data = indexed(write(tmp_path, whole[: 5 * 1024 + 520]), allow_truncated=True)
    assert in_data.num_samples == 3 and list(in_data.members(2)) == ["jpg"]
    assert problems(in_data) == {"000002": "member '000002.json' is cut off: the shard ends in it"}
    first = indexed(write(tmp_path, whole[: 4 * 1024 + 520]), allow_truncated=True)
    assert first.num_samples == 3 and first.members(2) == {}
    assert list(problems(first)) == ["000002"]
    for at in (5 * 1024, 5 * 1024 + 100):  # between members, and inside a header
        index = indexed(write(tmp_path, whole[:at]), allow_truncated=True)
        assert problems(index) == {"000002": "the shard is cut off before its member 'json'"}
    even = indexed(write(tmp_path, whole[: 4 * 1024]), allow_truncated=True)
    assert (layout(even), problems(even)) == (WHOLE[:2], {})
    assert even.meta.truncated


def test_policy_broken_header(tmp_path: Path) -> None:
    data = bytearray(tar_bytes(pairs(3)))
    data[2048:2560] = b"\xa5" * 512
    url = write(tmp_path, bytes(data))
    for allow in (False, True):
        with pytest.raises(CorruptShardError, match="broken header") as caught:
            indexed(url, allow_truncated=allow)
        assert (caught.value.shard, caught.value.offset) == (url, 2048)


def test_policy_compressed(tmp_path: Path) -> None:
    for name, data in (
        ("a.tar", b"\x1f\x8b\x08" + bytes(600)),
        ("a.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(20)),
        ("a.tar.xz", b"\xfd7zXZ\x00" + bytes(600)),
        ("a.tbz2", b"BZh9" + bytes(600)),
    ):
        for allow in (False, True):
            with pytest.raises(CorruptShardError, match=r"compressed .* Decompress"):
                indexed(write(tmp_path, data, name), allow_truncated=allow)
    members = indexed(write(tmp_path, tar_bytes([("a.txt.gz", b"\x1f\x8b")]), "b.tar"))
    assert layout(members) == [("a", ["txt.gz"])]


def test_policy_concatenated(tmp_path: Path) -> None:
    one, two = tar_bytes(pairs(3)), tar_bytes(pairs(3, salt="b"))
    index = indexed(write(tmp_path, one + two))
    assert layout(index) == WHOLE + WHOLE
    assert contents(index) == contents_of(pairs(3)) + contents_of(pairs(3, salt="b"))
    assert not problems(index)
    same = indexed(write(tmp_path, one + one))
    assert same.num_samples == 6 and not problems(same)


def test_policy_one_key_spread_over_concatenated_archives(tmp_path: Path) -> None:
    entries = pairs(2)
    one, two = tar_bytes(entries[:3]), tar_bytes(entries[3:])
    index = indexed(write(tmp_path, one + two))
    assert layout(index) == [("000000", ["jpg", "json"]), ("000001", ["jpg"]), ("000001", ["json"])]
    assert index.problem(0) is None
    assert "concatenated" in str(index.problem(1)) and "concatenated" in str(index.problem(2))
    assert index.meta.quarantined == {"two archives": 2}


def test_policy_odd_names(tmp_path: Path) -> None:
    names = [b"/etc/passwd.txt", b"../../up.txt", b"a//b.txt", b"\xff\xfe.jpg", b"x:y?*.txt"]
    names += ["é.txt".encode(), "e\u0301.txt".encode(), b" .txt", b"new\nline.txt"]
    data = b"".join(member(name, b"n%d" % i) for i, name in enumerate(names)) + END
    url = write(tmp_path, data)
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    index = reader.index(0, 0)
    found = [index.key(s).encode("utf-8", "surrogateescape") for s in range(index.num_samples)]
    assert found == [name.rpartition(b".")[0] for name in names]
    for sample in range(index.num_samples):
        (position,) = index.members(sample).values()
        assert bytes(reader.read(0, 0, position)) == b"n%d" % sample
    assert sorted(path.name for path in tmp_path.iterdir() if "zmm" not in path.name) == [
        "shard.tar"
    ]


def test_policy_empty_members(tmp_path: Path) -> None:
    url = write(tmp_path, tar_bytes([("a.txt", b""), ("a.json", b"{}"), ("b.txt", b"")]))
    reader = ShardReader([open_source(Source(id="s", urls=url, format="text"))])
    index = reader.index(0, 0)
    assert layout(index) == [("a", ["txt", "json"]), ("b", ["txt"])]
    assert bytes(reader.read(0, 0, index.members(1)["txt"])) == b""


def test_policy_no_end_marker(tmp_path: Path) -> None:
    data = b"".join(header(n.encode(), len(d)) + padded(d) for n, d in pairs(3))
    url = write(tmp_path, data)
    with pytest.raises(CorruptShardError, match="without an end-of-archive marker"):
        indexed(url)
    index = indexed(url, allow_truncated=True)
    assert (layout(index), problems(index)) == (WHOLE, {})
    assert layout(indexed(write(tmp_path, data + bytes(512)))) == WHOLE


def test_the_table_and_the_tests_name_each_other() -> None:
    named = set(re.findall(r"`(test_policy_\w+)`", DOCS.read_text(encoding="utf-8")))
    assert named == {name for name in globals() if name.startswith("test_policy_")}
