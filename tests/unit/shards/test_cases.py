"""The reported cases W01–W10 and S01, and the odd tars of other projects."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from zephon_mm.config import Source
from zephon_mm.errors import CorruptShardError
from zephon_mm.shards import ShardReader, open_source
from zephon_mm.shards.storage import open_storage
from zephon_mm.shards.tar import iterate_members

from .tars import contents, copied, indexed, layout, problems, write


def test_w01_a_repeated_name_quarantines_its_sample_only(cases: Path, tmp_path: Path) -> None:
    index = indexed(copied(tmp_path, cases / "inputs/W01/dup.tar"))
    assert [key for key, _ in layout(index)] == ["000000", "000001", "000002"]
    assert list(problems(index)) == ["000001"]
    assert "'000001.jpg' is repeated" in problems(index)["000001"]
    assert index.meta.quarantined == {"repeated name": 1}


def test_w02_same_keys_in_two_shards_are_six_samples(cases: Path, tmp_path: Path) -> None:
    one, two = (copied(tmp_path, cases / f"inputs/W02/{n}.tar") for n in "ab")
    apart = contents(indexed(one)) + contents(indexed(two))
    joined = indexed(write(tmp_path, Path(one).read_bytes() + Path(two).read_bytes(), "cat.tar"))
    assert contents(joined) == apart
    assert len(apart) == 6 and apart[:3] != apart[3:]
    assert [key for key, _ in layout(joined)] == ["000000", "000001", "000002"] * 2
    assert not problems(joined)


@pytest.mark.parametrize("name", ["by_ext", "interleaved"])
def test_w03_members_apart_are_gathered(cases: Path, tmp_path: Path, name: str) -> None:
    index = indexed(copied(tmp_path, cases / f"inputs/W03/{name}.tar"))
    assert layout(index) == [(f"{n:06d}", ["jpg", "json"]) for n in range(3)]
    want = indexed(copied(tmp_path, cases / "inputs/W10/ok.tar"))
    assert contents(index) == contents(want)


def test_w04_dots(cases: Path, tmp_path: Path) -> None:
    url = copied(tmp_path, cases / "inputs/W04/dots.tar")
    assert layout(indexed(url)) == [
        ("v1.0/22", ["05.jpg", "05.json"]),
        ("./a b 2", ["0 (x).jpg", "0 (x).json"]),
        ("set.d/0003", ["left.jpg", "right.jpg", "json"]),
    ]
    assert layout(indexed(url, key_rule="last_dot")) == [
        ("v1.0/22.05", ["jpg", "json"]),
        ("./a b 2.0 (x)", ["jpg", "json"]),
        ("set.d/0003.left", ["jpg"]),
        ("set.d/0003.right", ["jpg"]),
        ("set.d/0003", ["json"]),
    ]


def test_w05_upper_case_fields(cases: Path, tmp_path: Path) -> None:
    index = indexed(copied(tmp_path, cases / "inputs/W05/upper.tar"))
    assert layout(index) == [
        ("000", ["jpg", "json"]),
        ("001", ["jpeg", "json"]),
        ("002", ["jpg", "left.png", "json"]),
    ]
    assert index.member(index.members(2)["left.png"]).name == "002.Left.PNG"


def test_w07_hidden_twins(cases: Path, tmp_path: Path) -> None:
    index = indexed(copied(tmp_path, cases / "inputs/W07/appledouble.tar"))
    assert layout(index) == [(f"set/{n:04d}", ["jpg", "json"]) for n in range(3)]
    assert index.skipped == {"hidden": 9}
    assert not problems(index)


def test_w08_long_names_of_both_kinds_give_the_same_samples(cases: Path, tmp_path: Path) -> None:
    gnu = indexed(copied(tmp_path, cases / "inputs/W08/gnu_long.tar"))
    pax = indexed(copied(tmp_path, cases / "inputs/W08/pax_long.tar"))
    assert layout(gnu) == layout(pax)
    assert contents(gnu) == contents(pax)
    assert gnu.key(3) == "ümläut/猫"
    with tarfile.open(cases / "inputs/W08/gnu_long.tar") as tar:
        stream = {m.name: tar.extractfile(m).read() for m in tar if m.isreg()}  # type: ignore[union-attr]
    indexed_names = {
        gnu.member(p).name: contents(gnu)[s][f] for s in range(4) for f, p in gnu.members(s).items()
    }
    assert indexed_names == stream


def test_w08_links_and_folders_are_no_members(cases: Path, tmp_path: Path) -> None:
    index = indexed(copied(tmp_path, cases / "inputs/W08/ustar_link.tar"))
    assert [fields for _, fields in layout(index)] == [["jpg", "json"]] * 2 + [["json"]] * 2
    assert index.skipped == {"directory": 1, "link": 2}
    assert list(problems(index)) == ["000002", "000003"]
    assert "'000003.jpg' is a link" in problems(index)["000003"]


@pytest.mark.parametrize("kind", ["gnu", "0.0", "0.1", "1.0"])
def test_w09_sparse_members_are_expanded(cases: Path, tmp_path: Path, kind: str) -> None:
    url = copied(tmp_path, cases / f"inputs/W09/sparse_{kind}.tar")
    manifest = open_source(Source(id="s", urls=url, format="text"))
    reader = ShardReader([manifest])
    index = reader.index(0, 0)
    assert layout(index) == [("000000", ["bin", "json"]), ("000001", ["jpg", "json"])]
    with tarfile.open(url) as tar:
        for sample in range(2):
            for position in index.members(sample).values():
                member = index.member(position)
                file = tar.extractfile(member.name)
                assert file is not None
                assert bytes(reader.read(0, 0, position)) == file.read()
    data = bytes(reader.read(0, 0, index.members(0)["bin"]))
    assert len(data) == 3_001_024
    assert not any(data[4096:2998272])


def test_w10_empty_shards(cases: Path, tmp_path: Path) -> None:
    for name, skipped in (("empty", {}), ("dir_only", {"directory": 1})):
        index = indexed(copied(tmp_path, cases / f"inputs/W10/{name}.tar"))
        assert (index.num_samples, index.skipped) == (0, skipped)
    zero = copied(tmp_path, cases / "inputs/W10/zero_bytes.tar")
    with pytest.raises(CorruptShardError, match=r"zero_bytes.tar at byte 0: .* 0 bytes"):
        indexed(zero)
    assert indexed(zero, allow_truncated=True).num_samples == 0


def test_w10_empty_shards_among_others(cases: Path, tmp_path: Path) -> None:
    names = ("empty", "dir_only", "zero_bytes", "ok")
    urls = tuple(copied(tmp_path, cases / f"inputs/W10/{name}.tar") for name in names)
    source = Source(id="s", urls=urls, format="text", allow_truncated=True)
    manifest = open_source(source)
    assert manifest.num_samples.tolist() == [0, 0, 0, 3]
    assert manifest.num_total == 3
    assert (manifest.max_chunk >= 1).all()
    with pytest.raises(CorruptShardError, match="allow_truncated"):
        open_source(Source(id="s", urls=urls, format="text"))


def test_s01_one_shard_is_enough(cases: Path, tmp_path: Path) -> None:
    url = copied(tmp_path, cases / "inputs/W11/full.tar")
    manifest = open_source(Source(id="s", urls=url, format="text"))
    assert manifest.num_samples.tolist() == [6]


def test_odd_tars_of_other_projects_give_their_members(cases: Path) -> None:
    rows = [
        json.loads(line)
        for line in (cases / "media/manifest.jsonl").read_text().splitlines()
        if '"kind": "tar"' in line
    ]
    assert rows
    kinds = {"0": "file", "1": "link", "2": "link", "5": "directory"}
    for row in rows:
        url = str(cases / "media" / row["file"])
        storage = open_storage(url)
        members = list(iterate_members(storage, url))
        want = row["right"]["members"]
        found = [(m.kind, m.length) for m in members]
        assert found == [(kinds[kind], size) for _, kind, size, _ in want], url
        for member, (name, _, _, digest) in zip(members, want, strict=True):
            if digest is not None and member.runs is None:
                data = storage.read(member.offset, member.length)
                assert hashlib.sha256(data).hexdigest() == digest, (url, name)
            raw = member.name.encode("utf-8", "surrogateescape")
            assert raw.decode("utf-8", "replace") == name or raw.decode("latin-1") == name, url
